"""From a request that streams in to a blob on disk, never whole in memory."""

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator

from gatepost.gateway.operations import Operations

_AHEAD = 8


async def store_stream(body: AsyncIterator[bytes], operations: Operations) -> tuple[str, int]:
    """(digest, size) of the blob that holds `body`."""
    pieces: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
    size = 0
    storing = asyncio.create_task(operations.upload(_until_none(pieces)))
    try:
        async for piece in body:
            size += len(piece)
            await _put(pieces, piece, storing)
    finally:
        await _put(pieces, None, storing)
    return await storing, size


def _until_none(pieces: "queue.Queue[bytes | None]") -> Iterator[bytes]:
    while (piece := pieces.get()) is not None:
        yield piece


async def _put(
    pieces: "queue.Queue[bytes | None]", piece: bytes | None, storing: "asyncio.Task[str]"
) -> None:
    """Hand a piece to the storing thread, waiting while it is behind."""
    while not storing.done():
        try:
            pieces.put_nowait(piece)
            return
        except queue.Full:
            await asyncio.sleep(0.001)
