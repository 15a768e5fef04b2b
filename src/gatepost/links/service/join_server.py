"""Server side of joining: challenge, ticket exchange, and the room's WebSocket for peers."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any

from litestar import websocket as websocket_route
from litestar.params import JSONBody, QueryParameter
from msgspec.structs import replace

from gatepost.access import (
    AdmittedNode,
    NodeAdmission,
    NodeAuthenticator,
    node_sessions,
    welcome_header,
)
from gatepost.access.auth_messages import (
    Challenge,
    ExchangeAnswer,
    ExchangeRequest,
    RevocationRecordProof,
)
from gatepost.access.node_invites import invites_used_by
from gatepost.access.welcome_header import SUBPROTOCOL, TICKET_PREFIX, Welcome
from gatepost.errors import (
    GatepostError,
    InvalidTicket,
    NotFound,
    RoomViolation,
    Unavailable,
)
from gatepost.events import fingerprint_key
from gatepost.links.connections.connection import PeerConnection
from gatepost.links.service.connection_links import ConnectionLinks, max_queued_bytes
from gatepost.listening.connection_guard import ConnectionGuard
from gatepost.listening.connection_pool import identify_connection
from gatepost.listening.local_auth import parse_bearer_token
from gatepost.listening.route_decorators import get, post
from gatepost.listening.route_parameters import AnyRequest, AnyWebSocket, PathName
from gatepost.listening.websocket_handshake import CLOSE_TOO_LARGE, check_origin, refuse_websocket
from gatepost.room import CONTROL_ROOM, AdmissionLink, InviteRecord, claim_key
from gatepost.room.service.record_announcer import RecordAnnouncer

log = logging.getLogger(__name__)

CHALLENGE_PATH = "/ansible/auth/challenge"
EXCHANGE_PATH = "/ansible/auth/exchange"
REVOCATION_PATH = "/ansible/auth/revocations"
ROOM_PATH = "/ansible/room"
_MAX_PROOFS = 4
_MAX_BODY_BYTES = 16 * 1024
# Application close codes: the equivalent HTTP status plus 4000.
_CLOSE_CODE_BASE = 4000
_NO_LOCAL_TOKEN = {"open": True}
OptionalNonce = Annotated[str | None, QueryParameter(min_length=16, max_length=128)]

# Counts a peer while it is connected.
TrackPeer = Callable[[], AbstractContextManager[None]]


class JoinServer:
    """Serves joining peers over HTTP and WebSocket; `access` decides which of them may join."""

    def __init__(
        self,
        announcer: RecordAnnouncer,
        links: ConnectionLinks,
        guard: ConnectionGuard,
        track_peer: TrackPeer,
    ) -> None:
        self._announcer = announcer
        self._replica = replica = announcer.replica
        self._links = links
        self._track_peer = track_peer
        self.guard = guard
        self._core = replica.core
        self._settings = replica.core.settings
        self._admission = NodeAuthenticator(
            replica.create_issuer(), replica.policy, replica.directory
        )

    def issue_challenge(self, nonce: str | None) -> Challenge:
        return self._admission.make_challenge(self._core.clock.now(), nonce)

    def prove_revocation(self, fingerprint: str) -> list[RevocationRecordProof]:
        """Return the records that revoke the node with this key; NotFound if there is none."""
        revoked = self._replica.current_room.effective.membership.revoked
        found = [s for (_, key), s in revoked.items() if fingerprint_key(key) == fingerprint]
        if not found:
            raise NotFound("no node with this key was revoked")
        return [RevocationRecordProof(s.text, s.signature) for s in found[0]][:_MAX_PROOFS]

    async def issue_ticket(self, request: ExchangeRequest) -> ExchangeAnswer:
        return await self._core.commit(lambda tx: self._admission.issue_ticket(tx, request))

    async def serve_socket(self, socket: AnyWebSocket, room: str) -> None:
        """Refuse the handshake, or run the connection until either side ends it."""
        try:
            admitted = await self._admit_peer(socket, room)
        except GatepostError as error:
            await refuse_websocket(socket, error)
            return
        try:
            await self._serve_connection(socket, admitted)
        finally:
            self._core.submit(lambda tx: node_sessions.close_node_session(tx, admitted.session_id))

    async def _admit_peer(self, socket: AnyWebSocket, room: str) -> AdmittedNode:
        self.guard.check_attempt(socket)
        check_origin(socket, self._settings.room.allowed_origins)
        ticket = _read_ticket(socket)
        if room != CONTROL_ROOM:
            raise NotFound(f"there is no room of this name; the only room is {CONTROL_ROOM}")
        if len(self._replica.connections) >= self._settings.limits.max_connections:
            raise Unavailable("too many connections", retry_after=1.0)
        admitted = await self._core.commit(lambda tx: self._admission.redeem_ticket(tx, ticket))
        try:
            identify_connection(socket, f"node:{admitted.node_id}")
        except GatepostError:
            self._core.submit(lambda tx: node_sessions.close_node_session(tx, admitted.session_id))
            raise
        return admitted

    async def _serve_connection(self, socket: AnyWebSocket, admitted: AdmittedNode) -> None:
        room, awareness = self._replica.current_room, self._replica.awareness
        identity = (admitted.node_id, admitted.public_key)
        connection = PeerConnection(
            room,
            awareness,
            _AcceptedPeerSocket(socket),
            *identity,
            "dialer",
            max_queued_bytes(self._settings.delivery.window_bytes),
            self._settings.delivery.link_silence_secs,
        )
        connection.session = admitted.session_id
        # Registered before anything is awaited, so that a revocation after admission finds it.
        with self._replica.connections.track_connection(connection), self._track_peer():
            self._links.add_joined(connection)
            try:
                await socket.accept(
                    subprotocols=_chosen_subprotocol(socket),
                    headers=self._welcome_headers(admitted),
                )
                await self._run_connection(socket, connection, admitted)
            finally:
                self._links.remove_connection(connection)

    async def _run_connection(
        self, socket: AnyWebSocket, connection: PeerConnection, admitted: AdmittedNode
    ) -> None:
        publishing = asyncio.ensure_future(self._publish_invite_use(admitted))
        try:
            await connection.run()
        except GatepostError as error:
            self._replica.connections.report_end(admitted.node_id, error)
            await _close_socket(socket, error)
        finally:
            await publishing

    def _welcome_headers(self, admitted: AdmittedNode) -> dict[str, Any]:
        room = self._replica.current_room
        chain = () if admitted.admission is None else self._admission_chain(admitted.admission)
        value = Welcome(room.genesis, room.epoch, chain, room.epoch_proof)
        header = welcome_header.encode_welcome(value, admitted.session_id, self._core.node.key)
        return {welcome_header.WELCOME_HEADER: header}

    def _admission_chain(self, admission: NodeAdmission) -> tuple[AdmissionLink, ...]:
        return self._replica.chain_for(
            AdmissionLink(
                admission.node_id,
                admission.tier,
                admission.issued_at,
                admission.public_key,
                admission.signature,
            )
        )

    async def _publish_invite_use(self, admitted: AdmittedNode) -> None:
        """Publish in the room which of our invites this peer used."""
        rows = await self._core.read(lambda tx: invites_used_by(tx, admitted.node_id))
        records = {}
        for id, used_at in rows:
            key = ("invites", claim_key(id, self._core.node.id))
            known = self._replica.current_room.document.record_at(
                (*key, self._core.node.key.public)
            )
            if (
                known is not None
                and isinstance(known.data, InviteRecord)
                and known.data.used_at is None
            ):
                records[key] = replace(known.data, used_at=used_at)
        try:
            await self._announcer.publish_records(records)
        except GatepostError as error:
            log.warning("the use of an invite is not in the room yet: %s", error.message)


class _AcceptedPeerSocket:
    def __init__(self, socket: AnyWebSocket) -> None:
        self._socket = socket

    async def receive(self) -> bytes | None:
        message: dict[str, Any] = dict(await self._socket.receive())
        if message["type"] == "websocket.disconnect":
            if message.get("code") == CLOSE_TOO_LARGE:
                raise RoomViolation("the message is larger than the limit", rule="too_large")
            return None
        data = message.get("bytes")
        if data is None:
            raise RoomViolation("the room takes binary messages, not text", rule="message")
        return bytes(data)

    async def send(self, message: bytes) -> None:
        await self._socket.send({"type": "websocket.send", "bytes": message, "text": None})


def create_routes(server: JoinServer) -> list[Any]:
    @get(
        CHALLENGE_PATH,
        summary="A challenge that a known node answers with its key, signed with its nonce",
        opt=_NO_LOCAL_TOKEN,
    )
    async def challenge(request: AnyRequest, nonce: OptionalNonce = None) -> Challenge:
        server.guard.check_attempt(request)
        return server.issue_challenge(nonce)

    @get(
        REVOCATION_PATH + "/{fingerprint:str}",
        summary="The signed records that revoke the node with this key",
        opt=_NO_LOCAL_TOKEN,
    )
    async def revocations(
        fingerprint: PathName, request: AnyRequest
    ) -> list[RevocationRecordProof]:
        server.guard.check_attempt(request)
        return server.prove_revocation(fingerprint)

    @post(
        EXCHANGE_PATH,
        status_code=200,
        request_max_body_size=_MAX_BODY_BYTES,
        summary="Exchange an invite or a proof for a ticket",
        opt=_NO_LOCAL_TOKEN,
    )
    async def exchange(data: JSONBody[ExchangeRequest], request: AnyRequest) -> ExchangeAnswer:
        server.guard.check_attempt(request)
        return await server.issue_ticket(data)

    @websocket_route(ROOM_PATH + "/{room:str}")
    async def room_socket(socket: AnyWebSocket, room: PathName) -> None:
        await server.serve_socket(socket, room)

    return [challenge, revocations, exchange, room_socket]


def _read_ticket(socket: AnyWebSocket) -> str:
    """Read the ticket from the header, or from the subprotocols if a client cannot set it."""
    if ticket := parse_bearer_token(socket.headers.get("authorization")):
        return ticket.strip()
    for each in _offered_subprotocols(socket):
        if each.startswith(TICKET_PREFIX):
            return each.removeprefix(TICKET_PREFIX)
    raise InvalidTicket(
        "show a ticket: in the header `Authorization: Bearer`, or as a second subprotocol"
        f" `{TICKET_PREFIX}<ticket>` beside `{SUBPROTOCOL}`"
    )


def _offered_subprotocols(socket: AnyWebSocket) -> list[str]:
    return list(socket.scope.get("subprotocols") or ())


def _chosen_subprotocol(socket: AnyWebSocket) -> str | None:
    return SUBPROTOCOL if SUBPROTOCOL in _offered_subprotocols(socket) else None


async def _close_socket(socket: AnyWebSocket, error: GatepostError) -> None:
    try:
        await socket.close(_CLOSE_CODE_BASE + error.status, error.code)
    except Exception:
        log.debug("a socket was gone before it could be closed")
