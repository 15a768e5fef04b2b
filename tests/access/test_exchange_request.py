import pytest
from msgspec.structs import replace

from gatepost.access import Issuer, check_exchange_answer, node_invites
from gatepost.access.node_authentication import NodeAuthenticator
from gatepost.errors import InvalidTicket, InvalidToken
from tests.access.harness import AccessHarness, key


def test_an_encrypted_invite_is_as_good_as_a_plain_one(harness: AccessHarness) -> None:
    token = harness.invite("mbp-jane").token
    request = harness.joiner("mbp-jane").with_invite(token, host_key=harness.issuer.key.public)
    assert request.invite_token is None
    assert harness.admit(harness.exchange(request).ws_ticket).node_id == "mbp-jane"


@pytest.mark.parametrize("encrypted", [b"", b"x" * 100])
def test_an_invite_that_was_encrypted_for_nobody_is_none(
    harness: AccessHarness, encrypted: bytes
) -> None:
    request = harness.joiner("mbp-jane").with_invite(harness.invite("mbp-jane").token)
    with pytest.raises(InvalidToken):
        harness.exchange(replace(request, invite_token=None, encrypted_invite=encrypted))


def test_the_joiner_recognises_the_gateway_that_invited_it(harness: AccessHarness) -> None:
    token = harness.invite("mbp-jane").token
    request = harness.joiner("mbp-jane").with_invite(token)
    check_exchange_answer(
        request, harness.exchange(request), node_invites.read_invite_issuer(token).fingerprint
    )


def test_an_impostor_with_a_key_of_its_own_is_noticed(harness: AccessHarness) -> None:
    token = harness.invite("mbp-jane").token
    request = harness.joiner("mbp-jane").with_invite(token)
    honest = harness.exchange(request)
    with pytest.raises(InvalidTicket, match="another gateway"):
        check_exchange_answer(
            request,
            replace(honest, issuer_key=key("eve").public),
            node_invites.read_invite_issuer(token).fingerprint,
        )


def test_an_impostor_that_shows_the_right_key_without_having_it_is_noticed(
    harness: AccessHarness,
) -> None:
    token = harness.invite("mbp-jane").token
    request = harness.joiner("mbp-jane").with_invite(token)
    eve = AccessHarness()
    eve.issuer = Issuer("vps-jane", key("eve"), eve.clock)
    eve.door = NodeAuthenticator(eve.issuer, eve.policy, eve.directory)
    forged = eve.exchange(eve.joiner("mbp-jane").with_invite(eve.invite("mbp-jane").token))
    shown = replace(forged, issuer_key=harness.issuer.key.public)
    with pytest.raises(InvalidTicket):
        check_exchange_answer(request, shown, node_invites.read_invite_issuer(token).fingerprint)


def test_an_answer_to_another_request_is_noticed(harness: AccessHarness) -> None:
    token = harness.invite("mbp-jane").token
    earlier, request = (harness.joiner("mbp-jane").with_invite(token) for _ in range(2))
    with pytest.raises(InvalidTicket, match="another request"):
        check_exchange_answer(
            request, harness.exchange(earlier), node_invites.read_invite_issuer(token).fingerprint
        )
