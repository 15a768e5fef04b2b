"""Requests of tasks that are too large to travel inline: each becomes a blob.

The blob belongs to its task: the transaction that creates the task notes it. A refused task leaves
nothing behind, so a flood of refused requests cannot fill the disk.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TypeVar
from weakref import WeakValueDictionary

from msgspec import UnsetType
from msgspec.structs import replace

from gatepost.core.gateway_core import Core
from gatepost.delivery.blob_records import find_blob, keep_uploaded_blob
from gatepost.errors import PayloadTooLarge
from gatepost.events import Blob
from gatepost.journal import Tx
from gatepost.tasks.service.json_contents import check_json
from gatepost.tasks.task_request import RequestContent
from gatepost.wire.tasks import NewTask

T = TypeVar("T")

# Each holds an open file, and perhaps a process that checks the input.
_AT_ONCE = 4
_AT_ONCE_PER_AGENT = 2


class LargeRequests:
    """Writes the blobs of requests, and forgets those that no task needs."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # Digest → a blob that no task refers to yet, and its key.
        self._fresh: dict[str, tuple[Blob, bytes]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def require_size(self, tx: Tx, wanted: Iterable[NewTask]) -> None:
        """PayloadTooLarge if the inputs of the tasks of one call are larger than a blob can be."""
        refs = [new.input_ref for new in wanted if not isinstance(new.input_ref, UnsetType)]
        size, most = sum(find_blob(tx, ref)[1] for ref in refs), self._max_bytes
        if size > most:
            raise PayloadTooLarge(
                f"the inputs of these tasks have {size} bytes; a call takes {most}: create the"
                " tasks in several calls"
            )

    @property
    def _max_bytes(self) -> int:
        return self._core.settings.limits.max_blob_bytes

    async def write_request(self, new: NewTask, draft: RequestContent) -> RequestContent:
        """Write a request as a blob. The draft lacks an `input_ref`, and has the request's mark."""
        turn = self._turns.setdefault(new.from_agent, asyncio.Semaphore(_AT_ONCE_PER_AGENT))
        async with turn, self._places:
            pieces = await self._find_pieces(new, draft.payload)
            storing = asyncio.ensure_future(self._core.store_blob(pieces))
            try:
                blob, key = await asyncio.shield(storing)
            except asyncio.CancelledError:
                storing.add_done_callback(self._delete_stored)
                raise
        self._fresh[blob.digest] = blob, key
        return RequestContent(draft.mark, digest=blob.digest)

    async def _find_pieces(self, new: NewTask, head: bytes) -> Iterable[bytes]:
        if isinstance(new.input_ref, UnsetType):
            return [head]
        digest = new.input_ref
        key, _ = await self._core.read(lambda tx: find_blob(tx, digest))
        read = partial(self._core.blobs.read_payload, digest, key)
        await check_json(await asyncio.to_thread(lambda: b"".join(read())))
        begin = head[:-1] + (b"," if len(head) > 2 else b"") + b'"input":'

        def pieces() -> Iterator[bytes]:
            return chain([begin], read(), [b"}"])

        return pieces()

    def keep(self, tx: Tx, content: RequestContent) -> None:
        """Note the blob of a request, in the transaction that creates its task."""
        fresh = self._fresh.get(content.digest or "")
        if fresh is not None:
            keep_uploaded_blob(tx, *fresh)

    def find_key(self, tx: Tx, digest: str) -> bytes:
        """The key of a request's blob, also before its task is created."""
        fresh = self._fresh.get(digest)
        return find_blob(tx, digest)[0] if fresh is None else fresh[1]

    async def commit(
        self,
        operation: Callable[[Tx], T],
        contents: Iterable[RequestContent],
        find_created: Callable[[T], list[bool]],
    ) -> T:
        """Commit the creation of tasks; then delete the requests of those that were refused.

        `find_created` returns, for each content in order, whether its task was created.
        """
        digests = [each.digest for each in contents]
        committed = self._core.begin_commit(operation)

        def settle(done: "asyncio.Future[T]") -> None:
            failed = done.cancelled() or done.exception() is not None
            created = [False] * len(digests) if failed else find_created(done.result())
            for digest, is_created in zip(digests, created, strict=True):
                if is_created:
                    self._fresh.pop(digest or "", None)
                else:
                    self.forget([digest])

        committed.add_done_callback(settle)
        # The tasks are created even if the caller is gone.
        return await asyncio.shield(committed)

    def forget(self, digests: Iterable[str | None]) -> None:
        """Delete requests without a task."""
        for digest in digests:
            if digest is not None and self._fresh.pop(digest, None) is not None:
                self._core.blobs.delete(digest)

    def _delete_stored(self, storing: "asyncio.Future[tuple[Blob, bytes]]") -> None:
        if not storing.cancelled() and storing.exception() is None:
            self._core.blobs.delete(storing.result()[0].digest)


def without_aliases(new: NewTask, resolve: Callable[[str], str]) -> NewTask:
    """The same task for the agents that aliases stand for."""
    if isinstance(new.to_agents, UnsetType):
        return new
    return replace(new, to_agents=[resolve(agent) for agent in new.to_agents])
