"""What a stranger without a token can make the gateway remember."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import msgspec
import psutil  # type: ignore[import-untyped]
import pytest
from uvicorn import Config
from uvicorn.server import ServerState
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gatepost.clock import SystemClock
from gatepost.config import LimitsSettings
from gatepost.connect.gateway_endpoint import GatewayEndpoint
from gatepost.gateway import app, serve
from gatepost.listening import bounded_http, listener
from gatepost.listening.connection_pool import ConnectionPool
from gatepost.testing import GatewayProcess
from gatepost.tls import create_certificate, create_key, local_context
from tests.gateway.tools import memory, settings
from tests.waiting import async_wait_until


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop of the gateway: its connections differ from those of asyncio's own."""
    return "asyncio", {"use_uvloop": True}


def _endless(start: bytes, more: bytes) -> Iterator[bytes]:
    yield start
    for _ in range(100_000_000 // len(more)):
        yield more


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: ", b"a" * 1_000_000),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b"x-y: zzzzzzzzzzzzzzzzzzzzzzzz\r\n" * 10_000),
        (b"GET /", b"a" * 1_000_000),
        (b"GET /v1/ws HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\nx: ", b"a" * 65_536),
    ],
    ids=["one header", "many headers", "path", "upgrade"],
)
def test_a_head_without_end_is_cut_off(gateway: GatewayProcess, start: bytes, more: bytes) -> None:
    before, sent, answer = memory(gateway), 0, b""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as connection:
        try:
            for piece in _endless(start, more):
                connection.sendall(piece)
                sent += len(piece)
            answer = connection.recv(65_536)
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert sent < 50_000_000, "it goes on taking"
    assert not answer or b" 431 " in answer
    assert memory(gateway) - before < 20_000_000


def test_a_head_slightly_too_large_has_a_coded_answer(gateway: GatewayProcess) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 66_000)
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "payload_too_large"


_HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: x3JJHMbDL1EzLkh9GBhXDw==\r\n"
    b"authorization: Bearer gps1.of.nobody\r\n\r\n"
)
_UPGRADE = b"connection: upgrade\r\nupgrade: websocket\r\n"


def _head_of(size: int, more: bytes = b"", path: bytes = b"/healthz") -> bytes:
    start, end = b"GET " + path + b" HTTP/1.1\r\nhost: x\r\n" + more + b"x: ", b"\r\n\r\n"
    return start + b"a" * (size - len(start + end)) + end


