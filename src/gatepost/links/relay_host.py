"""A relay keeps outboxes for readers that cannot reach their nodes, and serves them with proof.

A relay follows a source over its own link with that source, so it never relays a relayed outbox. It
checks every commit group before it keeps it. A reader checks each group again, so it need not trust
a relay. Groups that were stored a moment ago go to readers from memory.

proof.py has the rules of relays and proofs.
"""

import logging
from collections.abc import Sequence

from msgspec import Struct

from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.frames import (
    AnyFrame,
    EventsFrame,
    FollowFrame,
    HelloFrame,
    Incarnation,
    IncarnationsFrame,
    ReadingFrame,
    RelayFrame,
    TakenFrame,
)
from gatepost.errors import GatepostError, LinkError, Unavailable
from gatepost.journal.outbox import OutboxGroup
from gatepost.journal.transaction import Tx
from gatepost.links import outbox_replica
from gatepost.links.link_port import JournalCommit, LinkPort
from gatepost.links.outbox_replica import ReaderProgress, ReplicaPosition, ReplicaState
from gatepost.links.proof import check_incarnations, check_reading
from gatepost.links.relay_feed import RelayFeed
from gatepost.links.replica_follower import ReplicaFollower, StoredGroups

log = logging.getLogger(__name__)

# How long a relay keeps events that a reader has not taken.
REPLICA_KEEP_MS = 48 * 3_600_000


# The first pause before an outbox is followed again for a reader that does not advance.
_FIRST_RESTART_MS = 15_000
_MAX_RESTART_MS = 86_400_000


class ReplicaRestart(Struct, frozen=True):
    """A replica was started again at `at`, because a reader was only at `position`.

    Another restart for the same position comes after `pause` milliseconds at the earliest.
    """

    position: int
    at: int
    pause: int

    def is_recent(self, now: int) -> bool:
        # The clock may have gone back: then the time since the restart is negative.
        return 0 <= now - self.at < self.pause


