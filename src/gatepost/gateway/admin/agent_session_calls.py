"""The running calls of external agents, which end with the session that began them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from typing import TypeVar

from gatepost.errors import Revoked, Unavailable

T = TypeVar("T")

_MAX_CALLS = 64
# A request may have been authenticated before its session ended; none lasts while so many end.
_MAX_ENDED = 10_000
_ENDED = "this session was ended; ask for a new invite"


class AgentSessionCalls:
    def __init__(self) -> None:
        self._calls: dict[str, set[asyncio.Future[None]]] = {}
        # Sessions that have ended, the latest last.
        self._ended: dict[str, None] = {}

    async def run_call(self, session: str, work: Awaitable[T]) -> T:
        """Await `work`, but cancel it and raise Revoked if the session has ended or ends first."""
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        try:
            with self._register_call(session) as ended:
                if not ended.done():
                    await asyncio.wait((task, ended), return_when="FIRST_COMPLETED")
            if not task.done():
                raise Revoked(_ENDED)
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stream_pieces(self, session: str, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces as long as the session lasts."""
        with self._register_call(session) as ended:
            while piece := await asyncio.to_thread(next, pieces, b""):
                if ended.done():
                    raise Revoked(_ENDED)
                yield piece

    def end_calls(self, sessions: Iterable[str]) -> None:
        for session in sessions:
            self._ended[session] = None
            for ended in self._calls.get(session, ()):
                if not ended.done():
                    ended.set_result(None)
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    @contextlib.contextmanager
    def _register_call(self, session: str) -> "Iterator[asyncio.Future[None]]":
        """Yield a future that is resolved when the session ends."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if session in self._ended:
            ended.set_result(None)
        calls = self._calls.setdefault(session, set())
        if len(calls) >= _MAX_CALLS:
            raise Unavailable("too many calls of this session at once", retry_after=1.0)
        calls.add(ended)
        try:
            yield ended
        finally:
            calls.discard(ended)
            if not calls:
                del self._calls[session]