def _answer_statuses(gateway: GatewayProcess, data: bytes, wanted: int) -> list[int]:
    """The statuses of the answers to these bytes, until there are as many or the end comes."""
    answers = b""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as connection:
        connection.sendall(data)
        while answers.count(b"HTTP/1.1 ") < wanted and (said := connection.recv(65_536)):
            answers += said
    return [int(each[:3]) for each in answers.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("size", [65_536, 65_537, 70_000, 90_000])
@pytest.mark.parametrize("more", [b"", _UPGRADE], ids=["request", "handshake"])
def test_a_head_has_64_kib_exactly(gateway: GatewayProcess, size: int, more: bytes) -> None:
    path = b"/v1/ws" if more else b"/healthz"
    (status,) = _answer_statuses(gateway, _head_of(size, more, path), 1)
    assert (status != 431) == (size <= 65_536)


@pytest.mark.parametrize("size", [65_536, 65_537, 90_000])
def test_a_head_behind_another_request_has_64_kib_exactly(
    gateway: GatewayProcess, size: int
) -> None:
    first = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    statuses = _answer_statuses(gateway, first + _head_of(size), 2)
    assert (431 in statuses) == (size > 65_536)
    assert size > 65_536 or statuses == [200, 200]


def test_large_bodies_and_many_requests_on_one_connection_are_not_heads(
    http: httpx.Client,
) -> None:
    for _ in range(30):
        assert http.get("/healthz", headers={"x": "a" * 30_000}).is_success
    assert http.post("/v1/blobs", content=b"x" * 3_000_000).is_success
    assert http.get("/healthz", headers={"x": "a" * 30_000}).is_success


@contextlib.asynccontextmanager
async def _served(state: Path, **values: object) -> AsyncIterator[GatewayEndpoint]:
    """A gateway with all its doors in this process, where its patience can be changed."""
    serving = asyncio.create_task(
        serve.serve_until_stopped(
            # Past this time the whole process would end, and that is the tests.
            settings(state, listen__port=0, node__stop_secs=3600, **values)
        )
    )
    path = state / "endpoint.json"
    await async_wait_until(path.exists)
    try:
        yield msgspec.json.decode(path.read_bytes(), type=GatewayEndpoint)
    finally:
        while Stranger.all:
            Stranger.all.pop().writer.close()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        gc.unfreeze()


class Stranger:
    """One raw connection to a gateway."""

    all: ClassVar[list["Stranger"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, endpoint: GatewayEndpoint, **options: Any) -> "Stranger":
        host, port = endpoint.url.rpartition("//")[2].split(":")
        found = cls(*await asyncio.open_connection(host, int(port), **options))
        cls.all.append(found)
        return found

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def drip(self, piece: bytes, pause: float) -> bytes:
        """Send a piece now and then until the gateway ends this; return its last words."""
        reading = asyncio.ensure_future(self.reader.read(100_000))
        while not reading.done():
            with contextlib.suppress(OSError):
                await self.send(piece)
            await asyncio.wait([reading], timeout=pause)
        with contextlib.suppress(ConnectionError):
            return reading.result()
        return b""

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(self.reader.read(65_536), 10):
                pass
        return True


def _make_certificate(state: Path) -> dict[str, str]:
    """The settings for a certificate that is in the state directory from now on."""
    state.mkdir(mode=0o700)
    key = create_key()
    (state / "tls.key").write_bytes(key)
    (state / "tls.crt").write_bytes(create_certificate(key, "127.0.0.1", SystemClock().now()))
    return {"listen__tls_cert": "tls.crt", "listen__tls_key": "tls.key"}


def _operator(state: Path) -> dict[str, str]:
    return {"authorization": f"Bearer {(state / 'token').read_text()}"}


@pytest.mark.anyio
async def test_a_connection_that_asks_nothing_is_closed_and_no_other(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "_HEAD_SECS", 0.2)
    async with _served(state) as endpoint:
        idle = await Stranger.connect(endpoint)
        url = endpoint.url.replace("http", "ws") + "/v1/ws"
        async with connect(url, additional_headers=_operator(state)) as connection:
            assert await asyncio.wait_for(idle.reader.read(), 5) == b""
            # Longer than a connection may take to ask.
            await asyncio.sleep(0.2)
            await connection.send('{"op": "peek", "mailbox": "b"}')
            assert "summaries" in str(await connection.recv())


_GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
_POST = b"POST /ansible/agent/auth/refresh HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /healthz HTTP/1.1\r\n", b"a: b\r\n"),
        (_GET, b"\r\n"),
        (_GET + b"GET /", b"a"),
        (_POST, b" "),
        (_POST.replace(b"content-length: 9000", b"transfer-encoding: chunked"), b"1\r\n \r\n"),
    ],
    ids=["first head", "empty lines after a request", "second head", "body", "chunks"],
)
async def test_a_request_that_comes_slowly_is_ended(
    state: Path, monkeypatch: pytest.MonkeyPatch, start: bytes, piece: bytes
) -> None:
    monkeypatch.setattr(bounded_http, "_HEAD_SECS", 0.3)
    monkeypatch.setattr(bounded_http, "_BODY_SECS", 0.3)
    async with _served(state) as endpoint:
        slow = await Stranger.connect(endpoint)
        await slow.send(start)
        if start.startswith(_GET):
            assert b" 200 " in await slow.reader.read(200)
        answer = await asyncio.wait_for(slow.drip(piece, 0.05), 10)
        assert b" 408 " in answer or not answer
        assert await slow.is_closed()


@pytest.mark.anyio
async def test_a_body_of_a_known_client_may_take_as_long_as_it_keeps_coming(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "_BODY_SECS", 0.2)
    monkeypatch.setattr(bounded_http, "_MIN_BYTES_PER_SEC", 1000)

    async def arriving() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b"x" * 1000
            await asyncio.sleep(0.1)

    async with _served(state) as endpoint, httpx.AsyncClient(headers=_operator(state)) as http:
        stored = await http.post(f"{endpoint.url}/v1/blobs", content=arriving())
        assert stored.json()["size"] == 8000


@pytest.mark.anyio
async def test_an_answer_that_nobody_reads_is_given_up(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "_UNREAD_SECS", 0.2)
    monkeypatch.setattr(bounded_http, "_LINGER_SECS", 0.2)
    async with _served(state) as endpoint:
        host, port = endpoint.url.removeprefix("http://").split(":")
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, int(port)))
        token = _operator(state)["authorization"]
        ask = f"GET /openapi/openapi.json HTTP/1.1\r\nhost: x\r\nauthorization: {token}\r\n\r\n"
        # The answers are larger than the buffers between us.
        deaf.sendall(ask.encode() * 100)
        own = deaf.getsockname()[1]
        await async_wait_until(lambda: own in _remote_ports())
        await async_wait_until(lambda: own not in _remote_ports())
        deaf.close()


def _remote_ports() -> set[int]:
    """The ports of those with whom this process has an established connection it accepted."""
    found = psutil.Process().net_connections("tcp")
    local = {each.laddr.port for each in found if each.status == "LISTEN"}
    return {each.raddr.port for each in found if each.raddr and each.laddr.port in local}


