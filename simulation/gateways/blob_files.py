"""The blob files of a simulated gateway: a real blob store, read and written on virtual time.

Each operation takes a few milliseconds and is lost if the gateway crashes before. Files may fail
for a while, and the power may go between the write of a blob and the commit that uses it.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from gatepost.errors import GatepostError, StorageFailed
from gatepost.events import Blob, BlobStore
from gatepost.links.blob_ports import FileDone
from simulation.gateways.gateway import SimulatedGateway

_TAKES_MS = (1, 6)


class SimulatedBlobFiles:
    """`on_stored` is called with the digest of every blob that is complete on disk."""

    def __init__(self, gateway: SimulatedGateway, seed: int) -> None:
        self._gateway = gateway
        self._random = Random(f"{seed}/{gateway.id}/blobs")
        self._starts = 0
        self.store: BlobStore
        self.fails_until = 0
        self.crashes_at_next = False
        self.on_stored: Callable[[str], None] = lambda digest: None
        gateway.on_up.append(self._open_store)
        gateway.on_down.append(self._drop_work)

    def _open_store(self) -> None:
        self.store = BlobStore(self._gateway.blob_folder, self._gateway.clock)

    def _drop_work(self) -> None:
        self._starts += 1

    def write_blob(self, payload: bytes) -> tuple[Blob, bytes]:
        """Store an uploaded payload at once; returns the blob and its content key."""
        self._check_disk()
        blob, key = self.store.store_payload([payload])
        self.on_stored(blob.digest)
        return blob, key

    # -- the files of links

    def read_range(
        self, digest: str, offset: int, length: int, done: Callable[[int, bytes], None]
    ) -> None:
        def read() -> tuple[int, bytes]:
            self._check_disk()
            data = b"".join(self.store.read_ciphertext(digest, offset, length))
            return self.store.ciphertext_size(digest), data

        self._run_later(read, lambda found, error: done(*(found or (0, b""))))

    def put_piece(self, digest: str, offset: int, piece: bytes, done: FileDone) -> None:
        def put() -> None:
            self._check_disk()
            self.store.write_piece(digest, offset, piece)

        self._run_later(put, lambda _, error: done(error))

    def complete_blob(self, digest: str, done: FileDone) -> None:
        def complete() -> None:
            self._check_disk()
            self.store.complete_fetch(digest)
            self.on_stored(digest)
            if self.crashes_at_next:
                self.crashes_at_next = False
                self._gateway.crash()

        self._run_later(complete, lambda _, error: done(error))

    def abandon_pieces(self, digest: str) -> None:
        self._run_later(lambda: self.store.abandon_fetch(digest), lambda _, error: None)

    def _run_later(
        self, work: Callable[[], Any], done: Callable[[Any, GatepostError | None], None]
    ) -> None:
        starts = self._starts

        def run() -> None:
            if starts != self._starts:
                return
            value, problem = None, None
            try:
                value = work()
            except GatepostError as error:
                problem = error
            if starts == self._starts:
                done(value, problem)

        self._gateway.loop.call_after(self._random.randint(*_TAKES_MS), run)

    def _check_disk(self) -> None:
        if self._gateway.disk_is_full or self._gateway.loop.now < self.fails_until:
            raise StorageFailed("the simulated disk refuses this blob")