class RelayHost:
    """The relayed outboxes of one gateway. Every link of a relay gets a part of it.

    It runs where links run; only the operations it commits run in the writer's thread.
    """

    def __init__(
        self, coordinator: DeliveryCoordinator, window: int, keep_ms: int = REPLICA_KEEP_MS
    ) -> None:
        self._coordinator = coordinator
        self.window = window
        self._keep_ms = keep_ms
        self._wanted: set[str] = set()
        self._parts: list[RelayHostPart] = []
        self._clocks: dict[str, int] = {}
        self._readings: dict[tuple[str, str], ReadingFrame] = {}
        # (Source, reader) of the readings that were passed on since the last flush.
        self._passed_readings: set[tuple[str, str]] = set()
        # (Source, reader) → the last restart on behalf of that reader.
        self._restarts: dict[tuple[str, str], ReplicaRestart] = {}
        # (Source, reader) of restarts that came too early.
        self._delayed_restarts: set[tuple[str, str]] = set()

    def make_part(self, port: LinkPort, peer: str) -> "RelayHostPart":
        return RelayHostPart(self, port, peer)

    def find_key(self, node: str) -> bytes | None:
        """The public key of a member. A relay serves members only."""
        found = self._coordinator.routes.directory.gateways.get(node)
        return None if found is None else found.key

    # -- links come and go

    def add_part(self, part: "RelayHostPart") -> None:
        self._parts.append(part)
        for key in [each for each in self._readings if each[0] == part.peer]:
            part.send_reading(self._readings.pop(key))
        self._follow_source(part.peer)

    def remove_part(self, part: "RelayHostPart") -> None:
        if part in self._parts:
            self._parts.remove(part)
        self._follow_source(part.peer)

    def _follow_source(self, source: str) -> None:
        """Follow a wanted source over one of the links to it, once it is known as a member."""
        links = [part for part in self._parts if part.peer == source]
        is_wanted = source in self._wanted and self.find_key(source) is not None
        if is_wanted and links and not any(part.is_following for part in links):
            links[0].start_following()

    def retry_unserved(self) -> None:
        """The room changed: peers and sources that were unknown before may be members now."""
        for part in self._parts:
            part.retry_unserved()
        for source in self._wanted:
            self._follow_source(source)

    def want_source(self, source: str) -> None:
        """Somebody reads this outbox through us."""
        self._wanted.add(source)
        self._follow_source(source)

    def restart_following(self, source: str, reader: str, position: int) -> None:
        """A reader needs the outbox from further back than the replica reaches.

        All other readers of the source wait meanwhile. So a reader that has read nothing since the
        last restart has to wait for the next one.
        """
        for part in self._parts:
            if part.peer == source and part.is_following:
                if self._try_restart(source, reader, position, part.now()):
                    part.start_following()
                else:
                    self._delayed_restarts.add((source, reader))
                return

    def _try_restart(self, source: str, reader: str, position: int, now: int) -> bool:
        """Note that a reader restarts a replica; False if it does so again too soon."""
        last = self._restarts.get((source, reader))
        if last is None or position > last.position:
            self._restarts[source, reader] = ReplicaRestart(position, now, _FIRST_RESTART_MS)
            return True
        if last.is_recent(now):
            return False
        pause = min(last.pause * 2, _MAX_RESTART_MS)
        self._restarts[source, reader] = ReplicaRestart(position, now, pause)
        return True

    def retry_restarts(self) -> None:
        """Retry restarts that came too early; call it every second."""
        for source, reader in sorted(self._delayed_restarts):
            part = next((each for each in self._parts if each.peer == reader), None)
            last = self._restarts.get((source, reader))
            if part is not None and last is not None and last.is_recent(part.now()):
                continue
            self._delayed_restarts.discard((source, reader))
            if part is not None:
                part.mark_grown(source)

    def forward_reading(self, reading: ReadingFrame) -> None:
        """Pass a reader's progress on to the source, now or on its next link.

        Too frequent reports wait for `flush_readings`.
        """
        key = (reading.source, reading.reader)
        source = next((part for part in self._parts if part.peer == reading.source), None)
        if source is not None and key not in self._passed_readings:
            self._passed_readings.add(key)
            source.send_reading(reading)
        elif source is not None or reading.source in self._wanted:
            self._readings[key] = reading

    def flush_readings(self) -> None:
        """Pass on the progress that was reported too often; call it every second."""
        self._passed_readings.clear()
        linked = {part.peer: part for part in self._parts}
        for key in [each for each in self._readings if each[0] in linked]:
            linked[key[0]].send_reading(self._readings.pop(key))

    # -- changes of a replica, for all readers

    def announce_incarnations(self, incarnations: IncarnationsFrame) -> None:
        for part in self._parts:
            part.learn_incarnations(incarnations)

    def push_groups(self, stored: StoredGroups) -> None:
        for part in self._parts:
            part.push_groups(stored)

    def mark_grown(self, source: str) -> None:
        for part in self._parts:
            part.mark_grown(source)

    def note_clock(self, source: str, ahead: int) -> None:
        self._clocks[source] = ahead

    def estimate_clock(self, source: str, now: int) -> int:
        """The time at a source, by the last known offset of its clock."""
        return max(0, now + self._clocks.get(source, 0))

    def raise_gap(self, tx: Tx, source: str, seq: int, first: int) -> None:
        detail = f"the replica goes on at {first} after {seq}: its source has nothing in between"
        self._coordinator.incidents.raise_(tx, "replica_gap", f"{source}/{first}", detail)

    # -- forgetting, now and then

    def reader_progress(self) -> dict[tuple[str, str], ReaderProgress]:
        """Where the connected readers are, by (source, reader)."""
        return {
            (source, part.peer): at
            for part in self._parts
            for source, at in part.reader_progress().items()
        }

    def prune_replicas(self, commit: JournalCommit) -> None:
        progress = self.reader_progress()
        commit(
            lambda tx: outbox_replica.prune_replicas(tx, progress, self._keep_ms),
            self._drop_unwanted,
        )

    def _drop_unwanted(self, unwanted: set[str] | None, error: GatepostError | None) -> None:
        if unwanted is None:
            log.warning("outboxes kept for others were not pruned: %s", error)
            return
        self._wanted -= unwanted
        self._restarts = {key: e for key, e in self._restarts.items() if key[0] not in unwanted}
        for part in self._parts:
            if part.peer in unwanted:
                part.stop_following()


