"""The surroundings of a blob exchange: its files, its peers and its limits."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from gatepost.delivery.frames import PIECE_BYTES, BlobPiece, BlobRequest
from gatepost.errors import GatepostError

FileDone = Callable[[GatepostError | None], None]


class BlobFileAccess(Protocol):
    """The blob store, in other threads. Each `done` is called in the thread of the links."""

    def read_range(
        self, digest: str, offset: int, length: int, done: Callable[[int, bytes], None]
    ) -> None:
        """Read the size of a blob and a range of it; 0 and no data if it is not here."""

    def put_piece(self, digest: str, offset: int, piece: bytes, done: FileDone) -> None: ...

    def complete_blob(self, digest: str, done: FileDone) -> None: ...

    def abandon_pieces(self, digest: str) -> None: ...


class BlobPeer(Protocol):
    """A peer at the other end of an open link: it takes requests for blobs, and pieces of them."""

    @property
    def peer(self) -> str: ...

    @property
    def relays(self) -> bool:
        """Whether the peer forwards our requests to gateways without a link to us."""

    def send_request(self, ask: BlobRequest) -> None: ...

    def answer_request(self, piece: BlobPiece) -> None:
        """Answer a request of this peer, after we forwarded it to the gateway with the blob."""


class FetchLimits(Struct, frozen=True):
    """Times in milliseconds.

    `fetches` and `pieces` are how many blobs of one source, and pieces of one blob, are under way
    at once; `all_fetches` is the limit for all sources together. `wanted` is how many blobs of one
    source are kept in memory; the others are in the journal. `forwards` is how many requests of
    others a relay forwards at once. Of one peer, `served` requests are answered at a time and
    `reads` may wait; `all_reads` ranges are read from disk at a time for all peers.
    """

    max_bytes: int
    fetches: int = 4
    all_fetches: int = 32
    wanted: int = 256
    pieces: int = 4
    piece_bytes: int = PIECE_BYTES
    answer_ms: int = 30_000
    attempts: int = 8
    first_backoff_ms: int = 1_000
    max_backoff_ms: int = 300_000
    forwards: int = 256
    reads: int = 64
    served: int = 4
    all_reads: int = 32
