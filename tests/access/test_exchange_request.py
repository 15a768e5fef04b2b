import pytest
from msgspec.structs import replace

from gatepost.access import Issuer, check_exchange_answer, node_invites
from gatepost.access.node_authentication import NodeAuthenticator
from gatepost.errors import InvalidTicket
from tests.access.harness import AccessHarness, key


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
