"""A web server that takes push notifications, or does not."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct, field


class TakenPush(Struct):
    headers: dict[str, str]
    body: dict[str, Any]


class PushTarget(Struct):
    """Answers the first `failures` requests with 503."""

    port: int = 0
    failures: int = 0
    taken: list[TakenPush] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def states(self) -> list[str]:
        updates = [each.body["statusUpdate"] for each in self.taken if "statusUpdate" in each.body]
        return [update["status"]["state"] for update in updates]

    async def wait_for_state(self, state: str) -> None:
        async with asyncio.timeout(60):
            while state not in self.states:
                self.changed.clear()
                await self.changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            pairs = (line.split(": ", 1) for line in head[1:] if ": " in line)
            headers = {name.lower(): value for name, value in pairs}
            body = await reader.readexactly(int(headers["content-length"]))
            if self.failures:
                self.failures -= 1
                status = b"503 Away"
            else:
                self.taken.append(TakenPush(headers, json.loads(body)))
                status = b"204 Taken"
            writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            self.changed.set()
        writer.close()


@contextlib.asynccontextmanager
async def open_target(failures: int = 0) -> AsyncIterator[PushTarget]:
    target = PushTarget(failures=failures)
    server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
    target.port = server.sockets[0].getsockname()[1]
    async with server:
        yield target
