"""Server side of joining: challenge, ticket exchange, and the room's WebSocket for peers."""

import asyncio
import logging
from typing import Any

from litestar import Request
from litestar import websocket as websocket_route
from litestar.params import FromPath, JSONBody
from msgspec.structs import replace

from gatepost.access import AdmittedNode, NodeAdmission, NodeAuthenticator
from gatepost.access import node_sessions as node_sessions
from gatepost.access.auth_messages import CONTROL_ROOM, Challenge, ExchangeAnswer, ExchangeRequest
from gatepost.errors import (
    GatepostError,
    InvalidTicket,
    NotFound,
    RoomViolation,
    Unavailable,
)
from gatepost.gateway import welcome
from gatepost.gateway.connection import Connection
from gatepost.gateway.handshake import Socket, check_origin, refuse
from gatepost.gateway.metrics import Metrics
from gatepost.gateway.pipes import Pipes
from gatepost.gateway.room import RoomKeeper
from gatepost.gateway.route import get, post
from gatepost.gateway.threshold import Threshold
from gatepost.gateway.websocket import TOO_LARGE
from gatepost.gateway.welcome import SUBPROTOCOL, TICKET_PREFIX, Welcome
from gatepost.room import AdmissionLink, InviteRecord, claim_key

log = logging.getLogger(__name__)

AnyRequest = Request[Any, Any, Any]

CHALLENGE_PATH = "/ansible/auth/challenge"
EXCHANGE_PATH = "/ansible/auth/exchange"
ROOM_PATH = "/ansible/room"
_MAX_BODY = 16 * 1024
# Application close codes: the HTTP status that would have been, plus 4000.
_CLOSE = 4000
_OPEN = {"open": True}


class NodeDoor:
    """Serves joining peers over HTTP and WebSocket; `access` decides which of them may join."""

    def __init__(
        self, replica: RoomKeeper, pipes: Pipes, metrics: Metrics, guard: Threshold
    ) -> None:
        self._keeper = replica
        self._pipes = pipes
        self._metrics = metrics
        self.threshold = guard
        self._core = replica.core
        self._settings = replica.core.settings
        self._door = NodeAuthenticator(replica.issuer(), replica.policy, replica.directory)

    def challenge(self) -> Challenge:
        return self._door.make_challenge(self._core.clock.now())

    async def exchange(self, request: ExchangeRequest) -> ExchangeAnswer:
        return await self._core.commit(lambda tx: self._door.issue_ticket(tx, request))

    async def receive(self, socket: Socket, room: str) -> None:
        """Refuse the handshake, or run the connection until either side ends it."""
        try:
            admitted = await self._admit(socket, room)
        except GatepostError as error:
            await refuse(socket, error)
            return
        try:
            await self._host(socket, admitted)
        finally:
            self._core.submit(lambda tx: node_sessions.close_node_session(tx, admitted.session_id))

    async def _admit(self, socket: Socket, room: str) -> AdmittedNode:
        self.threshold.cross(socket)
        check_origin(socket, self._settings.room.allowed_origins)
        ticket = _ticket(socket)
        if room != CONTROL_ROOM:
            raise NotFound(f"there is no room of this name; the only room is {CONTROL_ROOM}")
        if len(self._keeper.connections) >= self._settings.limits.max_connections:
            raise Unavailable("too many connections", retry_after=1.0)
        return await self._core.commit(lambda tx: self._door.redeem_ticket(tx, ticket))

    async def _host(self, socket: Socket, admitted: AdmittedNode) -> None:
        room, awareness = self._keeper.current, self._keeper.awareness
        identity = (admitted.node_id, admitted.public_key)
        connection = Connection(room, awareness, _SocketWire(socket), *identity, "guest")
        connection.session = admitted.session_id
        # Registered before anything is awaited, so that a revocation after admission finds it.
        with self._keeper.connected(connection), self._metrics.node():
            self._pipes.joined(connection)
            try:
                await socket.accept(subprotocols=_chosen(socket), headers=self._welcome(admitted))
                await self._run(socket, connection, admitted)
            finally:
                self._pipes.left(connection)

    async def _run(self, socket: Socket, connection: Connection, admitted: AdmittedNode) -> None:
        publishing = asyncio.ensure_future(self._note_entry(admitted))
        try:
            await connection.run()
        except RoomViolation as violation:
            self._keeper.count_incident(admitted.node_id, violation)
            await _close(socket, violation)
        except GatepostError as error:
            await _close(socket, error)
        finally:
            await publishing

    def _welcome(self, admitted: AdmittedNode) -> dict[str, Any]:
        room = self._keeper.current
        chain = () if admitted.admission is None else self._chain(admitted.admission)
        value = Welcome(room.genesis, room.epoch, chain)
        header = welcome.write(value, admitted.session_id, self._core.node.key)
        return {welcome.HEADER: header}

    def _chain(self, admission: NodeAdmission) -> tuple[AdmissionLink, ...]:
        return self._keeper.chain_for(
            AdmissionLink(
                admission.node_id,
                admission.tier,
                admission.issued_at,
                admission.public_key,
                admission.signature,
            )
        )

    async def _note_entry(self, admitted: AdmittedNode) -> None:
        """Publish in the room which of our invites this peer used."""
        sql = "SELECT id, used_at FROM invite WHERE used_by = ?"
        rows = await self._core.read(lambda tx: tx.fetch_all(sql, (admitted.node_id,)))
        records = {}
        for id, used_at in rows:
            key = ("invites", claim_key(id, self._core.node.id))
            known = self._keeper.current.document.record_at((*key, self._core.node.key.public))
            if (
                known is not None
                and isinstance(known.data, InviteRecord)
                and known.data.used_at is None
            ):
                records[key] = replace(known.data, used_at=used_at)
        try:
            await self._keeper.publish(records)
        except GatepostError as error:
            log.warning("the use of an invite is not in the room yet: %s", error.message)


