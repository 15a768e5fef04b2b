"""Uploads: stream a request body to a blob on disk, never whole in memory."""

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator

from gatepost.errors import DeadlineExceeded, InvalidRequest, Unavailable
from gatepost.gateway.operations import Operations

_AHEAD = 8
# Fewer than the blob-writing threads, so that a large message finds one free.
_AT_ONCE = 12

Piece = bytes | None | Exception
Pieces = queue.Queue[Piece]


class Uploads:
    """Stores uploads. Each keeps a thread busy, so their number and their stalls are limited."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._patience = operations.core.settings.limits.request_timeout_secs
        self._open = 0

    async def store(self, body: AsyncIterator[bytes]) -> tuple[str, int]:
        """Store `body` as a blob; return (digest, size)."""
        if self._open >= _AT_ONCE:
            raise Unavailable("too many uploads at once; try again shortly", retry_after=1.0)
        self._open += 1
        try:
            return await self._store(body)
        finally:
            self._open -= 1

    async def _store(self, body: AsyncIterator[bytes]) -> tuple[str, int]:
        pieces: Pieces = queue.Queue(_AHEAD)
        storing = asyncio.create_task(self._operations.upload(_arriving(pieces)))
        size = 0
        try:
            while piece := await self._next(body):
                size += len(piece)
                if not await _put(pieces, piece, storing):
                    break
        except BaseException:
            # Half a payload must not become a blob.
            await _put(pieces, InvalidRequest("the upload was cut off"), storing)
            await asyncio.gather(storing, return_exceptions=True)
            raise
        await _put(pieces, None, storing)
        return await storing, size

    async def _next(self, body: AsyncIterator[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self._patience):
                return await anext(body, b"")
        except TimeoutError:
            raise DeadlineExceeded("the upload stalled; send it again") from None


def _arriving(pieces: Pieces) -> Iterator[bytes]:
    while (piece := pieces.get()) is not None:
        if isinstance(piece, Exception):
            raise piece
        yield piece


async def _put(pieces: Pieces, piece: Piece, storing: "asyncio.Task[str]") -> bool:
    """Pass a piece to the storing thread, waiting while it is behind; False if it has ended."""
    while not storing.done():
        try:
            pieces.put_nowait(piece)
            return True
        except queue.Full:
            await asyncio.sleep(0.001)
    return False
