"""The joining node's side: builds exchange requests and verifies the gateway's answer."""

from hmac import compare_digest

from gatepost.access import tickets
from gatepost.access.forms import CONTROL_ROOM, Challenge, ExchangeAnswer, ExchangeRequest
from gatepost.access.invites import issuer_fingerprint
from gatepost.access.proof import Statement, by_challenge, by_invite
from gatepost.access.tokens import Kind, b64, parse
from gatepost.clock import Clock
from gatepost.errors import InvalidTicket
from gatepost.events import NodeKey, fingerprint_key

_ROOMS = (CONTROL_ROOM,)


class Joiner:
    """Builds the ticket requests of one node."""

    def __init__(self, node_id: str, key: NodeKey, clock: Clock) -> None:
        self._node_id = node_id
        self._key = key
        self._clock = clock

    def with_invite(self, token: str, rooms: tuple[str, ...] = _ROOMS) -> ExchangeRequest:
        nonce, ground = self._nonce(), by_invite(parse(token, Kind.INVITE).id)
        return ExchangeRequest(
            node_id=self._node_id,
            node_key=self._key.public,
            nonce=nonce,
            invite_token=token,
            node_proof=self._prove(ground, nonce, issuer_fingerprint(token)),
            requested_rooms=rooms,
        )

    def with_proof(
        self, challenge: Challenge, issuer: str, rooms: tuple[str, ...] = _ROOMS
    ) -> ExchangeRequest:
        """`issuer` is the fingerprint already known for the gateway, not one from its answer."""
        nonce, ground = self._nonce(), by_challenge(challenge.challenge)
        return ExchangeRequest(
            node_id=self._node_id,
            node_key=self._key.public,
            nonce=nonce,
            challenge=challenge.challenge,
            node_proof=self._prove(ground, nonce, issuer),
            requested_rooms=rooms,
        )

    def _nonce(self) -> str:
        return b64(self._clock.random(24))

    def _prove(self, ground: str, nonce: str, issuer: str) -> bytes:
        return Statement(ground, nonce, issuer, self._node_id, self._key.public).sign(self._key)


def check_answer(request: ExchangeRequest, answer: ExchangeAnswer, issuer: str) -> None:
    """Raise unless the gateway with this fingerprint answered this exact request."""
    if not compare_digest(fingerprint_key(answer.issuer_key), issuer):
        raise InvalidTicket("the answer comes from another gateway than asked; do not continue")
    claims = tickets.read(answer.ws_ticket, answer.issuer_id, answer.issuer_key)
    answered = (claims.sub, claims.node_key, claims.nonce)
    if answered != (request.node_id, request.node_key, request.nonce):
        raise InvalidTicket("the ticket answers another request; do not continue")