class _SocketWire:
    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    async def receive(self) -> bytes | None:
        message: dict[str, Any] = dict(await self._socket.receive())
        if message["type"] == "websocket.disconnect":
            if message.get("code") == TOO_LARGE:
                raise RoomViolation("the message is larger than the limit", rule="too_large")
            return None
        data = message.get("bytes")
        if data is None:
            raise RoomViolation("the room takes binary messages, not text", rule="message")
        return bytes(data)

    async def send(self, message: bytes) -> None:
        await self._socket.send({"type": "websocket.send", "bytes": message, "text": None})


def routes(server: NodeDoor) -> list[Any]:
    @get(CHALLENGE_PATH, summary="A challenge that a known node answers with its key", opt=_OPEN)
    async def challenge(request: AnyRequest) -> Challenge:
        server.threshold.cross(request)
        return server.challenge()

    @post(
        EXCHANGE_PATH,
        status_code=200,
        request_max_body_size=_MAX_BODY,
        summary="Exchange an invite or a proof for a ticket",
        opt=_OPEN,
    )
    async def exchange(data: JSONBody[ExchangeRequest], request: AnyRequest) -> ExchangeAnswer:
        server.threshold.cross(request)
        return await server.exchange(data)

    @websocket_route(ROOM_PATH + "/{room:str}")
    async def room_socket(socket: Socket, room: FromPath[str]) -> None:
        await server.receive(socket, room)

    return [challenge, exchange, room_socket]


def _ticket(socket: Socket) -> str:
    """Read the ticket from the header, or from the subprotocols if a client cannot set it."""
    scheme, _, value = (socket.headers.get("authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and value:
        return value.strip()
    for each in _offered(socket):
        if each.startswith(TICKET_PREFIX):
            return each.removeprefix(TICKET_PREFIX)
    raise InvalidTicket(
        "show a ticket: in the header `Authorization: Bearer`, or as a second subprotocol"
        f" `{TICKET_PREFIX}<ticket>` beside `{SUBPROTOCOL}`"
    )


def _offered(socket: Socket) -> list[str]:
    return list(socket.scope.get("subprotocols") or ())


def _chosen(socket: Socket) -> str | None:
    return SUBPROTOCOL if SUBPROTOCOL in _offered(socket) else None


async def _close(socket: Socket, error: GatepostError) -> None:
    try:
        await socket.close(_CLOSE + error.status, error.code)
    except Exception:
        log.debug("a socket was gone before it could be closed")
