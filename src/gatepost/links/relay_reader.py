"""Reading outboxes of members without a direct link, through relays that need no trust.

Each outbox is asked of one linked relay, and of more if that one does not have it. Events that come
twice are taken once. A relay that sends forged events, or leaves some out, is not asked for that
source again for a while.

proof.py has the rules of relays and proofs.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar
from zlib import crc32

from msgspec import Struct

from gatepost.delivery.accept import EventBatch
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.frames import (
    AnyFrame,
    EventsFrame,
    HelloFrame,
    Incarnation,
    IncarnationsFrame,
    Position,
    ReadingFrame,
    RelayFrame,
    SkipFrame,
    TakenFrame,
    frame_weight,
    frame_work,
)
from gatepost.delivery.inbox.cursors import read_positions
from gatepost.delivery.inbox.resuming import (
    ask_to_resume,
    find_restored,
    find_resumed,
    is_in_doubt,
    note_resumed,
)
from gatepost.delivery.incarnations import incarnation_at
from gatepost.delivery.local_node import LocalNode
from gatepost.errors import GatepostError, LinkError
from gatepost.events import Envelope
from gatepost.journal.outbox import OutboxGroup
from gatepost.journal.transaction import Tx, try_operation
from gatepost.links.link_delay import LinkDelay
from gatepost.links.link_port import LinkPort, ignore_result
from gatepost.links.proof import check_incarnations, check_relayed_events, sign_reading

# How often a source gets our position. A longer interval only delays its pruning.
_READING_MS = 1_000

T = TypeVar("T")


class RelayRetry(Struct, frozen=True):
    """Times in milliseconds.

    A relay that fails us with a source is not asked for it for `first_ban_ms`, twice as long each
    time after that, `max_ban_ms` at most. A relay that has not shown an outbox within
    `next_relay_ms` is joined by the next one.
    """

    first_ban_ms: int = 30_000
    max_ban_ms: int = 3_600_000
    next_relay_ms: int = 5_000


class RelayBlame(Struct):
    """How often a relay failed for a source, and until when it is not asked."""

    failures: int = 0
    since: int = 0
    until: int = 0


class RelayedResult(NamedTuple):
    """The error of a relayed frame that was not taken, and the new position in its outbox.

    `scanned`: its events were only searched, not taken; `restart` if they must come again.
    """

    error: GatepostError | None
    position: Position
    scanned: bool = False
    restart: bool = False


class RelayReader:
    """Call `refresh_requests` whenever links or the room have changed, and every few seconds."""

    def __init__(
        self,
        node: LocalNode,
        coordinator: DeliveryCoordinator,
        window: int,
        retry: RelayRetry | None = None,
    ) -> None:
        self._node = node
        self.incarnation = node.incarnation
        self.coordinator = coordinator
        self.window = window
        self._retry = retry or RelayRetry()
        self._parts: list[RelayReaderPart] = []
        self._blamed: dict[tuple[str, str], RelayBlame] = {}
        # Outbox → since when it is missing; 0 while no relay can be asked.
        self._missed: dict[str, int] = {}

    def make_part(self, port: LinkPort, peer: str, *, relays: bool) -> "RelayReaderPart":
        """`relays`: the peer is a relay that may be asked."""
        return RelayReaderPart(self, port, peer, relays)

    def add_part(self, part: "RelayReaderPart") -> None:
        self._parts.append(part)
        self.refresh_requests()

    def remove_part(self, part: "RelayReaderPart") -> None:
        if part in self._parts:
            self._parts.remove(part)
            self.refresh_requests()

    def refresh_requests(self) -> None:
        """Request each outbox without a link from a relay that has it, or from several relays."""
        linked = {part.peer for part in self._parts}
        members = self.coordinator.routes.directory.gateways.keys()
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
        now = ranked[0].now()
        # The clock may have gone back: count from now then.
        since = self._missed[source] = min(self._missed[source] or now, now)
        return [part.peer for part in ranked[: 1 + (now - since) // self._retry.next_relay_ms]]

    def relay_of(self, source: str) -> str | None:
        """The relay that supplies an outbox without a direct link; None if no relay has it."""
        return next((part.peer for part in self._parts if part.brings_source(source)), None)

    def sign_reading(self, taken: TakenFrame) -> ReadingFrame:
        node = self._node
        position = (taken.source, taken.incarnation, taken.upto)
        return sign_reading(node.key, node.id, node.incarnation, position)

    def require_key(self, node: str) -> bytes:
        found = self.coordinator.routes.directory.gateways.get(node)
        if found is None:
            raise LinkError(f"{node} is not in this room")
        return found.key

    def blame_relay(self, relay: str, source: str, now: int) -> None:
        blame = self._blamed.setdefault((relay, source), RelayBlame())
        ban = min(self._retry.first_ban_ms << min(blame.failures, 20), self._retry.max_ban_ms)
        blame.since, blame.until = now, now + ban
        blame.failures += 1

    def clear_blame(self, relay: str, source: str) -> None:
        self._blamed.pop((relay, source), None)

    def _is_blamed(self, part: "RelayReaderPart", source: str) -> bool:
        blame = self._blamed.get((part.peer, source))
        # A time before the ban means that the clock has gone back: the ban is over.
        return blame is not None and blame.since <= part.now() < blame.until


class RelayReaderPart:
    """A reader's part of one link."""

    def __init__(self, reader: RelayReader, port: LinkPort, peer: str, relays: bool) -> None:
        self._reader = reader
        self._port = port
        self.peer = peer
        self.relays = relays
        self._wants: list[str] = []
        self._incarnations: dict[str, list[Incarnation]] = {}
        # Outboxes whose events were searched and not taken; used in transactions only.
        self._scanned: set[str] = set()
        # Outboxes that are read again from our position; events are stale until the relay restarts.
        self._restarting: set[str] = set()
        self._unsent_readings: dict[str, TakenFrame] = {}
        self._readings_sent_at = 0
        self.now = port.now
        self._delays: dict[str, LinkDelay] = {}

    def handle_hello(self, hello: HelloFrame) -> None:
        self._reader.add_part(self)

    def publish_group(self, group: OutboxGroup) -> None:
        """Ignored, because other nodes read our outbox."""

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
        """Whether this relay is known to keep that outbox."""
        return source in self._incarnations

    def brings_source(self, source: str) -> bool:
        return source in self._wants and self.has_source(source)

    def ignores_source(self, source: str) -> bool:
        """Whether events of that outbox are stale until the relay begins anew."""
        return source in self._restarting

    def request_sources(self, wants: list[str]) -> None:
        """Ask this relay for these outboxes, unless it serves exactly these already."""
        if not self.relays or wants == self._wants:
            return
        self._wants = wants
        self._port.commit(
            lambda tx: read_positions(tx, wants),
            lambda found: self._port.send(RelayFrame(found, wants, self._reader.window)),
        )

    def _learn_incarnations(self, frame: IncarnationsFrame) -> None:
        self._check_or_blame(frame.source, lambda key: check_incarnations(frame, key))
        self._incarnations[frame.source] = frame.incarnations
        self._restarting.discard(frame.source)

    def _take_events(self, frame: EventsFrame) -> None:
        """Proven events are taken even from a relay that is no longer asked for them."""
        if self.ignores_source(frame.source):
            self._return_credit(frame)
            return
        incarnations = self._incarnations.get(frame.source, [])
        envelopes = self._check_or_blame(
            frame.source, lambda key: check_relayed_events(frame, incarnations, key)
        )
        self._port.commit(
            lambda tx: self._take_or_scan(tx, frame, envelopes, incarnations),
            lambda result: self._confirm_taken(frame, result),
            frame_work(frame),
        )

    def _check_or_blame(self, source: str, check: Callable[[bytes], T]) -> T:
        """Run `check`; if it fails, blame the relay and raise an incident."""
        try:
            return check(self._reader.require_key(source))
        except LinkError as error:
            detail = error.message
            self._reader.blame_relay(self.peer, source, self._port.now())
            self._port.commit(lambda tx: self._raise_incident(tx, source, detail), ignore_result)
            raise

    def _take_or_scan(
        self,
        tx: Tx,
        frame: EventsFrame,
        envelopes: list[Envelope],
        incarnations: Sequence[Incarnation],
    ) -> RelayedResult:
        source = frame.source
        if is_in_doubt(tx, source):
            self._scanned.add(source)
            self._look_for_resumed(tx, source, envelopes, incarnations)
        if source not in self._scanned:
            return self._take_batch(tx, frame, envelopes)
        start = (source, frame.incarnation, frame.first_seq - 1)
        position = (read_positions(tx, [source]) or [start])[-1]
        return RelayedResult(None, position, scanned=True, restart=not is_in_doubt(tx, source))

    def _look_for_resumed(
        self,
        tx: Tx,
        source: str,
        envelopes: list[Envelope],
        incarnations: Sequence[Incarnation],
    ) -> None:
        """After a restore, search the events for `resumed` of the source; they count only then."""
        coordinator = self._reader.coordinator
        asked = find_restored(source, envelopes, incarnations[-1][0]) if incarnations else []
        coordinator.apply_decisions(tx, asked[-1:])
        through = find_resumed(envelopes, self._reader.incarnation)
        if through is None:
            ask_to_resume(tx, source, coordinator.writer, self._reader.incarnation)
            return
        note_resumed(tx, source)
        if through:
            name, first_seq = incarnation_at(incarnations, through + 1)
            coordinator.skip_events(tx, SkipFrame(source, name, first_seq, through, "restored"))

    def _take_batch(self, tx: Tx, frame: EventsFrame, envelopes: list[Envelope]) -> RelayedResult:
        """Take the events as if they came from their source, or none of them with a reason."""
        batch = self._make_batch(tx, frame, envelopes)
        take_batch = self._reader.coordinator.take_batch
        # A bad event of one source must not end the relay's link for the others.
        _, error = try_operation(tx, lambda tx: take_batch(tx, batch))
        if error is not None:
            self._raise_incident(tx, frame.source, error.message)
        return RelayedResult(error, (frame.source, frame.incarnation, envelopes[-1].seq))

    def _make_batch(self, tx: Tx, frame: EventsFrame, envelopes: list[Envelope]) -> EventBatch:
        """A batch of signed facts only: it ends with its last event, not at the relay's claim."""
        last = envelopes[-1]
        delay = self._delays.setdefault(frame.source, LinkDelay())
        arrived = delay.emitter_time(frame.now, self._port.uptime())
        now = max(last.created_at, min(arrived, tx.now))
        return EventBatch(
            frame.source, frame.incarnation, frame.first_seq, last.seq, now, frame.events
        )

    def _confirm_taken(self, frame: EventsFrame, result: RelayedResult) -> None:
        if result.error is not None:
            self._leave_source(frame)
            return
        self._reader.clear_blame(self.peer, frame.source)
        taken = TakenFrame(*result.position, frame_weight(frame), "relay")
        self._port.send(taken)
        if not result.scanned:
            self._unsent_readings[taken.source] = taken
            self.send_readings()
        elif result.restart:
            self._restart_source(frame.source)

    def _leave_source(self, frame: EventsFrame) -> None:
        """Stop asking this relay for an outbox for a while, and ask the others.

        The events are signed, and yet cannot be taken: the relay left some out, or their source
        signed nonsense. It is unknown which, so the relay keeps its link.
        """
        self._reader.blame_relay(self.peer, frame.source, self._port.now())
        self._restarting.add(frame.source)
        self._incarnations.pop(frame.source, None)
        self._return_credit(frame)
        self._reader.refresh_requests()

    def _return_credit(self, frame: EventsFrame) -> None:
        """Return the credit of a frame that was not taken, because it is not kept either."""
        position = (frame.source, frame.incarnation, frame.first_seq - 1)
        self._port.send(TakenFrame(*position, frame_weight(frame), "relay"))

    def _restart_source(self, source: str) -> None:
        """Read an outbox again from our position, because its events were only searched."""
        if source in self._restarting or source not in self._wants:
            return
        wants = self._wants
        self.request_sources([each for each in wants if each != source])
        self._port.commit(lambda tx: self._scanned.discard(source), ignore_result)
        self._restarting.add(source)
        self.request_sources(wants)

    def send_readings(self) -> None:
        """Send our positions to the sources, once a second at most."""
        # The clock may have gone back: then the time since the last readings is negative.
        waited = not 0 <= self.now() - self._readings_sent_at < _READING_MS
        if self._unsent_readings and waited:
            self._readings_sent_at = self.now()
            unsent, self._unsent_readings = self._unsent_readings, {}
            for taken in unsent.values():
                self._port.send(self._reader.sign_reading(taken))

    def _raise_incident(self, tx: Tx, source: str, detail: str) -> None:
        incidents = self._reader.coordinator.incidents
        incidents.raise_(tx, "relay", f"{self.peer}/{source}", detail)
