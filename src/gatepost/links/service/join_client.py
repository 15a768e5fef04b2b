"""Client side of joining a peer: get a ticket over HTTP, then open the WebSocket."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import websockets
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from gatepost.access import ExchangeRequester, check_exchange_answer, welcome_header
from gatepost.access.auth_messages import (
    Challenge,
    ExchangeAnswer,
    ExchangeRequest,
    RevocationRecordProof,
)
from gatepost.access.host_proof import check_host_proof
from gatepost.access.join_secret import JoinSecret
from gatepost.access.node_invites import read_invite_issuer
from gatepost.access.room_directory import RoomDirectory
from gatepost.access.welcome_header import SUBPROTOCOL, WELCOME_HEADER, Welcome
from gatepost.config import is_loopback
from gatepost.connect.connect_errors import explain_connect_error
from gatepost.connect.http_calls import (
    UNCOMPRESSED,
    NotGatewayAnswer,
    decode_answer,
    httpx,
    read_body,
)
from gatepost.core.gateway_core import Core
from gatepost.errors import (
    Forbidden,
    GatepostError,
    InvalidProof,
    InvalidRequest,
    RoomViolation,
    TokenAlreadyUsed,
    Unavailable,
    WrongHost,
)
from gatepost.events import fingerprint_key
from gatepost.links.connections.dial_address import PinnedTransport, resolve_address
from gatepost.links.service.join_server import (
    CHALLENGE_PATH,
    EXCHANGE_PATH,
    REVOCATION_PATH,
    ROOM_PATH,
)
from gatepost.links.service.seeds import Seed
from gatepost.listening.frame_limits import MAX_PIECES
from gatepost.mesh.bootstrap import BOOTSTRAP_PREFIX, BootstrapAnswer, BootstrapRequest
from gatepost.mesh.rendezvous import DESCRIPTOR_PATH
from gatepost.room import CONTROL_ROOM, MAX_MESSAGE_BYTES
from gatepost.tls import authority_context, pinned_context, read_authorities
from gatepost.wire.operations import decode_failure

T = TypeVar("T")

# Each call over HTTP, and the handshake of the WebSocket, take no longer than this.
_TIMEOUT_SECS = 10.0
# A circuit to an onion service takes a while.
_ONION_TIMEOUT_SECS = 60.0
_MAX_ANSWER_BYTES = 64 * 1024
# Our own messages wait until the peer reads. Answers to its pings do not, so they are bounded here.
_MAX_UNREAD_BYTES = 16 << 20
_TRUST_ADVICE = (
    "give the certificate of its authority to `gatepost join --ca FILE`, which keeps it,"
    " or name the file in room.tls_ca"
)
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
    """Gets tickets and opens sockets. A refusal is raised with the error code the peer gave.

    `transport` stands in for the network in tests.
    """

    transport: httpx.AsyncBaseTransport | None = None

    def __init__(
        self,
        core: Core,
        known: RoomDirectory,
        may_dial_loopback: Callable[[], bool] = lambda: False,
        onion_proxy: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._node = core.node
        self._settings = core.settings
        self._members = known
        self._may_dial_loopback = may_dial_loopback
        self._onion_proxy = onion_proxy
        self._joiner = ExchangeRequester(core.node.id, core.node.key, core.clock)
        # Loading the machine's certificates takes a while, so contexts with them are kept.
        self._authority_contexts: dict[str, ssl.SSLContext] = {}

    async def exchange_invite(self, seed: Seed, token: str) -> ExchangeAnswer:
        """Get a ticket for an invite, or by proof if this node has used the invite before."""
        issuer = read_invite_issuer(token).fingerprint
        try:
            async with await self._open_http(seed) as http:
                host = await self._prove_host(http, issuer)
                request = self._joiner.with_invite(token, host_key=host.issuer_key)
                return await self._request_ticket(http, request, issuer)
        except TokenAlreadyUsed as used:
            try:
                return await self.exchange_proof(seed)
            except InvalidProof:
                raise used from None

    async def exchange_proof(self, seed: Seed) -> ExchangeAnswer:
        """Get a ticket for our signature."""
        async with await self._open_http(seed) as http:
            challenge = await self._prove_host(http, seed.fingerprint)
            issuer = fingerprint_key(challenge.issuer_key)
            request = self._joiner.with_challenge(challenge, issuer)
            return await self._request_ticket(http, request, issuer)

    async def visit(self, seed: Seed) -> None:
        """Connect and only let the gateway prove its key."""
        async with await self._open_http(seed) as http:
            await self._prove_host(http, seed.fingerprint)

    async def _prove_host(self, http: httpx.AsyncClient, fingerprint: str | None) -> Challenge:
        """Get a challenge of the gateway with this key; None accepts any member of our room.

        Nothing, not even our name, is sent before the gateway has proved its key.
        """
        nonce = self._joiner.new_nonce()
        challenge = await self._request_json(
            http, "GET", CHALLENGE_PATH, Challenge, params={"nonce": nonce}
        )
        if challenge.issuer_key == self._node.key.public:
            raise SelfDialError
        check_host_proof(challenge, nonce, fingerprint or self._expected_issuer(challenge))
        return challenge

    async def fetch_descriptor(self, url: str) -> bytes:
        """Get the descriptor of the mesh from an address whose certificate is not known yet.

        It is public, and its reader verifies its signature.
        """
        self._check_url(url)
        secs = _timeout_for(url)
        options: Any = {"verify": False, "trust_env": False, "timeout": secs}
        options["proxy"] = self._proxy_for(url)
        async with (
            asyncio.timeout(secs),
            httpx.AsyncClient(headers=UNCOMPRESSED, transport=self.transport, **options) as http,
            http.stream("GET", url + DESCRIPTOR_PATH) as got,
        ):
            body = await read_body(got, _MAX_ANSWER_BYTES)
        if got.status_code != 200:
            raise WrongHost(f"{url} has no descriptor of a mesh (HTTP {got.status_code})")
        return body

    async def request_invite(
        self, seed: Seed, secret: JoinSecret, request: BootstrapRequest
    ) -> BootstrapAnswer:
        """Ask a gateway for an invite with the join secret, once it has proved its key."""
        async with await self._open_http(seed) as http:
            await self._prove_host(http, seed.fingerprint)
            path, body = f"{BOOTSTRAP_PREFIX}/{secret.join_secret}", msgspec.json.encode(request)
            return await self._request_json(http, "POST", path, BootstrapAnswer, content=body)

    async def fetch_revocations(self, seed: Seed) -> list[RevocationRecordProof]:
        """Get the records that revoke this node, from a peer that says it is revoked."""
        path = f"{REVOCATION_PATH}/{fingerprint_key(self._node.key.public)}"
        async with await self._open_http(seed) as http:
            return await self._request_json(http, "GET", path, list[RevocationRecordProof])

    @asynccontextmanager
    async def open_socket(
        self, seed: Seed, answer: ExchangeAnswer
    ) -> AsyncIterator[tuple[ClientConnection, JoinedPeer]]:
        """Open the WebSocket; yield it with the peer's identity."""
        ticket = {"authorization": f"Bearer {answer.ws_ticket}"}
        url = f"{websocket_url(seed.url)}{ROOM_PATH}/{CONTROL_ROOM}"
        address = await self._find_address(seed)
        dialled: dict[str, Any] = {}
        if address is not None:
            dialled = {"host": address, "port": _port_of(seed.url)}
        try:
            socket = await DirectConnect(
                url,
                **dialled,
                additional_headers=ticket,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                max_size=MAX_MESSAGE_BYTES,
                create_connection=DialedConnection,
                open_timeout=_timeout_for(url),
                close_timeout=1,
                ping_interval=self._settings.delivery.link_silence_secs / 2,
                ping_timeout=self._settings.delivery.link_silence_secs / 2,
                compression="deflate" if self._settings.delivery.compress_links else None,
                proxy=self._proxy_for(seed.url),
                ssl=self._tls_context(seed) if url.startswith("wss:") else None,
            )
        except InvalidStatus as refusal:
            raise _refusal_error(refusal) from None
        async with socket:
            yield socket, _read_peer(socket, answer)

    async def _open_http(self, seed: Seed) -> httpx.AsyncClient:
        self._check_url(seed.url)
        verify = self._tls_context(seed) if seed.url.startswith("https:") else False
        address = await self._find_address(seed)
        pinned = None if address is None else PinnedTransport(address, verify=verify)
        return httpx.AsyncClient(
            base_url=seed.url,
            headers=UNCOMPRESSED,
            timeout=_timeout_for(seed.url),
            verify=verify,
            # A proxy must see neither tickets nor invites; Tor does not see them.
            trust_env=False,
            proxy=self._proxy_for(seed.url),
            transport=self.transport or pinned,
        )

    def _proxy_for(self, url: str) -> str | None:
        """Tor for onion services, which it authenticates and encrypts; otherwise no proxy."""
        if not is_onion_url(url):
            return None
        proxy = self._onion_proxy()
        if proxy is None:
            raise Unavailable(f"{url} is an onion service; it needs mesh.transport = tor")
        return proxy

    async def _find_address(self, seed: Seed) -> str | None:
        """The checked address of a seed that the room names; the operator's own are not checked."""
        if not seed.from_room or is_onion_url(seed.url):
            return None
        return await resolve_address(seed.url, allow_loopback=self._may_dial_loopback())

    def _tls_context(self, seed: Seed) -> ssl.SSLContext:
        if seed.tls_pins:
            return pinned_context(*seed.tls_pins)
        context = self._authority_contexts.get(seed.authorities)
        if context is None:
            file = self._settings.named_file(self._settings.room.tls_ca)
            configured = "" if file is None else read_authorities(file, "room.tls_ca")
            context = authority_context(configured, seed.authorities)
            self._authority_contexts[seed.authorities] = context
        return context

    async def _request_ticket(
        self, http: httpx.AsyncClient, request: ExchangeRequest, issuer: str
    ) -> ExchangeAnswer:
        body = msgspec.json.encode(request)
        answer = await self._request_json(http, "POST", EXCHANGE_PATH, ExchangeAnswer, content=body)
        check_exchange_answer(request, answer, issuer)
        return answer

    def _expected_issuer(self, challenge: Challenge) -> str:
        known = self._members.by_key(None, challenge.issuer_key)
        if known is None or known.revoked or known.node_id != challenge.issuer_id:
            raise Forbidden(f"{challenge.issuer_id} answered, but is not a member of our room")
        return fingerprint_key(known.public_key)

    async def _request_json(
        self, http: httpx.AsyncClient, method: str, path: str, answer: type[T], **request: Any
    ) -> T:
        try:
            secs = _timeout_for(str(http.base_url))
            async with asyncio.timeout(secs), http.stream(method, path, **request) as got:
                body = await read_body(got, _MAX_ANSWER_BYTES)
            return decode_answer(got.status_code, body, answer)
        except NotGatewayAnswer as other:
            raise WrongHost(
                f"{http.base_url} answered HTTP {other.status}, but is not a gateway"
            ) from None

    def _check_url(self, url: str) -> None:
        parts = urlsplit(url)
        if is_onion_url(url):
            return
        plain = parts.scheme != "https" and not self._settings.room.allow_plain
        if plain and not is_loopback(parts.hostname or ""):
            raise InvalidRequest(
                f"{parts.scheme}://{parts.netloc} is another machine without TLS: use https,"
                " or set room.allow_plain = true where the network itself is trusted"
            )


