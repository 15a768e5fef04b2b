"""Frames over the Unix socket: who may open it, and lines of every kind."""

import asyncio
import contextlib
import json
import os
import socket
import stat
from pathlib import Path

import pytest

from gatepost.config import LimitsSettings
from gatepost.errors import ConfigError
from gatepost.gateway.api import unix_socket as unix_socket_module
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.api.unix_socket import UnixSocketServer
from gatepost.listening.connection_pool import ConnectionPool
from gatepost.testing import GatewayProcess
from tests.gateway.tools import mail, opened, unix_socket
from tests.waiting import async_wait_until


def _create_server(operations: Operations, **limits: int) -> UnixSocketServer:
    pool = ConnectionPool(LimitsSettings(**limits), lambda source: None)
    return UnixSocketServer(operations, operations.core.state.socket, pool)


def test_only_its_user_can_open_the_socket(gateway: GatewayProcess) -> None:
    status = (gateway.state_dir / "gateway.sock").stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600


@pytest.mark.anyio
async def test_another_users_connection_is_closed_unanswered(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state) as operations:
        door = _create_server(operations)
        await door.start()
        monkeypatch.setattr(os, "getuid", lambda: 4711)
        monkeypatch.setattr(unix_socket_module, "_ROOT", 4712)
        reader, writer = await asyncio.open_unix_connection(operations.core.state.socket)
        writer.write(b'{"op":"register","agent":"spy"}\n')
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        monkeypatch.undo()
        assert await operations.core.read(operations.core.agents.list) == []
        await door.stop()
        assert not operations.core.state.socket.exists()


def test_lines_are_answered_in_lines(gateway: GatewayProcess, box: str) -> None:
    with unix_socket(gateway) as frames:
        assert frames.ask("enqueue", id=1, messages=[mail("m:1", box)])["results"][0]["queued"]
        (message,) = frames.ask("dequeue", mailbox=box)["messages"]
        assert message["msg_id"] == "m:1"


def test_mail_is_pushed_over_the_socket_too(gateway: GatewayProcess, box: str) -> None:
    with unix_socket(gateway) as frames:
        frames.ask("subscribe", mailbox=box)
        frames.send({"op": "enqueue", "messages": [mail("m:1", box)]})
        assert {frames.next()["op"], frames.next()["op"]} == {"enqueued", "deliver"}


def test_a_bad_line_is_answered_and_the_connection_lives(gateway: GatewayProcess, box: str) -> None:
    with unix_socket(gateway) as frames:
        for line in (b"nonsense", b"", b"\xff", b"[" * 100_000):
            frames.send(line)
            assert frames.next()["error"]["code"] == "invalid_request"
        assert frames.ask("peek", mailbox=box)["messages"] == []


def test_a_line_of_nearly_the_limit_is_taken(gateway: GatewayProcess, box: str) -> None:
    with unix_socket(gateway) as frames:
        padding = " " * (1024 * 1024 - 200)
        frames.send(json.dumps({"op": "peek", "mailbox": box}).encode() + padding.encode())
        assert frames.next()["messages"] == []


def test_a_line_without_end_is_refused_and_the_connection_closed(
    gateway: GatewayProcess,
) -> None:
    with unix_socket(gateway) as frames:
        # The rest of it fits into the socket's buffer, wherever the gateway stops to read.
        frames.send(b"x" * (1024 * 1024 + 100_000))
        assert "max_body_bytes" in frames.next()["error"]["message"]
        with pytest.raises((EOFError, ConnectionResetError)):
            frames.next()


def test_a_client_may_close_its_side_before_it_reads(gateway: GatewayProcess, box: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(gateway.state_dir / "gateway.sock"))
        ops = [{"op": "enqueue", "messages": [mail("m:1", box)]}, {"op": "peek", "mailbox": box}]
        connection.sendall("".join(json.dumps(op) + "\n" for op in ops).encode())
        connection.shutdown(socket.SHUT_WR)
        answers = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert b'"enqueued"' in answers
    assert b'"summaries"' in answers


@pytest.mark.anyio
async def test_a_path_too_long_for_a_socket_is_explained(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    async with opened(deep) as operations:
        door = _create_server(operations)
        with pytest.raises(ConfigError, match="shorter"):
            await door.start()
        await door.stop()
    assert os.umask(mask) == 0o022, "the mask is what it was"


@pytest.mark.anyio
async def test_a_line_that_does_not_end_in_time_is_refused(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_socket_module, "_LINE_SECS", 0.1)
    async with opened(state) as operations:
        door = _create_server(operations)
        await door.start()
        reader, writer = await asyncio.open_unix_connection(operations.core.state.socket)
        writer.write(b'{"op":"register",')
        assert b"deadline_exceeded" in await asyncio.wait_for(reader.readline(), 30)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        await door.stop()


@pytest.mark.anyio
async def test_a_client_that_does_not_read_is_left(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_socket_module, "_UNREAD_SECS", 0.1)
    async with opened(state) as operations:
        door = _create_server(operations)
        await door.start()
        _, writer = await asyncio.open_unix_connection(operations.core.state.socket, limit=1)
        with contextlib.suppress(ConnectionError):
            while door._client_tasks or not writer.is_closing():
                writer.write(b'{"op":"nonsense"}\n' * 1000)
                await asyncio.wait_for(writer.drain(), 30)
        writer.close()
        await async_wait_until(lambda: not door._client_tasks)
        await door.stop()


@pytest.mark.anyio
async def test_silent_connections_give_way_to_new_ones(state: Path) -> None:
    async with opened(state) as operations:
        door = _create_server(operations, max_unauthenticated=16)
        await door.start()
        path = operations.core.state.socket
        silent = [await asyncio.open_unix_connection(path) for _ in range(40)]
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b'{"op":"register","agent":"al","id":1}\n')
        assert b'"re":1' in await asyncio.wait_for(reader.readline(), 30)
        assert await asyncio.wait_for(silent[0][0].read(), 30) == b""
        for _, each in [*silent, (reader, writer)]:
            each.close()
        await door.stop()
