"""Connections of strangers that only take up places, in a separate process.

    python -m gatepost.bench.hostile_connections URL COUNT SECONDS

Each connection does something about once a second, and is opened again when the gateway closes it.
The process prints a line when all have been opened, and at its end one with the number of
connections of each sort.
"""

import asyncio
import contextlib
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec
import uvloop

READY = "ready"
_PACE_SECS = 1.0
_POST = b"POST /ansible/agent/auth/refresh HTTP/1.1\r\nhost: x\r\ncontent-length: 15000\r\n\r\n"
_WRONG_TOKEN = b"GET /v1/status HTTP/1.1\r\nhost: x\r\nauthorization: Bearer guess\r\n\r\n"
_HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n"
)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Behaviour = Callable[[Streams], Awaitable[None]]


def _next_pause() -> float:
    return _PACE_SECS * random.uniform(0.5, 1.5)


async def wait_for_end(streams: Streams) -> None:
    while await streams[0].read(65_536):
        pass


async def drip_pieces(streams: Streams, start: bytes, piece: bytes) -> None:
    """Send a little every second until the gateway ends it."""
    streams[1].write(start)
    ended = asyncio.ensure_future(wait_for_end(streams))
    try:
        while not ended.done():
            streams[1].write(piece)
            await streams[1].drain()
            await asyncio.wait([ended], timeout=_next_pause())
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)


async def say_once(streams: Streams, data: bytes) -> None:
    streams[1].write(data)
    await streams[1].drain()
    await wait_for_end(streams)


BEHAVIOURS: dict[str, Behaviour] = {
    "idle": wait_for_end,
    "slow head": lambda streams: drip_pieces(streams, b"GET / HTTP/1.1\r\n", b"a: b\r\n"),
    "slow body": lambda streams: drip_pieces(streams, _POST, b" "),
    "garbage": lambda streams: say_once(streams, b"\x16\x03\x01garbage\r\n\r\n" * 20),
    "wrong token": lambda streams: drip_pieces(streams, b"", _WRONG_TOKEN),
    "handshake": lambda streams: say_once(streams, _HANDSHAKE),
}


class HostileCrowd:
    """Keeps `count` connections busy, an equal share of each sort."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Streams]],
        count: int,
        behaviours: dict[str, Behaviour],
    ) -> None:
        self._connect = connect
        self._behaviours = behaviours
        self._count = count
        self._places_opened = 0
        self.opened: Counter[str] = Counter()
        self.is_complete = asyncio.Event()

    async def run(self) -> None:
        names = list(self._behaviours)
        each = (self._occupy(names[n % len(names)]) for n in range(self._count))
        await asyncio.gather(*each)

    async def _occupy(self, name: str) -> None:
        is_first = True
        while True:
            with contextlib.suppress(OSError):
                streams = await self._connect()
                self.opened[name] += 1
                if is_first:
                    self._note_place()
                    is_first = False
                try:
                    await self._behaviours[name](streams)
                finally:
                    streams[1].transport.abort()
            await asyncio.sleep(_next_pause())

    def _note_place(self) -> None:
        self._places_opened += 1
        if self._places_opened == self._count:
            self.is_complete.set()


async def crowd_gateway(url: str, count: int, secs: float) -> None:
    """Crowd the gateway for `secs` seconds, or until SIGTERM."""
    parts = urlsplit(url)
    host, port = str(parts.hostname), int(parts.port or 80)
    crowd = HostileCrowd(lambda: asyncio.open_connection(host, port), count, BEHAVIOURS)
    work = asyncio.ensure_future(crowd.run())
    announcing = asyncio.ensure_future(_announce(crowd))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    await asyncio.wait([work], timeout=secs)
    for task in (work, announcing):
        task.cancel()
    await asyncio.gather(work, announcing, return_exceptions=True)
    print(msgspec.json.encode(crowd.opened).decode(), flush=True)


async def _announce(crowd: HostileCrowd) -> None:
    await crowd.is_complete.wait()
    print(READY, flush=True)


def main() -> None:
    url, count, secs = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(crowd_gateway(url, count, secs))


if __name__ == "__main__":
    main()
