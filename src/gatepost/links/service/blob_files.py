"""The blob store as links use it: in threads, with the outcome back on the event loop."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from gatepost.errors import GatepostError, InternalError, NotFound
from gatepost.events import BlobStore
from gatepost.links.blob_ports import FileDone

log = logging.getLogger(__name__)

T = TypeVar("T")


class BlobFiles:
    """Runs each operation in one of `threads` and calls back on the event loop."""

    def __init__(self, blobs: BlobStore, threads: Executor) -> None:
        self._blobs = blobs
        self._threads = threads
        self._running: set[asyncio.Task[None]] = set()

    def read_range(
        self, digest: str, offset: int, length: int, done: Callable[[int, bytes], None]
    ) -> None:
        def work() -> tuple[int, bytes]:
            piece = b"".join(self._blobs.read_ciphertext(digest, offset, length))
            return self._blobs.ciphertext_size(digest), piece

        def finished(found: tuple[int, bytes] | None, error: GatepostError | None) -> None:
            if error is not None and not isinstance(error, NotFound):
                log.warning("a blob cannot be read: %s", error.message)
            done(*(found or (0, b"")))

        self._run_in_thread(work, finished)

    def put_piece(self, digest: str, offset: int, piece: bytes, done: FileDone) -> None:
        self._run_in_thread(
            lambda: self._blobs.write_piece(digest, offset, piece), lambda _, error: done(error)
        )

    def complete_blob(self, digest: str, done: FileDone) -> None:
        self._run_in_thread(
            lambda: self._blobs.complete_fetch(digest), lambda _, error: done(error)
        )

    def abandon_pieces(self, digest: str) -> None:
        self._run_in_thread(lambda: self._blobs.abandon_fetch(digest), lambda _, error: None)

    def _run_in_thread(
        self, work: Callable[[], T], finished: Callable[[T | None, GatepostError | None], None]
    ) -> None:
        task = asyncio.create_task(self._await_work(work, finished))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _await_work(
        self, work: Callable[[], T], finished: Callable[[T | None, GatepostError | None], None]
    ) -> None:
        found, failure = None, None
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except GatepostError as error:
            failure = error
        except Exception:
            log.exception("a blob file failed unexpectedly")
            failure = InternalError("an internal error; see the log")
        finished(found, failure)
