"""Reading by relay: outboxes we have no link with, from whoever keeps them, believing nothing.

Each outbox is asked of one linked relay, and of another if the first does not have it; what comes
twice is taken once. A relay that sends what its source did not write, or leaves something out, is
not asked for that source again for a while.
"""

from collections.abc import Callable
from typing import TypeVar
from zlib import crc32

from msgspec import Struct

from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.feed import Port
from gatepost.delivery.frames import (
    AnyFrame,
    Events,
    Hello,
    Life,
    Lives,
    Reading,
    Relay,
    Taken,
    weight,
)
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.proof import check_events, check_lives, sign_reading
from gatepost.delivery.receiver.cursors import read_positions
from gatepost.delivery.receiver.receiver import EventBatch
from gatepost.errors import GatepostError, LinkError
from gatepost.events import Envelope
from gatepost.journal.outbox import Appended
from gatepost.journal.tx import Tx

# How often a source is told how far it was read. It delays forgetting there, nothing else.
_SAY_MS = 1_000
_FIRST_MS = 30_000
# How far the clocks of two gateways may differ.
_CLOCKS_MS = 30_000
# How long a relay is given to show that it has an outbox before another is asked for it.
_NEXT_MS = 5_000
_LONGEST_MS = 3_600_000

T = TypeVar("T")


class Blame(Struct):
    """How often a relay failed us with a source, and until when it is not asked."""

    failures: int = 0
    until: int = 0