class DirectConnect(connect):
    """Follows no redirect, because the new address would not be checked."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class DialedConnection(ClientConnection):
    """A connection that ends if the peer sends pings without reading the answers."""

    def data_received(self, data: bytes) -> None:
        if self.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.transport.abort()
        else:
            super().data_received(data)


class DialedPeerSocket:
    """A WebSocket we opened, as the `PeerSocket` of a connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def receive(self) -> bytes | None:
        pieces: list[bytes] = []
        try:
            async for piece in self._socket.recv_streaming(decode=False):
                pieces.append(piece)
                if len(pieces) > MAX_PIECES:
                    raise RoomViolation("the message has too many pieces", rule="too_large")
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code >= 4000:
                raise Forbidden(f"the peer ended the connection: {closed.rcvd.reason}") from None
            return None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def send(self, message: bytes) -> None:
        await self._socket.send(message)


def _port_of(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _timeout_for(url: str) -> float:
    return _ONION_TIMEOUT_SECS if is_onion_url(url) else _TIMEOUT_SECS


def is_onion_url(url: str) -> bool:
    return (urlsplit(url).hostname or "").endswith(".onion")


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


def dial_error(url: str, error: Exception) -> GatepostError:
    """The error of a failed dial, as a sentence that says what to do."""
    if isinstance(error, GatepostError):
        return error
    explained = explain_connect_error(url, error, _TRUST_ADVICE)
    if explained is None and url.startswith("http:") and isinstance(error, httpx.TransportError):
        explained = f"{url} hung up without an answer: if it is a gateway with TLS, write https://"
    # Only the name of the error: its text may quote the request, including the ticket.
    return Unavailable(explained or f"{url} cannot be reached ({type(error).__name__})")
