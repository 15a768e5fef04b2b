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

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect

from gatepost.gateway import bounded_http, serve
from gatepost.gateway_endpoint import GatewayEndpoint
from gatepost.testing import GatewayProcess
from tests.gateway.tools import memory, settings
from tests.waiting import async_wait_until


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


def test_large_bodies_and_many_requests_on_one_connection_are_not_heads(
    http: httpx.Client,
) -> None:
    for _ in range(30):
        assert http.get("/healthz", headers={"x": "a" * 30_000}).is_success
    assert http.post("/v1/blobs", content=b"x" * 3_000_000).is_success
    assert http.get("/healthz", headers={"x": "a" * 30_000}).is_success


@contextlib.asynccontextmanager
async def _served(state: Path) -> AsyncIterator[GatewayEndpoint]:
    """A gateway with all its doors in this process, where its patience can be changed."""
    serving = asyncio.create_task(serve.serve_until_stopped(settings(state, listen__port=0)))
    path = state / "endpoint.json"
    await async_wait_until(path.exists)
    try:
        yield msgspec.json.decode(path.read_bytes(), type=GatewayEndpoint)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
        gc.unfreeze()


@pytest.mark.anyio
async def test_a_connection_that_asks_nothing_is_closed_and_no_other(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "_HEAD_SECS", 0.2)
    async with _served(state) as endpoint:
        host, port = endpoint.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        headers = {"authorization": f"Bearer {(state / 'token').read_text()}"}
        url = endpoint.url.replace("http", "ws") + "/v1/ws"
        async with connect(url, additional_headers=headers) as connection:
            assert await asyncio.wait_for(reader.read(), 5) == b""
            # Longer than a connection may take to ask.
            await asyncio.sleep(0.2)
            await connection.send('{"op": "peek", "mailbox": "b"}')
            assert "summaries" in str(await connection.recv())
        writer.close()