class RelayReader:
    """`refresh` it whenever links or the room have changed, and every few seconds."""

    def __init__(self, node: LocalNode, coordinator: DeliveryCoordinator, window: int) -> None:
        self._node = node
        self.coordinator = coordinator
        self.window = window
        self._parts: list[ReaderPart] = []
        self._blamed: dict[tuple[str, str], Blame] = {}
        # Since when each outbox is missed; 0 if nobody could be asked yet.
        self._missed: dict[str, int] = {}

    def part(self, port: Port, peer: str, *, relays: bool) -> "ReaderPart":
        """`relays`: the other side is one to ask."""
        return ReaderPart(self, port, peer, relays)

    def came(self, part: "ReaderPart") -> None:
        self._parts.append(part)
        self.refresh()

    def went(self, part: "ReaderPart") -> None:
        if part in self._parts:
            self._parts.remove(part)
            self.refresh()

    def refresh(self) -> None:
        """Ask for what we miss now: each outbox of one relay that has it, or until one has."""
        linked = {part.peer for part in self._parts}
        members = self.coordinator.routes.directory.gateways.keys()
        missing = members - linked - {self._node.id}
        self._missed = {source: self._missed.get(source, 0) for source in missing}
        wanted: dict[str, list[str]] = {part.peer: [] for part in self._parts}
        for source in sorted(missing):
            for peer in self._to_ask(source):
                wanted[peer].append(source)
        for part in self._parts:
            part.ask(wanted[part.peer])
            part.say()

    def _to_ask(self, source: str) -> list[str]:
        able = [p for p in self._parts if p.relays and not self._is_blamed(p, source)]
        ranked = sorted(able, key=lambda part: crc32(f"{source}/{part.peer}".encode()))
        if has := [part.peer for part in ranked if part.has(source)]:
            return has[:1]
        if not ranked:
            return []
        since = self._missed[source] = self._missed[source] or ranked[0].now()
        return [part.peer for part in ranked[: 1 + (ranked[0].now() - since) // _NEXT_MS]]

    def sign(self, taken: Taken) -> Reading:
        node = self._node
        position = (taken.source, taken.life, taken.upto)
        return sign_reading(node.key, node.id, node.incarnation, position)

    def key_of(self, node: str) -> bytes:
        found = self.coordinator.routes.directory.gateways.get(node)
        if found is None:
            raise LinkError(f"{node} is not in this room")
        return found.key

    def blame(self, relay: str, source: str, now: int) -> None:
        blamed = self._blamed.setdefault((relay, source), Blame())
        blamed.until = now + min(_FIRST_MS << min(blamed.failures, 20), _LONGEST_MS)
        blamed.failures += 1

    def praise(self, relay: str, source: str) -> None:
        self._blamed.pop((relay, source), None)

    def _is_blamed(self, part: "ReaderPart", source: str) -> bool:
        blamed = self._blamed.get((part.peer, source))
        return blamed is not None and part.now() < blamed.until


class ReaderPart:
    """A reader's part of one link."""

    def __init__(self, reader: RelayReader, port: Port, peer: str, relays: bool) -> None:
        self._reader = reader
        self._port = port
        self.peer = peer
        self.relays = relays
        self._wants: list[str] = []
        self._lives: dict[str, list[Life]] = {}
        self._unsaid: dict[str, Taken] = {}
        self._said_at = 0
        self.now = port.now

    def greeted(self, hello: Hello) -> None:
        self._reader.came(self)

    def appended(self, group: Appended) -> None:
        """Our own outbox is read by others."""

    def closed(self) -> None:
        self._reader.went(self)

    def receive(self, frame: AnyFrame) -> bool:
        match frame:
            case Lives() if frame.source != self.peer:
                self._learn(frame)
            case Events(stream="relay"):
                self._events(frame)
            case _:
                return False
        return True

    def has(self, source: str) -> bool:
        """Whether this relay has shown that it keeps that outbox."""
        return source in self._lives

    def ask(self, wants: list[str]) -> None:
        """Say what we want from this relay, unless it knows."""
        if not self.relays or wants == self._wants:
            return
        self._wants = wants
        self._port.commit(
            lambda tx: read_positions(tx, wants),
            lambda found: self._port.send(Relay(found, wants, self._reader.window)),
        )

    def _learn(self, frame: Lives) -> None:
        self._checked(frame.source, lambda key: check_lives(frame, key))
        self._lives[frame.source] = frame.lives

    def _events(self, frame: Events) -> None:
        """Proven is proven, even if it was on its way when we stopped to want it."""
        lives = self._lives.get(frame.source, [])
        envelopes = self._checked(frame.source, lambda key: check_events(frame, lives, key))
        taken = Taken(frame.source, frame.life, envelopes[-1].seq, weight(frame), "relay")
        self._port.commit(
            lambda tx: self._take(tx, frame, envelopes), lambda error: self._took(taken, error)
        )

    def _checked(self, source: str, check: Callable[[bytes], T]) -> T:
        """What `check` finds; if that is a lie, everybody shall know whose."""
        try:
            return check(self._reader.key_of(source))
        except LinkError as error:
            said = error.message
            self._reader.blame(self.peer, source, self._port.now())
            self._port.commit(lambda tx: self._incident(tx, source, said), _nothing)
            raise

    def _take(self, tx: Tx, frame: Events, envelopes: list[Envelope]) -> GatepostError | None:
        """Take it as if it came from its source; or nothing of it, and say why not."""
        mark = tx.mark()
        try:
            self._reader.coordinator.take_batch(tx, self._batch(tx, frame, envelopes))
        except GatepostError as error:
            tx.undo(mark)
            self._incident(tx, frame.source, error.message)
            return error
        tx.keep()
        return None

    def _batch(self, tx: Tx, frame: Events, envelopes: list[Envelope]) -> EventBatch:
        """A relay's word counts for nothing: neither for what there is not, nor for the time."""
        last = envelopes[-1]
        now = max(last.created_at, min(frame.now, tx.now))
        heard = _heard_before(tx)
        return EventBatch(
            frame.source, frame.life, frame.first_seq, last.seq, now, frame.events, heard
        )

    def _took(self, taken: Taken, error: GatepostError | None) -> None:
        if error is not None:
            self._reader.blame(self.peer, taken.source, self._port.now())
            self._port.end(error)
            return
        self._reader.praise(self.peer, taken.source)
        self._port.send(taken)
        self._unsaid[taken.source] = taken
        self.say()

    def say(self) -> None:
        """Tell the sources how far we are, every now and then."""
        if self._unsaid and self.now() >= self._said_at + _SAY_MS:
            self._said_at = self.now()
            unsaid, self._unsaid = self._unsaid, {}
            for taken in unsaid.values():
                self._port.send(self._reader.sign(taken))

    def _incident(self, tx: Tx, source: str, detail: str) -> None:
        incidents = self._reader.coordinator.incidents
        incidents.raise_(tx, "relay", f"{self.peer}/{source}", detail)


def _heard_before(tx: Tx) -> int:
    """A source would skip what it sent to an earlier life of this journal; a relay cannot know."""
    row = tx.one("SELECT value FROM fact WHERE name = 'restored_at'")
    return 0 if row is None else int(row[0]) + _CLOCKS_MS


def _nothing(value: object) -> None:
    """There is nothing to do with it."""
