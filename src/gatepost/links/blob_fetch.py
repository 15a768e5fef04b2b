"""Fetching blobs over links: the receiver of an event gets its blob from the event's source.

A blob comes in pieces, a few at a time, over a link with its source or through a relay that has
such a link. When a link breaks, the next one continues where it ended. A blob is kept only if it
has the digest that its event names. Every request has a deadline and every fetch a last attempt;
after that the event stays held until its sender asks again or gives up.

This runs in the thread of the links; files are read and written in others.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from enum import StrEnum

from msgspec import Struct, field

from gatepost.delivery.blob_records import awaited_size
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.decisions import BlobMissing
from gatepost.delivery.frames import BlobPiece, BlobRequest
from gatepost.delivery.inbox.held_events import find_event_with_blob, wanted_blobs
from gatepost.delivery.local_node import LocalNode
from gatepost.errors import EncryptionError, GatepostError
from gatepost.journal.transaction import Tx
from gatepost.links.blob_forwarder import BlobForwarder
from gatepost.links.blob_ports import BlobFileAccess, BlobPeer, FetchLimits
from gatepost.links.link_port import JournalCommit
from gatepost.links.proof import sign_blob_request


class FetchStage(StrEnum):
    WAITING = "waiting"  # for a link, a turn, or the end of a backoff
    LOOKING_UP = "looking_up"  # the size that the held event names
    ASKING = "asking"  # for pieces
    CHECKING = "checking"  # the digest
    ACCEPTING = "accepting"  # the events that were held for it


class BlobFetch(Struct):
    """One blob that is being fetched.

    It is written up to `have`, and requested up to `asked`. `requested` maps the offset of each
    unanswered request to its deadline; `writing` and `written` are offsets of pieces behind `have`.
    """

    digest: str
    source: str
    piece_bytes: int
    stage: FetchStage = FetchStage.WAITING
    due: int = 0
    attempts: int = 0
    size: int = 0
    have: int = 0
    asked: int = 0
    started_at: int = 0
    via: BlobPeer | None = None
    signature: bytes = b""
    is_reported: bool = False
    tried: set[str] = field(default_factory=set)
    requested: dict[int, int] = field(default_factory=dict)
    writing: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)


class BlobFetcher:
    """Call `expire_requests` every second or so."""

    def __init__(
        self,
        node: LocalNode,
        coordinator: DeliveryCoordinator,
        files: BlobFileAccess,
        commit: JournalCommit,
        now: Callable[[], int],
        limits: FetchLimits,
    ) -> None:
        self.node = node
        self._coordinator = coordinator
        self.abuse = coordinator.abuse
        self.files = files
        self._commit = commit
        self._now = now
        self.limits = limits
        self._fetches: dict[str, BlobFetch] = {}
        # Sources that did not answer in time, and have not sent a piece since.
        self._silent: set[str] = set()
        # Whether a source has more wanted blobs than are kept in memory.
        self._has_more = False
        self._parts: list[BlobPeer] = []
        self.read_slots = ReadSlots(limits.all_reads)
        self.forwarder = BlobForwarder(coordinator, self._parts, now, limits)

    def want_blob(self, digest: str, source: str) -> None:
        """Fetch a blob for which an event is held. A second call starts no second fetch."""
        if digest in self._fetches:
            return
        of_source = sum(each.source == source for each in self._fetches.values())
        if of_source >= self.limits.wanted:
            self._has_more = True
            return
        self._fetches[digest] = BlobFetch(digest, source, self.limits.piece_bytes)
        self._start_fetches()

    def find_member_key(self, node: str | None) -> bytes | None:
        found = self._coordinator.routes.directory.gateways.get(node or "")
        return None if found is None else found.key

    def is_addressed(self, tx: Tx, digest: str, reader: str) -> bool:
        return self._coordinator.may_fetch_blob(tx, digest, reader)

    def resume_fetches(self) -> None:
        """Fetch every blob that held events still need, for example after a start."""
        self._has_more = False
        self._commit(wanted_blobs, self._want_blobs)

    def _want_blobs(self, wanted: list[tuple[str, str]], error: GatepostError | None) -> None:
        for digest, source in wanted if error is None else ():
            self.want_blob(digest, source)

    def expire_requests(self) -> None:
        """Give up requests whose deadline has passed, and start fetches that are due."""
        now = self._now()
        _cap_deadlines(self._fetches.values(), self.limits, now)
        self.forwarder.cap_deadlines(now + self.limits.answer_ms)
        for fetch in list(self._fetches.values()):
            if any(deadline <= now for deadline in fetch.requested.values()):
                self._silent.add(fetch.source)
                self._try_elsewhere(fetch, "did not answer in time")
        self.forwarder.expire_requests(now)
        self._start_fetches()
        if self._has_more and len(self._fetches) < self.limits.wanted:
            self.resume_fetches()

    # -- links

    def add_part(self, part: BlobPeer) -> None:
        self._parts.append(part)
        self._start_fetches()

    def remove_part(self, part: BlobPeer) -> None:
        if part in self._parts:
            self._parts.remove(part)
        for fetch in list(self._fetches.values()):
            # A blob that is being checked or accepted no longer needs the link.
            if fetch.via is part and fetch.stage in (FetchStage.LOOKING_UP, FetchStage.ASKING):
                self._try_elsewhere(fetch, "is not linked any more")
        self.forwarder.drop_source(part.peer)
        self._start_fetches()

    def _usable_parts(self, fetch: BlobFetch) -> list[BlobPeer]:
        """The links to ask over: those with the source itself first, then relays."""
        direct = [part for part in self._parts if part.peer == fetch.source]
        relays = [part for part in self._parts if part.relays and part.peer != fetch.source]
        return [part for part in direct + relays if part.peer not in fetch.tried]

    # -- one fetch, step by step

    def _start_fetches(self) -> None:
        """Start fetches that are due, within the limits per source and in total."""
        active = Counter(
            fetch.source for fetch in self._fetches.values() if fetch.stage != FetchStage.WAITING
        )
        for fetch in list(self._fetches.values()):
            if active.total() >= self.limits.all_fetches:
                return
            is_due = fetch.stage == FetchStage.WAITING and fetch.due <= self._now()
            if not is_due or fetch.writing or not self._has_slot(fetch.source, active):
                continue
            if parts := self._usable_parts(fetch):
                active[fetch.source] += 1
                self._look_up_size(fetch, parts[0])

    def _has_slot(self, source: str, active: Counter[str]) -> bool:
        """Whether a fetch may start. Silent sources get one slot each, and a quarter of all."""
        if source not in self._silent:
            return active[source] < self.limits.fetches
        silent = sum(active[each] for each in self._silent)
        return active[source] == 0 and silent < max(1, self.limits.all_fetches // 4)

    def _look_up_size(self, fetch: BlobFetch, via: BlobPeer) -> None:
        fetch.stage, fetch.via = FetchStage.LOOKING_UP, via
        fetch.asked = fetch.started_at = fetch.have
        self._commit(
            lambda tx: _expected_size(tx, fetch.digest),
            lambda size, error: self._begin_asking(fetch, size, error),
        )

    def _begin_asking(
        self, fetch: BlobFetch, size: int | None, error: GatepostError | None
    ) -> None:
        if fetch.stage != FetchStage.LOOKING_UP:
            return
        if error is not None:
            self._try_elsewhere(fetch, error.message)
        elif size is None:
            self._drop_fetch(fetch)
        elif size > self.limits.max_bytes:
            self._drop_fetch(fetch, f"it has {size} bytes; we take {self.limits.max_bytes}")
        else:
            fetch.size, fetch.stage = size, FetchStage.ASKING
            self._request_pieces(fetch)

    def _request_pieces(self, fetch: BlobFetch) -> None:
        while fetch.via is not None and fetch.asked < fetch.size:
            if len(fetch.requested) + len(fetch.writing) >= self.limits.pieces:
                break
            length = _piece_length(fetch, fetch.asked)
            if fetch.asked not in fetch.written:
                fetch.requested[fetch.asked] = self._now() + self.limits.answer_ms
                self._send_request(fetch, fetch.via, length)
            fetch.asked += length
        if fetch.have >= fetch.size and not fetch.writing:
            fetch.stage = FetchStage.CHECKING
            self.files.complete_blob(fetch.digest, lambda error: self._accept_blob(fetch, error))

    def _send_request(self, fetch: BlobFetch, via: BlobPeer, length: int) -> None:
        if via.peer != fetch.source and not fetch.signature:
            node = self.node
            fetch.signature = sign_blob_request(node.key, node.id, fetch.source, fetch.digest)
        proof = (None, b"") if via.peer == fetch.source else (self.node.id, fetch.signature)
        via.send_request(BlobRequest(fetch.source, fetch.digest, fetch.asked, length, *proof))

    def take_piece(self, part: BlobPeer, piece: BlobPiece) -> None:
        self.forwarder.forward_piece(part, piece)
        fetch = self._fetches.get(piece.digest)
        if fetch is None or fetch.via is not part or piece.offset not in fetch.requested:
            return
        if piece.total == 0:
            self._report_missing(fetch)
            self._try_elsewhere(fetch, "does not have it, or not for us")
        elif piece.total != fetch.size or len(piece.data) != _piece_length(fetch, piece.offset):
            self._report_forgery(
                fetch, f"sent a piece of {piece.total} bytes, where {fetch.size} are due"
            )
        else:
            del fetch.requested[piece.offset]
            self._silent.discard(fetch.source)
            fetch.writing.add(piece.offset)
            self.files.put_piece(
                piece.digest,
                piece.offset,
                piece.data,
                lambda error: self._note_written(fetch, piece.offset, error),
            )

    def _note_written(self, fetch: BlobFetch, offset: int, error: GatepostError | None) -> None:
        fetch.writing.discard(offset)
        if self._fetches.get(fetch.digest) is not fetch:
            self._abandon_pieces(fetch)
            return
        if error is None:
            fetch.written.add(offset)
            while fetch.have in fetch.written and fetch.have < fetch.size:
                fetch.written.discard(fetch.have)
                fetch.have += _piece_length(fetch, fetch.have)
        if fetch.stage == FetchStage.ASKING:
            if error is None:
                self._request_pieces(fetch)
            else:
                self._try_elsewhere(fetch, error.message)
        self._start_fetches()

    def _accept_blob(self, fetch: BlobFetch, error: GatepostError | None) -> None:
        if error is not None:
            # A blob that could not be completed was deleted with its pieces.
            fetch.have, fetch.started_at = 0, 0
            # Only a wrong digest is the peer's fault; any other error may be our disk's.
            forged = isinstance(error, EncryptionError)
            (self._report_forgery if forged else self._try_elsewhere)(fetch, error.message)
            return
        fetch.stage = FetchStage.ACCEPTING
        self._commit(
            lambda tx: self._coordinator.blob_arrived(tx, fetch.digest),
            lambda _, error: self._finish_fetch(fetch, error),
        )

    def _finish_fetch(self, fetch: BlobFetch, error: GatepostError | None) -> None:
        self._fetches.pop(fetch.digest, None)
        if error is not None:
            self._raise_incident("blob_unused", fetch, error.message)
        self._start_fetches()

    # -- failures

    def _report_missing(self, fetch: BlobFetch) -> None:
        """Tell the source that its event is held, because a relay may have lied about the blob."""
        if not fetch.is_reported:
            fetch.is_reported = True
            missing = (BlobMissing(fetch.digest),)
            self._commit(lambda tx: self._coordinator.apply_decisions(tx, missing), _ignore_result)

    def _report_forgery(self, fetch: BlobFetch, why: str) -> None:
        peer = fetch.via.peer if fetch.via else fetch.source
        self._raise_incident("blob_forged", fetch, f"{peer}: {why}", peer)
        self._try_elsewhere(fetch, why)

    def _try_elsewhere(self, fetch: BlobFetch, why: str) -> None:
        """Ask over another link, or later. Only attempts without progress are counted."""
        if fetch.via is not None:
            fetch.tried.add(fetch.via.peer)
        fetch.stage, fetch.via = FetchStage.WAITING, None
        fetch.requested.clear()
        fetch.written.clear()
        if not self._usable_parts(fetch):
            fetch.attempts += fetch.have <= fetch.started_at
            fetch.tried.clear()
            fetch.is_reported = False
            wait = self.limits.first_backoff_ms << min(fetch.attempts, 20)
            fetch.due = self._now() + min(wait, self.limits.max_backoff_ms)
        if fetch.attempts >= self.limits.attempts:
            self._drop_fetch(fetch, f"no peer supplied it; the last one {why}")
        self._start_fetches()

    def _drop_fetch(self, fetch: BlobFetch, why: str = "") -> None:
        self._fetches.pop(fetch.digest, None)
        self._abandon_pieces(fetch)
        if why:
            self._raise_incident("blob_missing", fetch, why)
        self._start_fetches()

    def _abandon_pieces(self, fetch: BlobFetch) -> None:
        """Delete the pieces, unless one is being written or a new fetch has started."""
        if not fetch.writing and fetch.digest not in self._fetches:
            self.files.abandon_pieces(fetch.digest)

    def _raise_incident(self, kind: str, fetch: BlobFetch, detail: str, by: str = "") -> None:
        subject = f"{by or fetch.source}/{fetch.digest}"
        incidents = self._coordinator.incidents
        self._commit(lambda tx: incidents.raise_(tx, kind, subject, detail), _ignore_result)


def _cap_deadlines(fetches: Iterable[BlobFetch], limits: FetchLimits, now: int) -> None:
    """After the clock went back, cap each deadline at now + its maximum."""
    for fetch in fetches:
        fetch.due = min(fetch.due, now + limits.max_backoff_ms)
        for offset, deadline in fetch.requested.items():
            fetch.requested[offset] = min(deadline, now + limits.answer_ms)


def _expected_size(tx: Tx, digest: str) -> int | None:
    """The size of a blob according to a held event or a result; None if it is not needed."""
    event = find_event_with_blob(tx, digest)
    if event is not None and event.payload_ref is not None:
        return event.payload_ref.size
    return awaited_size(tx, digest)


def _piece_length(fetch: BlobFetch, offset: int) -> int:
    return min(fetch.piece_bytes, fetch.size - offset)


def _ignore_result(value: object, error: GatepostError | None) -> None:
    """For operations whose result is not needed."""


class ReadSlots:
    """Lets `count` reads run at a time; the others wait for their turn."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_starting = False

    def run(self, read: Callable[[], None]) -> None:
        """Call `read` now or later. It calls `release` once it has ended."""
        self._waiting.append(read)
        self._start_reads()

    def release(self) -> None:
        self._free += 1
        self._start_reads()

    def _start_reads(self) -> None:
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while self._free and self._waiting:
                self._free -= 1
                self._waiting.popleft()()
        finally:
            self._is_starting = False
