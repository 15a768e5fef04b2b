import pytest
from msgspec.structs import replace

from gatepost.access import Issuer, check_exchange_answer, node_invites
from gatepost.access.node_authentication import NodeAuthenticator
from gatepost.errors import InvalidTicket
from tests.access.gate import Gate, key


def test_the_joiner_recognises_the_gateway_that_invited_it(gate: Gate) -> None:
    token = gate.invite("mbp-jane").token
    request = gate.joiner("mbp-jane").with_invite(token)
    check_exchange_answer(request, gate.exchange(request), node_invites.issuer_fingerprint(token))


def test_an_impostor_with_a_key_of_its_own_is_noticed(gate: Gate) -> None:
    token = gate.invite("mbp-jane").token
    request = gate.joiner("mbp-jane").with_invite(token)
    honest = gate.exchange(request)
    with pytest.raises(InvalidTicket, match="another gateway"):
        check_exchange_answer(
            request,
            replace(honest, issuer_key=key("eve").public),
            node_invites.issuer_fingerprint(token),
        )


def test_an_impostor_that_shows_the_right_key_without_having_it_is_noticed(gate: Gate) -> None:
    token = gate.invite("mbp-jane").token
    request = gate.joiner("mbp-jane").with_invite(token)
    eve = Gate()
    eve.issuer = Issuer("vps-jane", key("eve"), eve.clock)
    eve.door = NodeAuthenticator(eve.issuer, eve.policy, eve.directory)
    forged = eve.exchange(eve.joiner("mbp-jane").with_invite(eve.invite("mbp-jane").token))
    shown = replace(forged, issuer_key=gate.issuer.key.public)
    with pytest.raises(InvalidTicket):
        check_exchange_answer(request, shown, node_invites.issuer_fingerprint(token))


def test_an_answer_to_another_request_is_noticed(gate: Gate) -> None:
    token = gate.invite("mbp-jane").token
    earlier, request = (gate.joiner("mbp-jane").with_invite(token) for _ in range(2))
    with pytest.raises(InvalidTicket, match="another request"):
        check_exchange_answer(
            request, gate.exchange(earlier), node_invites.issuer_fingerprint(token)
        )
