"""Client side of joining a peer: get a ticket over HTTP, then open the WebSocket."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec
import websockets
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from gatepost.access import ExchangeRequester, check_exchange_answer
from gatepost.access.auth_messages import (
    Challenge,
    ExchangeAnswer,
    ExchangeRequest,
    RevocationRecordProof,
)
from gatepost.access.node_invites import issuer_fingerprint
from gatepost.config import RoomSettings as Settings
from gatepost.config import is_loopback
from gatepost.errors import (
    Forbidden,
    GatepostError,
    InvalidProof,
    InvalidRequest,
    TokenAlreadyUsed,
    Unavailable,
)
from gatepost.events import fingerprint_key
from gatepost.gateway.core import Core
from gatepost.gateway.peers import welcome_header
from gatepost.gateway.peers.join_server import (
    CHALLENGE_PATH,
    EXCHANGE_PATH,
    REVOCATION_PATH,
    ROOM_PATH,
)
from gatepost.gateway.peers.room_directory import RoomDirectory
from gatepost.gateway.peers.welcome_header import SUBPROTOCOL, WELCOME_HEADER, Welcome
from gatepost.http_calls import NotGatewayAnswer, decode_answer
from gatepost.room import CONTROL_ROOM, MAX_MESSAGE_BYTES
from gatepost.wire import decode_failure

T = TypeVar("T")

_TIMEOUT_SECS = 10.0
# Errors of the network, and of a socket that worked a moment ago.
NETWORK_ERRORS = (OSError, TimeoutError, httpx.HTTPError, websockets.WebSocketException)


class JoinedPeer(Struct, frozen=True):
    """The gateway at the other end of a WebSocket we opened."""

    id: str
    public_key: bytes
    welcome: Welcome


class SelfDialError(Exception):
    """The address we dialled is our own."""


class JoinClient:
    """Gets tickets and opens sockets. A refusal is raised with the error code the peer gave."""

    def __init__(self, core: Core, known: RoomDirectory) -> None:
        self._node = core.node
        self._settings = core.settings.room
        self._members = known
        self._joiner = ExchangeRequester(core.node.id, core.node.key, core.clock)
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    # Loading the machine's certificates takes a while, so it is done when they are needed.
    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        return _load_tls_context(self._settings)

    def _http_client(self, url: str) -> httpx.AsyncClient:
        scheme = urlsplit(url).scheme
        if scheme not in self._clients:
            verify = self._tls_context if scheme == "https" else False
            # A proxy must see neither tickets nor invites.
            client = httpx.AsyncClient(timeout=_TIMEOUT_SECS, verify=verify, trust_env=False)
            self._clients[scheme] = client
        return self._clients[scheme]

    async def exchange_invite(self, url: str, token: str) -> ExchangeAnswer:
        """Get a ticket for an invite; if this node has used it before, get one by proof."""
        issuer = issuer_fingerprint(token)
        try:
            return await self._request_ticket(url, self._joiner.with_invite(token), issuer)
        except TokenAlreadyUsed as used:
            try:
                return await self.exchange_proof(url, issuer)
            except InvalidProof:
                raise used from None

    async def exchange_proof(self, url: str, issuer: str | None) -> ExchangeAnswer:
        """Get a ticket for our signature. `issuer`: required fingerprint of the peer's key."""
        challenge = await self._request_json("GET", url + CHALLENGE_PATH, Challenge)
        if challenge.issuer_key == self._node.key.public:
            raise SelfDialError
        issuer = issuer or self._expected_issuer(challenge)
        return await self._request_ticket(
            url, self._joiner.with_challenge(challenge, issuer), issuer
        )

    async def fetch_revocations(self, url: str) -> list[RevocationRecordProof]:
        """Get the records that revoke this node, from a peer that says it is revoked."""
        own = fingerprint_key(self._node.key.public)
        return await self._request_json(
            "GET", f"{url}{REVOCATION_PATH}/{own}", list[RevocationRecordProof]
        )

    @asynccontextmanager
    async def open_socket(
        self, url: str, answer: ExchangeAnswer
    ) -> AsyncIterator[tuple[ClientConnection, JoinedPeer]]:
        """Open the WebSocket; yield it with the peer's identity."""
        ticket = {"authorization": f"Bearer {answer.ws_ticket}"}
        address = f"{websocket_url(url)}{ROOM_PATH}/{CONTROL_ROOM}"
        try:
            socket = await connect(
                address,
                additional_headers=ticket,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                max_size=MAX_MESSAGE_BYTES,
                open_timeout=_TIMEOUT_SECS,
                close_timeout=1,
                compression=None,
                proxy=None,
                ssl=self._tls_context if address.startswith("wss:") else None,
            )
        except InvalidStatus as refusal:
            raise _refusal_error(refusal) from None
        async with socket:
            yield socket, _read_peer(socket, answer)

    async def _request_ticket(
        self, url: str, request: ExchangeRequest, issuer: str
    ) -> ExchangeAnswer:
        body = msgspec.json.encode(request)
        answer = await self._request_json("POST", url + EXCHANGE_PATH, ExchangeAnswer, content=body)
        check_exchange_answer(request, answer, issuer)
        return answer

    def _expected_issuer(self, challenge: Challenge) -> str:
        known = self._members.by_key(None, challenge.issuer_key)
        if known is None or known.revoked or known.node_id != challenge.issuer_id:
            raise Forbidden(f"{challenge.issuer_id} answered, but is not a member of our room")
        return fingerprint_key(known.public_key)

    async def _request_json(self, method: str, url: str, answer: type[T], **request: Any) -> T:
        self._check_url(url)
        response = await self._http_client(url).request(method, url, **request)
        try:
            return decode_answer(response, answer)
        except NotGatewayAnswer as other:
            raise Unavailable(f"{url} answered HTTP {other.status}, but is not a gateway") from None

    def _check_url(self, url: str) -> None:
        parts = urlsplit(url)
        plain = parts.scheme != "https" and not self._settings.allow_plain
        if plain and not is_loopback(parts.hostname or ""):
            raise InvalidRequest(
                f"{parts.scheme}://{parts.netloc} is another machine without TLS: use https,"
                " or set room.allow_plain = true where the network itself is trusted"
            )


class DialedPeerSocket:
    """A WebSocket we opened, as the `PeerSocket` of a connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def receive(self) -> bytes | None:
        try:
            message = await self._socket.recv()
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code >= 4000:
                raise Forbidden(f"the peer ended the connection: {closed.rcvd.reason}") from None
            return None
        return message if isinstance(message, bytes) else message.encode()

    async def send(self, message: bytes) -> None:
        await self._socket.send(message)


def websocket_url(url: str) -> str:
    return "ws" + url.removeprefix("http")


def http_url(endpoint: str) -> str:
    return "http" + endpoint.removeprefix("ws")


def _read_peer(socket: ClientConnection, answer: ExchangeAnswer) -> JoinedPeer:
    headers = {} if socket.response is None else socket.response.headers
    received = welcome_header.decode_welcome(
        headers.get(WELCOME_HEADER, ""), answer.session_id, answer.issuer_key
    )
    return JoinedPeer(answer.issuer_id, answer.issuer_key, received)


def _refusal_error(refusal: InvalidStatus) -> GatepostError:
    status, body = refusal.response.status_code, bytes(refusal.response.body or b"")
    return decode_failure(body) or Unavailable(
        f"the peer answered HTTP {status}, but is not a gateway"
    )


def _load_tls_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if settings.tls_ca:
        context.load_verify_locations(Path(settings.tls_ca).expanduser())
    return context
