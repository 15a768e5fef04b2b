"""Blobs over links: who is sent an event that refers to one fetches it from the event's source.

A blob comes in pieces, a few at a time, over a link with its source or through a relay that has
one. When a link breaks, the next goes on where it ended. What came is kept only if it has the
digest it should have. All that waits has a deadline, and trying again has an end: then what needs
the blob stays held, until its sender asks again or gives up.

This runs where links do; files are read and written elsewhere.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct, field

from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.feed import Port
from gatepost.delivery.frames import PIECE_BYTES, AnyFrame, BlobAsk, BlobPiece, Hello
from gatepost.delivery.receiver.held_events import wanted_blobs
from gatepost.errors import GatepostError, LinkError
from gatepost.events import decode
from gatepost.journal.outbox import Appended
from gatepost.journal.tx import Tx

_EXPECTED = "SELECT body FROM held WHERE digest = ? LIMIT 1"
_IS_FOR = "SELECT 1 FROM delivery WHERE digest = ? AND node = ? LIMIT 1"

Done = Callable[[GatepostError | None], None]
Commit = Callable[[Callable[[Tx], Any], Callable[[Any, GatepostError | None], None]], None]


class Files(Protocol):
    """The blob store, in threads of its own. Each `done` is called where links run."""

    def read(
        self, digest: str, offset: int, length: int, done: Callable[[int, bytes], None]
    ) -> None:
        """The size of a blob and a range of it; 0 and nothing if it is not here."""

    def put(self, digest: str, offset: int, piece: bytes, done: Done) -> None: ...

    def complete(self, digest: str, done: Done) -> None: ...

    def abandon(self, digest: str) -> None: ...


class Bounds(Struct, frozen=True):
    """Times in milliseconds. `passing` is how many asks of others a relay passes on at once."""

    max_bytes: int
    fetches: int = 4
    pieces: int = 4
    patience: int = 30_000
    attempts: int = 8
    first_backoff: int = 1_000
    max_backoff: int = 300_000
    passing: int = 256
    reading: int = 64


class Stage(StrEnum):
    """Waiting for a link, a turn, or time; looking up what it should be; asking for its pieces;
    checking what came; and telling those who need it.
    """

    WAITING = "waiting"
    LOOKING = "looking"
    ASKING = "asking"
    CHECKING = "checking"
    LANDING = "landing"


class Fetch(Struct):
    """One blob on its way. Up to `have` it is written; from `asked` on nobody was asked."""

    digest: str
    source: str
    stage: Stage = Stage.WAITING
    due: int = 0
    attempts: int = 0
    size: int = 0
    have: int = 0
    asked: int = 0
    began_at: int = 0
    way: "BlobPart | None" = None
    tried: set[str] = field(default_factory=set)
    out: dict[int, int] = field(default_factory=dict)
    writing: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)


class Fetcher:
    """`tick` it every second or so."""

    def __init__(
        self,
        node: str,
        coordinator: DeliveryCoordinator,
        files: Files,
        commit: Commit,
        now: Callable[[], int],
        bounds: Bounds,
    ) -> None:
        self.node = node
        self._coordinator = coordinator
        self.files = files
        self._commit = commit
        self._now = now
        self.bounds = bounds
        self._fetches: dict[str, Fetch] = {}
        self._parts: list[BlobPart] = []
        self._passing: dict[BlobAsk, list[tuple[BlobPart, int]]] = {}

    def part(self, port: Port, peer: str, *, relays: bool, passes: bool) -> "BlobPart":
        """`relays`: the other side passes asks on; `passes`: so do we."""
        return BlobPart(self, port, peer, relays, passes)

    def want(self, digest: str, source: str) -> None:
        """Something is held for want of this. To want it again starts no second fetch."""
        if digest not in self._fetches:
            self._fetches[digest] = Fetch(digest, source)
            self._go_on()

    def resume(self) -> None:
        """Want what is still needed from before: after a start."""
        self._commit(wanted_blobs, self._want_all)

    def _want_all(self, wanted: list[tuple[str, str]], error: GatepostError | None) -> None:
        for digest, source in wanted if error is None else ():
            self.want(digest, source)

    def tick(self) -> None:
        """Whoever did not answer in time has failed."""
        now = self._now()
        for fetch in list(self._fetches.values()):
            if any(deadline <= now for deadline in fetch.out.values()):
                self._failed(fetch, "did not answer in time")
        for ask, waiting in list(self._passing.items()):
            if all(deadline <= now for _, deadline in waiting):
                self._pass(ask, BlobPiece(ask.source, ask.digest, ask.offset, 0, b""))
        self._go_on()

    # -- links

    def came(self, part: "BlobPart") -> None:
        self._parts.append(part)
        self._go_on()

    def went(self, part: "BlobPart") -> None:
        if part in self._parts:
            self._parts.remove(part)
        for fetch in list(self._fetches.values()):
            if fetch.way is part:
                self._failed(fetch, "is not linked any more")
        for ask in [each for each in self._passing if each.source == part.peer]:
            self._pass(ask, BlobPiece(ask.source, ask.digest, ask.offset, 0, b""))
        self._go_on()

    def _ways(self, fetch: Fetch) -> "list[BlobPart]":
        """Over whom to ask, the source itself first."""
        direct = [part for part in self._parts if part.peer == fetch.source]
        relays = [part for part in self._parts if part.relays and part.peer != fetch.source]
        return [part for part in direct + relays if part.peer not in fetch.tried]

    # -- one fetch, step by step

    def _go_on(self) -> None:
        """Start what may start."""
        active = sum(fetch.stage != Stage.WAITING for fetch in self._fetches.values())
        for fetch in list(self._fetches.values()):
            if active >= self.bounds.fetches:
                return
            ready = fetch.stage == Stage.WAITING and fetch.due <= self._now() and not fetch.writing
            ways = self._ways(fetch) if ready else []
            if ways:
                active += 1
                self._look(fetch, ways[0])

    def _look(self, fetch: Fetch, way: "BlobPart") -> None:
        fetch.stage, fetch.way = Stage.LOOKING, way
        fetch.asked = fetch.began_at = fetch.have
        self._commit(
            lambda tx: _expected(tx, fetch.digest),
            lambda size, error: self._looked(fetch, size, error),
        )

    def _looked(self, fetch: Fetch, size: int | None, error: GatepostError | None) -> None:
        if fetch.stage != Stage.LOOKING:
            return
        if error is not None:
            self._failed(fetch, error.message)
        elif size is None:
            self._forget(fetch)
        elif size > self.bounds.max_bytes:
            self._forget(fetch, f"it has {size} bytes; we take {self.bounds.max_bytes}")
        else:
            fetch.size, fetch.stage = size, Stage.ASKING
            self._ask(fetch)

    def _ask(self, fetch: Fetch) -> None:
        while len(fetch.out) + len(fetch.writing) < self.bounds.pieces and fetch.way is not None:
            if fetch.asked >= fetch.size:
                break
            length = _length(fetch, fetch.asked)
            if fetch.asked not in fetch.written:
                fetch.out[fetch.asked] = self._now() + self.bounds.patience
                fetch.way.ask(BlobAsk(fetch.source, fetch.digest, fetch.asked, length))
            fetch.asked += length
        if fetch.have >= fetch.size and not fetch.writing:
            fetch.stage = Stage.CHECKING
            self.files.complete(fetch.digest, lambda error: self._checked(fetch, error))

    def piece(self, part: "BlobPart", piece: BlobPiece) -> None:
        self._pass_on(part, piece)
        fetch = self._fetches.get(piece.digest)
        if fetch is None or fetch.way is not part or piece.offset not in fetch.out:
            return
        if piece.total == 0:
            self._failed(fetch, "does not have it, or not for us")
        elif piece.total != fetch.size or len(piece.data) != _length(fetch, piece.offset):
            self._lied(fetch, f"sent a piece of {piece.total} bytes, where {fetch.size} are due")
        else:
            del fetch.out[piece.offset]
            fetch.writing.add(piece.offset)
            self.files.put(
                piece.digest,
                piece.offset,
                piece.data,
                lambda error: self._put(fetch, piece.offset, error),
            )

    def _put(self, fetch: Fetch, offset: int, error: GatepostError | None) -> None:
        fetch.writing.discard(offset)
        if self._fetches.get(fetch.digest) is not fetch:
            self._abandon(fetch)
            return
        if error is None:
            fetch.written.add(offset)
            while fetch.have in fetch.written and fetch.have < fetch.size:
                fetch.written.discard(fetch.have)
                fetch.have += _length(fetch, fetch.have)
        if fetch.stage == Stage.ASKING:
            if error is None:
                self._ask(fetch)
            else:
                self._failed(fetch, error.message)
        self._go_on()

    def _checked(self, fetch: Fetch, error: GatepostError | None) -> None:
        if error is not None:
            fetch.have, fetch.began_at = 0, 0
            self._lied(fetch, error.message)
            return
        fetch.stage = Stage.LANDING
        self._commit(
            lambda tx: self._coordinator.blob_arrived(tx, fetch.digest),
            lambda _, error: self._landed(fetch, error),
        )

    def _landed(self, fetch: Fetch, error: GatepostError | None) -> None:
        self._fetches.pop(fetch.digest, None)
        if error is not None:
            self._incident("blob_unused", fetch, error.message)
        self._go_on()

    # -- what goes wrong

    def _lied(self, fetch: Fetch, why: str) -> None:
        peer = fetch.way.peer if fetch.way else fetch.source
        self._incident("blob_forged", fetch, f"{peer}: {why}", peer)
        self._failed(fetch, why)

    def _failed(self, fetch: Fetch, why: str) -> None:
        """Try another way, or later; but not for ever, unless it gets further each time."""
        if fetch.way is not None:
            fetch.tried.add(fetch.way.peer)
        fetch.stage, fetch.way = Stage.WAITING, None
        fetch.out.clear()
        fetch.written.clear()
        if not self._ways(fetch):
            fetch.attempts += fetch.have <= fetch.began_at
            fetch.tried.clear()
            wait = self.bounds.first_backoff << min(fetch.attempts, 20)
            fetch.due = self._now() + min(wait, self.bounds.max_backoff)
        if fetch.attempts >= self.bounds.attempts:
            self._forget(fetch, f"nobody gave it to us; the last one {why}")
        self._go_on()

    def _forget(self, fetch: Fetch, why: str = "") -> None:
        self._fetches.pop(fetch.digest, None)
        self._abandon(fetch)
        if why:
            self._incident("blob_missing", fetch, why)
        self._go_on()

    def _abandon(self, fetch: Fetch) -> None:
        """Pieces go when none of them is being written, and nobody has started anew."""
        if not fetch.writing and fetch.digest not in self._fetches:
            self.files.abandon(fetch.digest)

    def _incident(self, kind: str, fetch: Fetch, detail: str, by: str = "") -> None:
        subject = f"{by or fetch.source}/{fetch.digest}"
        incidents = self._coordinator.incidents
        self._commit(lambda tx: incidents.raise_(tx, kind, subject, detail), _ignore)

    # -- passing on, as a relay

    def pass_on(self, part: "BlobPart", ask: BlobAsk) -> bool:
        """Ask the source, if we have a link with it; whether we did."""
        members = self._coordinator.routes.directory.gateways
        source = next((each for each in self._parts if each.peer == ask.source), None)
        if source is None or part.peer not in members or ask.source not in members:
            return False
        asked = BlobAsk(ask.source, ask.digest, ask.offset, ask.length, part.peer)
        if sum(map(len, self._passing.values())) >= self.bounds.passing:
            return False
        waiting = self._passing.setdefault(asked, [])
        waiting.append((part, self._now() + self.bounds.patience))
        if len(waiting) == 1:
            source.ask(asked)
        return True

    def _pass_on(self, part: "BlobPart", piece: BlobPiece) -> None:
        for ask in list(self._passing):
            same = (ask.source, ask.digest, ask.offset) == (part.peer, piece.digest, piece.offset)
            if same and len(piece.data) <= ask.length:
                self._pass(ask, piece)

    def _pass(self, ask: BlobAsk, piece: BlobPiece) -> None:
        for part, _ in self._passing.pop(ask, []):
            part.answer(piece)


class BlobPart:
    """A link's part in it: it asks, and it answers."""

    def __init__(self, fetcher: Fetcher, port: Port, peer: str, relays: bool, passes: bool) -> None:
        self._fetcher = fetcher
        self._port = port
        self.peer = peer
        self.relays = relays
        self._passes = passes
        self._reading = 0
        self._known: set[tuple[str, str]] = set()
        self._open = False

    def greeted(self, hello: Hello) -> None:
        self._open = True
        self._fetcher.came(self)

    def appended(self, group: Appended) -> None:
        """Events are none of our business."""

    def closed(self) -> None:
        self._open = False
        self._fetcher.went(self)

    def receive(self, frame: AnyFrame) -> bool:
        match frame:
            case BlobAsk():
                self._asked(frame)
            case BlobPiece():
                self._fetcher.piece(self, frame)
            case _:
                return False
        return True

    def ask(self, ask: BlobAsk) -> None:
        self._port.send(ask)

    def answer(self, piece: BlobPiece) -> None:
        if self._open:
            self._port.send(piece)

    # -- answering

    def _asked(self, ask: BlobAsk) -> None:
        if ask.length > PIECE_BYTES or self._reading >= self._fetcher.bounds.reading:
            raise LinkError(f"{self.peer} asks for too much at once")
        if ask.source == self._fetcher.node:
            self._serve(ask, ask.reader or self.peer)
        elif not (self._passes and ask.reader is None and self._fetcher.pass_on(self, ask)):
            self._nothing(ask)

    def _serve(self, ask: BlobAsk, reader: str) -> None:
        """Only to whom an event of ours that refers to it was addressed."""
        self._reading += 1
        if (ask.digest, reader) in self._known:
            self._read(ask)
            return
        self._port.commit(
            lambda tx: tx.one(_IS_FOR, (ask.digest, reader)) is not None,
            lambda known: self._may(ask, reader, known),
        )

    def _may(self, ask: BlobAsk, reader: str, known: bool) -> None:
        if not known:
            self._reading -= 1
            self._nothing(ask)
            return
        if len(self._known) >= self._fetcher.bounds.passing:
            self._known.clear()
        self._known.add((ask.digest, reader))
        self._read(ask)

    def _read(self, ask: BlobAsk) -> None:
        self._fetcher.files.read(
            ask.digest, ask.offset, ask.length, lambda total, data: self._found(ask, total, data)
        )

    def _found(self, ask: BlobAsk, total: int, data: bytes) -> None:
        self._reading -= 1
        self.answer(BlobPiece(ask.source, ask.digest, ask.offset, total, data))

    def _nothing(self, ask: BlobAsk) -> None:
        self.answer(BlobPiece(ask.source, ask.digest, ask.offset, 0, b""))


def _expected(tx: Tx, digest: str) -> int | None:
    """How large a blob should be; None if nobody needs it any more."""
    row = tx.one(_EXPECTED, (digest,))
    ref = None if row is None else decode(row[0]).payload_ref
    return None if ref is None else ref.size


def _length(fetch: Fetch, offset: int) -> int:
    return min(PIECE_BYTES, fetch.size - offset)


def _ignore(value: Any, error: GatepostError | None) -> None:
    """Nobody waits for it."""
