"""Reading by relay: outboxes we have no link with, from whoever keeps them, believing nothing.

Each outbox is asked of one linked relay, and of another if the first does not have it; what comes
twice is taken once. A relay that sends what its source did not write, or leaves something out, is
not asked for that source again for a while.
"""

from collections.abc import Callable
from typing import TypeVar
from zlib import crc32

from msgspec import Struct

from gatepost.delivery.frames import (
    AnyFrame,
    EventsFrame,
    HelloFrame,
    Incarnation,
    IncarnationsFrame,
    ReadingFrame,
    RelayFrame,
    TakenFrame,
    frame_weight,
)
from gatepost.delivery.messages import Messages
from gatepost.delivery.node import Node
from gatepost.delivery.outbox_feed import LinkPort
from gatepost.delivery.proof import check_incarnations, check_relayed_events, sign_reading
from gatepost.delivery.receiver import Batch, positions
from gatepost.errors import GatepostError, LinkError
from gatepost.events import Envelope
from gatepost.journal.outbox import Appended
from gatepost.journal.tx import Tx

# How often a source is told how far it was read. It delays forgetting there, nothing else.
_READING_MS = 1_000
_FIRST_MS = 30_000
# How far the clocks of two gateways may differ.
_CLOCK_TOLERANCE_MS = 30_000
# How long a relay is given to show that it has an outbox before another is asked for it.
_NEXT_MS = 5_000
_LONGEST_MS = 3_600_000

T = TypeVar("T")


class RelayBlame(Struct):
    """How often a relay failed us with a source, and until when it is not asked."""

    failures: int = 0
    until: int = 0


