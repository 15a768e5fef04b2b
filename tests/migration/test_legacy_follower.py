"""The legacy document is followed live and only read: new items are imported once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pycrdt
import pytest
from websockets.asyncio.server import ServerConnection, serve

from gatepost.clock import SystemClock
from gatepost.errors import Unavailable
from gatepost.migration import ImportPlan, MigrationFolder, follow_document, import_dump
from gatepost.migration.legacy_follower import follow_file
from gatepost.room import lib0
from gatepost.testing import GatewayProcess
from tests.migration.tools import client_of, drain, message, payloads, register
from tests.waiting import async_wait_until

CLOCK = SystemClock()


class LegacyRoom:
    """A y-websocket server with one document."""

    def __init__(self) -> None:
        self.doc: pycrdt.Doc[Any] = pycrdt.Doc()
        self.messages = self.doc.get("messages", type=pycrdt.Map)
        self.sockets: list[ServerConnection] = []
        self.answers: list[bytes] = []

    async def handle(self, socket: ServerConnection) -> None:
        self.sockets.append(socket)
        await socket.send(b"\x00\x00" + lib0.encode_bytes(self.doc.get_state()))
        await socket.send(b"\x01\x01\x00")
        async for data in socket:
            assert isinstance(data, bytes)
            if data[:2] == b"\x00\x00":
                await socket.send(b"\x00\x01" + lib0.encode_bytes(self.doc.get_update()))
            else:
                self.answers.append(data)

    async def write(self, id: str, record: dict[str, Any]) -> None:
        before = self.doc.get_state()
        self.messages[id] = pycrdt.Map(record)
        update = b"\x00\x02" + lib0.encode_bytes(self.doc.get_update(before))
        for socket in self.sockets:
            await socket.send(update)


@asynccontextmanager
async def room_at() -> AsyncIterator[tuple[LegacyRoom, str]]:
    room = LegacyRoom()
    async with serve(room.handle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield room, f"ws://127.0.0.1:{port}/ansible"


def test_a_room_of_old_writers_is_followed_and_never_written(
    gateway: GatewayProcess, folder: MigrationFolder
) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        async with room_at() as (room, url), client_of(gateway) as client:
            await room.write("1", message(1))
            followed = follow_document(url)
            counts = []
            for id in ("2", "3"):
                dump = await anext(followed)
                report = await import_dump(client, folder, dump, ImportPlan(), CLOCK)
                counts.append(report.total.imported)
                await room.write(id, message(int(id)))
            dump = await anext(followed)
            await import_dump(client, folder, dump, ImportPlan(), CLOCK)
            await followed.aclose()  # type: ignore[attr-defined]
        assert counts == [1, 1]
        assert payloads(await drain(gateway, "bob")) == [{"n": 1}, {"n": 2}, {"n": 3}]
        assert set(room.answers) <= {b"\x00\x01\x02\x00\x00"}, "it only ever says: I have nothing"

    asyncio.run(test())


def test_a_room_that_comes_back_is_dialled_again() -> None:
    async def test() -> None:
        async with room_at() as (room, url):
            await room.write("1", message(1))
            followed = follow_document(url)
            assert set((await anext(followed)).records["messages"]) == {"1"}
            await room.sockets[0].close()
            room.sockets.clear()
            await room.write("2", message(2))
            assert set((await anext(followed)).records["messages"]) == {"1", "2"}
            await followed.aclose()  # type: ignore[attr-defined]

    asyncio.run(test())


def test_an_address_that_speaks_something_else_is_refused() -> None:
    async def babble(socket: ServerConnection) -> None:
        await socket.send(b"\x00\x02\x03abc")
        await socket.wait_closed()

    async def test() -> None:
        async with serve(babble, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            with pytest.raises(Unavailable, match="does not speak the Yjs protocol"):
                await anext(follow_document(f"ws://127.0.0.1:{port}/"))

    asyncio.run(test())


def test_a_file_is_read_whenever_it_was_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        path = tmp_path / "export.json"
        followed = follow_file(path, 0.01)
        first = asyncio.ensure_future(anext(followed))
        path.write_text('{"messages": {"1"')
        await async_wait_until(lambda: "is read again when it changes" in caplog.text)
        assert not first.done()
        path.write_text(json.dumps({"messages": {"1": message(1)}}))
        assert set((await first).records["messages"]) == {"1"}
        path.write_text(json.dumps({"messages": {"1": message(1), "2": message(2)}}))
        assert set((await anext(followed)).records["messages"]) == {"1", "2"}
        await followed.aclose()  # type: ignore[attr-defined]

    asyncio.run(test())
