"""Server-sent events: a stream that says now and then that it is still there."""

import asyncio
from collections.abc import AsyncGenerator

from litestar.response import ServerSentEventMessage

_KEEP_ALIVE_SECS = 15.0


async def keep_alive(
    messages: AsyncGenerator[ServerSentEventMessage, None], secs: float = _KEEP_ALIVE_SECS
) -> AsyncGenerator[ServerSentEventMessage, None]:
    """The messages, and a comment whenever there was none for so long."""
    pending = asyncio.ensure_future(anext(messages))
    try:
        while True:
            done, _ = await asyncio.wait((pending,), timeout=secs)
            if not done:
                yield ServerSentEventMessage(comment="still here")
                continue
            try:
                message = pending.result()
            except StopAsyncIteration:
                return
            yield message
            pending = asyncio.ensure_future(anext(messages))
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await messages.aclose()