class RelayHostPart:
    """A relay's part of one link: follows the peer, serves it, or both."""

    def __init__(self, host: RelayHost, port: LinkPort, peer: str) -> None:
        self._host = host
        self._port = port
        self.peer = peer
        self.now = port.now
        self._follower: ReplicaFollower | None = None
        self._feed: RelayFeed | None = None
        self._incarnations: Sequence[Incarnation] = ()
        # How many Follow frames the peer has not answered yet.
        self._unanswered = 0
        self._restarts = False
        # The last of them ends the following.
        self._is_stopping = False
        # The peer's last request, until it is handled, and the outboxes of its latest one.
        self._request: RelayFrame | None = None
        self._wants: frozenset[str] = frozenset()
        # Outboxes that a request left out since the last one was handled. They start again, even if
        # a later request names them.
        self._dropped: set[str] = set()
        self._is_saving = False
        # The peer's last request, if it names nodes that we do not know yet.
        self._unserved: RelayFrame | None = None

    @property
    def is_following(self) -> bool:
        """Whether this part follows the peer, or is about to."""
        return self._follower is not None or (self._unanswered > 0 and not self._is_stopping)

    def handle_hello(self, hello: HelloFrame) -> None:
        self._incarnations = hello.incarnations
        self._host.add_part(self)

    def publish_group(self, group: OutboxGroup) -> None:
        """Never replicate our own outbox."""

    def close(self) -> None:
        self._follower, self._feed, self._unanswered = None, None, 0
        self._unserved = self._request = None
        self._host.remove_part(self)

    def receive_frame(self, frame: AnyFrame) -> bool:
        match frame:
            case RelayFrame():
                self._dropped |= self._wants.difference(frame.wants)
                self._wants = frozenset(frame.wants)
                self._request = frame
                self.resume_requests()
            case TakenFrame(stream="relay"):
                if self._feed is not None:
                    self._feed.take_credit(frame)
            case ReadingFrame():
                self._handle_reading(frame)
            case IncarnationsFrame(source=self.peer):
                self._handle_incarnations(frame)
            case EventsFrame(stream="follow"):
                self._handle_events(frame)
            case _:
                return False
        return True

    # -- following

    def start_following(self) -> None:
        """Follow the peer's outbox from where the furthest reader needs it.

        If the peer has not answered the last Follow yet, start again when it has.
        """
        self._restarts, self._is_stopping = self._unanswered > 0, False
        if self._restarts:
            return
        self._unanswered += 1
        progress = self._host.reader_progress()
        self._port.commit(lambda tx: self._find_position(tx, progress), self._send_follow)

    def _find_position(
        self, tx: Tx, progress: dict[tuple[str, str], ReaderProgress]
    ) -> ReplicaPosition | None:
        own = {key: at for key, at in progress.items() if key[0] == self.peer}
        outbox_replica.save_progress(tx, own)
        return outbox_replica.begin_following(tx, self.peer, self._incarnations)

    def stop_following(self) -> None:
        self._restarts = False
        if self.is_following:
            self._unanswered += 1
            self._follower, self._is_stopping = None, True
            self._port.send(FollowFrame([], 0))

    def _send_follow(self, position: ReplicaPosition | None) -> None:
        if position is None or self._is_stopping:
            self._unanswered -= 1
            if self._restarts:
                self.start_following()
            else:
                # An earlier follower was to start again, so it has missed events.
                self.stop_following()
            return
        self._follower = ReplicaFollower(self._host, self._port, self.peer, position)
        start = (self.peer, position.incarnation, position.seq)
        self._port.send(FollowFrame([start], self._host.window))

    def _handle_incarnations(self, frame: IncarnationsFrame) -> None:
        if self._unanswered == 0:
            raise LinkError(f"{self.peer} answers a question that was not asked")
        self._unanswered -= 1
        if self._unanswered == 0 and self._restarts:
            self.start_following()
            return
        if self._follower is None or self._unanswered:
            return
        key = self._host.find_key(self.peer)
        if key is None:
            raise Unavailable(f"{self.peer} is not in this room yet, or not any more")
        check_incarnations(frame, key)
        self._follower.set_source(frame.incarnations, key)
        self._port.commit(
            lambda tx: outbox_replica.save_incarnations(tx, frame),
            lambda _: self._host.announce_incarnations(frame),
        )

    def _handle_events(self, frame: EventsFrame) -> None:
        # Until the last Follow is answered, events belong to an earlier one.
        if self._unanswered == 0 and self._follower is not None:
            self._follower.take_events(frame)

    # -- serving

    def resume_requests(self) -> None:
        """Handle the peer's last request once the previous one is done and the queue drained."""
        frame = self._request
        if frame is not None and not self._is_saving and not self._port.is_congested:
            self._request = None
            self._handle_relay(frame)

    def _handle_relay(self, frame: RelayFrame) -> None:
        if self._host.find_key(self.peer) is None:
            # It may have just joined: links can be faster than room updates.
            self._unserved = frame
            return
        if self._feed is None:
            window = min(frame.window, self._host.window)
            self._feed = RelayFeed(self._host, self._port, self.peer, window)
        wants = [each for each in frame.wants if each != self.peer and self._host.find_key(each)]
        self._unserved = frame if len(wants) < len(frame.wants) else None
        self._is_saving = True
        dropped, self._dropped = self._dropped, set()
        self._port.commit(
            lambda tx: outbox_replica.save_reader(tx, self.peer, wants, frame.positions, dropped),
            lambda found: self._start_serving(frame, found, dropped),
        )

    def retry_unserved(self) -> None:
        if self._unserved is not None and self._host.find_key(self.peer) is not None:
            self._request = self._request or self._unserved
            self.resume_requests()

    def _start_serving(
        self, frame: RelayFrame, found: dict[str, tuple[ReplicaState, int]], dropped: set[str]
    ) -> None:
        self._is_saving = False
        if self._feed is None:
            return
        self._feed.set_wants(frame.positions, found, dropped)
        for source in found:
            self._host.want_source(source)
        self.resume_requests()

    def _handle_reading(self, reading: ReadingFrame) -> None:
        if reading.reader != self.peer:
            raise LinkError(f"{self.peer} says how far {reading.reader} has read")
        key = self._host.find_key(self.peer)
        # The source would end its link with us for a reading that its reader did not sign.
        if key is not None:
            check_reading(reading, key)
            self._host.forward_reading(reading)

    def send_reading(self, reading: ReadingFrame) -> None:
        self._port.send(reading)

    def learn_incarnations(self, incarnations: IncarnationsFrame) -> None:
        if self._feed is not None:
            self._feed.learn_incarnations(incarnations)

    def push_groups(self, stored: StoredGroups) -> None:
        if self._feed is not None:
            self._feed.push_groups(stored)

    def mark_grown(self, source: str) -> None:
        if self._feed is not None:
            self._feed.mark_grown(source)

    def reader_progress(self) -> dict[str, ReaderProgress]:
        return {} if self._feed is None else self._feed.reader_progress()