@pytest.mark.anyio
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_idle_sockets_of_a_stranger_shut_nobody_out(
    state: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    limits = {"limits__max_connections": 16, "limits__max_unauthenticated": 16}
    secure = _make_certificate(state) if tls else {}
    async with _served(state, **limits, **secure) as endpoint:
        url = endpoint.url.replace("http", "ws") + "/v1/ws"
        context = local_context(str(state / "tls.crt")) if tls else None
        async with connect(url, additional_headers=_operator(state), ssl=context) as agent:
            idle = [await Stranger.connect(endpoint) for _ in range(40)]
            async with httpx.AsyncClient(headers=_operator(state), verify=context or True) as http:
                status = await http.get(f"{endpoint.url}/v1/status")
                assert status.json()["accepting"]
                assert await idle[0].is_closed(), "the oldest ones give way"
                incidents = await http.get(f"{endpoint.url}/v1/incidents")
            assert "address:127.0.0.1" in incidents.text
            assert "connection_flood" in incidents.text
            await agent.send('{"op": "peek", "mailbox": "b"}')
            assert "summaries" in str(await agent.recv())
            reader, writer = await asyncio.open_unix_connection(state / "gateway.sock")
            writer.write(b'{"op": "peek", "mailbox": "b"}\n')
            assert b"summaries" in await reader.readline()
            writer.close()


@pytest.mark.anyio
async def test_a_tls_handshake_has_a_deadline(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_HANDSHAKE_SECS", 0.2)
    async with _served(state, **_make_certificate(state)) as endpoint:
        idle = await Stranger.connect(endpoint)
        assert await idle.is_closed()
        garbage = await Stranger.connect(endpoint)
        await garbage.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await garbage.is_closed()


@pytest.mark.anyio
async def test_a_websocket_that_is_not_accepted_is_closed(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "_ACCEPT_SECS", 0.2)
    monkeypatch.setattr(app, "check_origin", lambda *_: None)

    done = asyncio.Event()

    async def wait(*_: object) -> None:
        await done.wait()

    monkeypatch.setattr(app, "refuse_websocket", wait)
    async with _served(state) as endpoint:
        stranger = await Stranger.connect(endpoint)
        await stranger.send(_HANDSHAKE)
        assert await stranger.is_closed()
        done.set()


@pytest.mark.anyio
async def test_a_websocket_without_a_valid_token_is_refused_before_there_is_one(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "BoundedWebSocketProtocol", lambda **_: 1 / 0)
    async with _served(state, limits__wrong_tokens_per_min=1) as endpoint:
        url = endpoint.url.replace("http", "ws") + "/v1/ws"
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": "Bearer wrong"}, 429),
            ({}, 401),
        ):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, additional_headers=headers)
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body or b"")["code"]


class _UnreadSocket(bounded_http.BoundedWebSocketProtocol):
    """A WebSocket whose other side sends pings and has stopped reading."""

    def __init__(self) -> None:
        self.conn: Any = self
        self.transport: Any = self
        self.writable = asyncio.Event()
        self.written: list[bytes] = []
        self._writing: Any = self
        self._held_pong = b""
        self._pings = 0

    def data_to_send(self) -> list[bytes]:
        self._pings += 1
        return [b"pong %d" % self._pings]

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def cancel(self) -> None: ...


def test_pings_of_a_side_that_does_not_read_cost_one_answer() -> None:
    unread = _UnreadSocket()
    for _ in range(1000):
        unread.handle_ping()
    assert unread.written == []
    unread.resume_writing()
    unread.handle_ping()
    assert unread.written == [b"pong 1000", b"pong 1001"]


class _StuckTransport(asyncio.Transport):
    """The connection of a machine that sleeps: what is written stays, and so it never closes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["keepalive", "garbage"])
async def test_what_is_sent_after_the_listener_broke_off_is_no_error(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken_off, done = asyncio.Event(), asyncio.Event()
    hung_up: list[OSError] = []

    async def send_late(_: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await broken_off.wait()
        try:
            await send({"type": "websocket.send", "bytes": b"queued before"})
        except OSError as error:
            hung_up.append(error)
            raise
        finally:
            done.set()

    config = Config(send_late, ws="websockets-sansio", log_config=None, lifespan="off")
    config.load()
    slot = ConnectionPool(LimitsSettings(), lambda _: None).admit("here", lambda: None)
    socket = bounded_http.BoundedWebSocketProtocol(
        config=config, server_state=ServerState(), app_state={}, slot=slot
    )
    transport = _StuckTransport()
    socket.connection_made(transport)
    socket.data_received(_HANDSHAKE)
    await async_wait_until(lambda: b" 101 " in transport.written)
    if end == "keepalive":
        socket.keepalive_timeout()
    else:
        socket.data_received(b"\xff" * 20)
    broken_off.set()
    await asyncio.wait_for(done.wait(), 10)
    await asyncio.gather(*socket.tasks)
    socket.connection_lost(None)
    assert len(hung_up) == 1
    assert "ASGI" not in caplog.text and "Traceback" not in caplog.text
