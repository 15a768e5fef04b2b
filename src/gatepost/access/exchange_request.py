"""The joining node's side: builds exchange requests and verifies the gateway's answer."""

from hmac import compare_digest

from gatepost.access import tickets
from gatepost.access.auth_messages import Challenge, ExchangeAnswer, ExchangeRequest
from gatepost.access.host_proof import encrypt_invite
from gatepost.access.node_invites import read_invite_issuer
from gatepost.access.node_proof import ProofStatement, challenge_ground, invite_ground
from gatepost.access.tokens import TokenKind, encode_b64, parse_token
from gatepost.clock import Clock
from gatepost.errors import InvalidTicket
from gatepost.events import NodeKey, fingerprint_key
from gatepost.room import CONTROL_ROOM

_DEFAULT_ROOMS = (CONTROL_ROOM,)


class ExchangeRequester:
    """Builds the ticket requests of one node."""

    def __init__(self, node_id: str, key: NodeKey, clock: Clock) -> None:
        self._node_id = node_id
        self._key = key
        self._clock = clock

    def with_invite(
        self, token: str, rooms: tuple[str, ...] = _DEFAULT_ROOMS, host_key: bytes | None = None
    ) -> ExchangeRequest:
        """With the `host_key` of the gateway that issued it, the invite is encrypted."""
        nonce, ground = self.new_nonce(), invite_ground(parse_token(token, TokenKind.INVITE).id)
        return ExchangeRequest(
            node_id=self._node_id,
            node_key=self._key.public,
            nonce=nonce,
            invite_token=token if host_key is None else None,
            encrypted_invite=None if host_key is None else encrypt_invite(token, host_key),
            node_proof=self._sign_proof(ground, nonce, read_invite_issuer(token).fingerprint),
            requested_rooms=rooms,
        )

    def with_challenge(
        self, challenge: Challenge, issuer: str, rooms: tuple[str, ...] = _DEFAULT_ROOMS
    ) -> ExchangeRequest:
        """`issuer` is the fingerprint already known for the gateway, not one from its answer."""
        nonce, ground = self.new_nonce(), challenge_ground(challenge.challenge)
        return ExchangeRequest(
            node_id=self._node_id,
            node_key=self._key.public,
            nonce=nonce,
            challenge=challenge.challenge,
            node_proof=self._sign_proof(ground, nonce, issuer),
            requested_rooms=rooms,
        )

    def new_nonce(self) -> str:
        return encode_b64(self._clock.random(24))

    def _sign_proof(self, ground: str, nonce: str, issuer: str) -> bytes:
        return ProofStatement(ground, nonce, issuer, self._node_id, self._key.public).sign_with(
            self._key
        )


def check_exchange_answer(request: ExchangeRequest, answer: ExchangeAnswer, issuer: str) -> None:
    """Raise unless the gateway with this fingerprint answered this exact request."""
    if not compare_digest(fingerprint_key(answer.issuer_key), issuer):
        raise InvalidTicket("the answer comes from another gateway than asked; do not continue")
    claims = tickets.read_ticket(answer.ws_ticket, answer.issuer_id, answer.issuer_key)
    answered = (claims.sub, claims.node_key, claims.nonce)
    if answered != (request.node_id, request.node_key, request.nonce):
        raise InvalidTicket("the ticket answers another request; do not continue")
