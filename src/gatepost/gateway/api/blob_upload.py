"""Uploads: stream a request body to a blob on disk, never whole in memory."""

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator

from gatepost.errors import DeadlineExceeded, InvalidRequest, Unavailable
from gatepost.events import Blob
from gatepost.gateway.api.operations import Operations

_MAX_QUEUED_PIECES = 8
# Fewer than the blob-writing threads, so that large messages always find a free one.
_AT_ONCE = 10

UploadPiece = bytes | None | Exception
PieceQueue = queue.Queue[UploadPiece]


class BlobUploads:
    """Stores uploads. Each occupies a thread, so their number and idle time are limited."""

    def __init__(self, operations: Operations, at_once: int | None = None) -> None:
        self._core = operations.core
        self._at_once = at_once
        self._stall_secs = operations.core.settings.limits.request_timeout_secs
        self._open_count = 0

    async def store_body(
        self, body: AsyncIterator[bytes], uploader: str | None = None
    ) -> tuple[str, int]:
        """Store `body` as a blob; return (digest, size)."""
        if self._open_count >= (self._at_once or _AT_ONCE):
            raise Unavailable("too many uploads at once; try again shortly", retry_after=1.0)
        self._open_count += 1
        try:
            return await self._store_pieces(body, uploader)
        finally:
            self._open_count -= 1

    async def _store_pieces(
        self, body: AsyncIterator[bytes], uploader: str | None
    ) -> tuple[str, int]:
        pieces: PieceQueue = queue.Queue(_MAX_QUEUED_PIECES)
        work = self._core.keep_payload(_arriving_pieces(pieces), uploader)
        storing = asyncio.create_task(work)
        size = 0
        try:
            while piece := await self._next_piece(body):
                size += len(piece)
                if not await _queue_piece(pieces, piece, storing):
                    break
        except BaseException:
            # A partial payload must not become a blob.
            await _queue_piece(pieces, InvalidRequest("the upload was cut off"), storing)
            await asyncio.gather(storing, return_exceptions=True)
            raise
        await _queue_piece(pieces, None, storing)
        return (await storing).digest, size

    async def _next_piece(self, body: AsyncIterator[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self._stall_secs):
                return await anext(body, b"")
        except TimeoutError:
            raise DeadlineExceeded("the upload stalled; send it again") from None


def _arriving_pieces(pieces: PieceQueue) -> Iterator[bytes]:
    while (piece := pieces.get()) is not None:
        if isinstance(piece, Exception):
            raise piece
        yield piece


async def _queue_piece(
    pieces: PieceQueue, piece: UploadPiece, storing: "asyncio.Task[Blob]"
) -> bool:
    """Pass a piece to the storing thread, waiting while it is behind; False if it has ended."""
    while not storing.done():
        try:
            pieces.put_nowait(piece)
            return True
        except queue.Full:
            await asyncio.sleep(0.001)
    return False