class RelayReader:
    """`refresh` it whenever links or the room have changed, and every few seconds."""

    def __init__(self, node: Node, messages: Messages, window: int) -> None:
        self._node = node
        self.messages = messages
        self.window = window
        self._parts: list[RelayReaderPart] = []
        self._blamed: dict[tuple[str, str], RelayBlame] = {}
        # Since when each outbox is missed; 0 if nobody could be asked yet.
        self._missed: dict[str, int] = {}

    def make_part(self, port: LinkPort, peer: str, *, relays: bool) -> "RelayReaderPart":
        """`relays`: the other side is one to ask."""
        return RelayReaderPart(self, port, peer, relays)

    def add_part(self, part: "RelayReaderPart") -> None:
        self._parts.append(part)
        self.refresh_requests()

    def remove_part(self, part: "RelayReaderPart") -> None:
        if part in self._parts:
            self._parts.remove(part)
            self.refresh_requests()

    def refresh_requests(self) -> None:
        """Ask for what we miss now: each outbox of one relay that has it, or until one has."""
        linked = {part.peer for part in self._parts}
        members = self.messages.sender.directory.gateways.keys()
        missing = members - linked - {self._node.id}
        self._missed = {source: self._missed.get(source, 0) for source in missing}
        wanted: dict[str, list[str]] = {part.peer: [] for part in self._parts}
        for source in sorted(missing):
            for peer in self._choose_relays(source):
                wanted[peer].append(source)
        for part in self._parts:
            part.request_sources(wanted[part.peer])
            part.send_readings()

    def _choose_relays(self, source: str) -> list[str]:
        able = [p for p in self._parts if p.relays and not self._is_blamed(p, source)]
        ranked = sorted(able, key=lambda part: crc32(f"{source}/{part.peer}".encode()))
        if has := [part.peer for part in ranked if part.has_source(source)]:
            return has[:1]
        if not ranked:
            return []
        since = self._missed[source] = self._missed[source] or ranked[0].now()
        return [part.peer for part in ranked[: 1 + (ranked[0].now() - since) // _NEXT_MS]]

    def sign_reading(self, taken: TakenFrame) -> ReadingFrame:
        node = self._node
        position = (taken.source, taken.incarnation, taken.upto)
        return sign_reading(node.key, node.id, node.incarnation, position)

    def require_key(self, node: str) -> bytes:
        found = self.messages.sender.directory.gateways.get(node)
        if found is None:
            raise LinkError(f"{node} is not in this room")
        return found.key

    def blame_relay(self, relay: str, source: str, now: int) -> None:
        blamed = self._blamed.setdefault((relay, source), RelayBlame())
        blamed.until = now + min(_FIRST_MS << min(blamed.failures, 20), _LONGEST_MS)
        blamed.failures += 1

    def clear_blame(self, relay: str, source: str) -> None:
        self._blamed.pop((relay, source), None)

    def _is_blamed(self, part: "RelayReaderPart", source: str) -> bool:
        blamed = self._blamed.get((part.peer, source))
        return blamed is not None and part.now() < blamed.until


class RelayReaderPart:
    """A reader's part of one link."""

    def __init__(self, reader: RelayReader, port: LinkPort, peer: str, relays: bool) -> None:
        self._reader = reader
        self._port = port
        self.peer = peer
        self.relays = relays
        self._wants: list[str] = []
        self._incarnations: dict[str, list[Incarnation]] = {}
        self._unsent_readings: dict[str, TakenFrame] = {}
        self._readings_sent_at = 0
        self.now = port.now

    def handle_hello(self, hello: HelloFrame) -> None:
        self._reader.add_part(self)

    def publish_group(self, group: Appended) -> None:
        """Our own outbox is read by others."""

    def close(self) -> None:
        self._reader.remove_part(self)

    def receive_frame(self, frame: AnyFrame) -> bool:
        match frame:
            case IncarnationsFrame() if frame.source != self.peer:
                self._learn_incarnations(frame)
            case EventsFrame(stream="relay"):
                self._take_events(frame)
            case _:
                return False
        return True

    def has_source(self, source: str) -> bool:
        """Whether this relay has shown that it keeps that outbox."""
        return source in self._incarnations

    def request_sources(self, wants: list[str]) -> None:
        """Say what we want from this relay, unless it knows."""
        if not self.relays or wants == self._wants:
            return
        self._wants = wants
        self._port.commit(
            lambda tx: positions(tx, wants),
            lambda found: self._port.send(RelayFrame(found, wants, self._reader.window)),
        )

    def _learn_incarnations(self, frame: IncarnationsFrame) -> None:
        self._check_or_blame(frame.source, lambda key: check_incarnations(frame, key))
        self._incarnations[frame.source] = frame.incarnations

    def _take_events(self, frame: EventsFrame) -> None:
        """Proven is proven, even if it was on its way when we stopped to want it."""
        lives = self._incarnations.get(frame.source, [])
        envelopes = self._check_or_blame(
            frame.source, lambda key: check_relayed_events(frame, lives, key)
        )
        taken = TakenFrame(
            frame.source, frame.incarnation, envelopes[-1].seq, frame_weight(frame), "relay"
        )
        self._port.commit(
            lambda tx: self._take_batch(tx, frame, envelopes),
            lambda error: self._confirm_taken(taken, error),
        )

    def _check_or_blame(self, source: str, check: Callable[[bytes], T]) -> T:
        """What `check` finds; if that is a lie, everybody shall know whose."""
        try:
            return check(self._reader.require_key(source))
        except LinkError as error:
            said = error.message
            self._reader.blame_relay(self.peer, source, self._port.now())
            self._port.commit(lambda tx: self._raise_incident(tx, source, said), _ignore_result)
            raise

    def _take_batch(
        self, tx: Tx, frame: EventsFrame, envelopes: list[Envelope]
    ) -> GatepostError | None:
        """Take it as if it came from its source; or nothing of it, and say why not."""
        mark = tx.mark()
        try:
            self._reader.messages.receiver.take(tx, self._make_batch(tx, frame, envelopes))
        except GatepostError as error:
            tx.undo(mark)
            self._raise_incident(tx, frame.source, error.message)
            return error
        tx.keep()
        return None

    def _make_batch(self, tx: Tx, frame: EventsFrame, envelopes: list[Envelope]) -> Batch:
        """A relay's word counts for nothing: neither for what there is not, nor for the time."""
        last = envelopes[-1]
        now = max(last.created_at, min(frame.now, tx.now))
        heard = _heard_until(tx)
        return Batch(
            frame.source, frame.incarnation, frame.first_seq, last.seq, now, frame.events, heard
        )

    def _confirm_taken(self, taken: TakenFrame, error: GatepostError | None) -> None:
        if error is not None:
            self._reader.blame_relay(self.peer, taken.source, self._port.now())
            self._port.end(error)
            return
        self._reader.clear_blame(self.peer, taken.source)
        self._port.send(taken)
        self._unsent_readings[taken.source] = taken
        self.send_readings()

    def send_readings(self) -> None:
        """Tell the sources how far we are, every now and then."""
        if self._unsent_readings and self.now() >= self._readings_sent_at + _READING_MS:
            self._readings_sent_at = self.now()
            unsaid, self._unsent_readings = self._unsent_readings, {}
            for taken in unsaid.values():
                self._port.send(self._reader.sign_reading(taken))

    def _raise_incident(self, tx: Tx, source: str, detail: str) -> None:
        incidents = self._reader.messages.incidents
        incidents.raise_(tx, "relay", f"{self.peer}/{source}", detail)


def _heard_until(tx: Tx) -> int:
    """A source would skip what it sent to an earlier life of this journal; a relay cannot know."""
    row = tx.one("SELECT value FROM fact WHERE name = 'restored_at'")
    return 0 if row is None else int(row[0]) + _CLOCK_TOLERANCE_MS


def _ignore_result(value: object) -> None:
    """There is nothing to do with it."""
