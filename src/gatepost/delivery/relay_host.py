"""A relay: it keeps outboxes for those who cannot reach their nodes, and serves them with proof.

It follows a source over its own link with it, so what it has by relay it does not relay. It checks
every group before it keeps it; and whoever gets it from here checks it again, so nobody has to
trust a relay. What was stored a moment ago goes to its readers from memory.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from gatepost.delivery import replica
from gatepost.delivery.frames import (
    AnyFrame,
    CommitGroup,
    EventsFrame,
    FollowFrame,
    HelloFrame,
    Incarnation,
    IncarnationsFrame,
    ReadingFrame,
    RelayFrame,
    TakenFrame,
    frame_weight,
)
from gatepost.delivery.incarnations import incarnation_at, position_after
from gatepost.delivery.messages import Messages
from gatepost.delivery.outbox_feed import LinkPort
from gatepost.delivery.proof import check_group, check_incarnations, read_event
from gatepost.delivery.replica import (
    ReaderProgress,
    ReplicaExcerpt,
    ReplicaPosition,
    ReplicaRow,
    ReplicaState,
)
from gatepost.errors import LinkError
from gatepost.events import event_digest, genesis
from gatepost.journal.outbox import EVERYBODY, Appended
from gatepost.journal.tx import Tx

# How long what no reader took is kept.
REPLICA_KEEP_MS = 48 * 3_600_000
# No commit group has more events than this; one that has cannot be relayed.
MAX_GROUP_EVENTS = 1 << 20


CommitOperation = Callable[[Callable[[Tx], Any], Callable[[Any], None]], None]


class StoredGroups(Struct, frozen=True):
    """Groups just stored, whole: from `first` to `last` of one life."""

    source: str
    incarnation: Incarnation
    first: int
    last: int
    rows: list[ReplicaRow]
    groups: list[CommitGroup]


class RelayHost:
    """What a gateway does as a relay. `load` it, then give every link a part of it.

    Everything but `load` and what is committed runs where links do.
    """

    def __init__(self, messages: Messages, window: int, keep: int = REPLICA_KEEP_MS) -> None:
        self._messages = messages
        self.window = window
        self._keep = keep
        self._wanted: set[str] = set()
        self._parts: list[RelayHostPart] = []
        self._clocks: dict[str, int] = {}
        self._readings: dict[tuple[str, str], ReadingFrame] = {}

    def load_sources(self, tx: Tx) -> None:
        self._wanted = replica.replicated_sources(tx)

    def make_part(self, port: LinkPort, peer: str) -> "RelayHostPart":
        return RelayHostPart(self, port, peer)

    def find_key(self, node: str) -> bytes | None:
        """The key of a member; whoever is none gets nothing and gives nothing."""
        found = self._messages.sender.directory.gateways.get(node)
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
        """One link to a source is enough to follow it."""
        links = [part for part in self._parts if part.peer == source]
        if source in self._wanted and links and not any(part.is_following for part in links):
            links[0].start_following()

    def retry_unserved(self) -> None:
        """Who was asked for and unknown may be a member now."""
        for part in self._parts:
            part.retry_unserved()

    def want_source(self, source: str) -> None:
        self._wanted.add(source)
        self._follow_source(source)

    def restart_following(self, source: str) -> None:
        """Somebody needs it from further behind than it is kept."""
        for part in self._parts:
            if part.peer == source and part.is_following:
                part.start_following()

    def forward_reading(self, said: ReadingFrame) -> None:
        """Pass it on, now or when we meet; only the last word counts."""
        source = next((part for part in self._parts if part.peer == said.source), None)
        if source is not None:
            source.send_reading(said)
        elif said.source in self._wanted:
            self._readings[said.source, said.reader] = said

    # -- what comes of it

    def announce_incarnations(self, lives: IncarnationsFrame) -> None:
        for part in self._parts:
            part.learn_incarnations(lives)

    def push_groups(self, fresh: StoredGroups) -> None:
        for part in self._parts:
            part.push_groups(fresh)

    def mark_grown(self, source: str) -> None:
        for part in self._parts:
            part.mark_grown(source)

    def note_clock(self, source: str, ahead: int) -> None:
        self._clocks[source] = ahead

    def estimate_clock(self, source: str, now: int) -> int:
        """What the clock of a source says, going by what it said last."""
        return max(0, now + self._clocks.get(source, 0))

    def raise_gap(self, tx: Tx, source: str, seq: int, first: int) -> None:
        detail = f"the replica goes on at {first} after {seq}: its source has nothing in between"
        self._messages.incidents.raise_(tx, "replica_gap", f"{source}/{first}", detail)

    # -- forgetting, every now and then

    def prune_replicas(self, commit: CommitOperation) -> None:
        moved = {
            (source, part.peer): at
            for part in self._parts
            for source, at in part.reader_progress().items()
        }
        commit(lambda tx: replica.prune_replicas(tx, moved, self._keep), self._drop_unwanted)

    def _drop_unwanted(self, unwanted: set[str]) -> None:
        self._wanted -= unwanted
        for part in self._parts:
            if part.peer in unwanted:
                part.stop_following()


class RelayHostPart:
    """A relay's part of one link: it follows the other side, or serves it, or both."""

    def __init__(self, host: RelayHost, port: LinkPort, peer: str) -> None:
        self._host = host
        self._port = port
        self.peer = peer
        self._following: ReplicaFollower | None = None
        self._serving: RelayFeed | None = None
        self._incarnations: list[Incarnation] = []
        self._unanswered = 0
        # What the other side wants, if some of it is of nodes we have not heard of yet.
        self._unserved: RelayFrame | None = None

    @property
    def is_following(self) -> bool:
        return self._unanswered > 0 or self._following is not None

    def handle_hello(self, hello: HelloFrame) -> None:
        self._incarnations = hello.incarnations
        self._host.add_part(self)

    def publish_group(self, group: Appended) -> None:
        """Our own outbox is no replica."""

    def close(self) -> None:
        self._following, self._serving, self._unanswered = None, None, 0
        self._unserved = None
        self._host.remove_part(self)

    def receive_frame(self, frame: AnyFrame) -> bool:
        match frame:
            case RelayFrame():
                self._handle_relay(frame)
            case TakenFrame(stream="relay"):
                if self._serving is not None:
                    self._serving.take_credit(frame)
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
        """Follow the other side, from where somebody needs it."""
        self._unanswered += 1
        self._port.commit(
            lambda tx: replica.begin_following(tx, self.peer, self._incarnations), self._send_follow
        )

    def stop_following(self) -> None:
        if self.is_following:
            self._unanswered += 1
            self._following = None
            self._port.send(FollowFrame([], 0))

    def _send_follow(self, place: ReplicaPosition | None) -> None:
        if place is None:
            self._unanswered -= 1
            return
        self._following = ReplicaFollower(self._host, self._port, self.peer, place)
        position = (self.peer, place.incarnation, place.seq)
        self._port.send(FollowFrame([position], self._host.window))

    def _handle_incarnations(self, lives: IncarnationsFrame) -> None:
        if self._unanswered == 0:
            raise LinkError(f"{self.peer} answers what nobody asked")
        self._unanswered -= 1
        if self._following is None or self._unanswered:
            return
        key = self._host.find_key(self.peer)
        if key is None:
            raise LinkError(f"{self.peer} is not in this room")
        check_incarnations(lives, key)
        self._following.set_source(lives.incarnations, key)
        self._port.commit(
            lambda tx: replica.save_incarnations(tx, lives),
            lambda _: self._host.announce_incarnations(lives),
        )

    def _handle_events(self, frame: EventsFrame) -> None:
        # Until the last Follow is answered, what comes belongs to an earlier one.
        if self._unanswered == 0 and self._following is not None:
            self._following.take_events(frame)

    # -- serving

    def _handle_relay(self, frame: RelayFrame) -> None:
        if self._host.find_key(self.peer) is None:
            raise LinkError(f"{self.peer} is not in this room")
        if self._serving is None:
            window = min(frame.window, self._host.window)
            self._serving = RelayFeed(self._host, self._port, self.peer, window)
        wants = [each for each in frame.wants if each != self.peer and self._host.find_key(each)]
        self._unserved = frame if len(wants) < len(frame.wants) else None
        self._port.commit(
            lambda tx: replica.save_reader(tx, self.peer, wants, frame.positions),
            lambda found: self._start_serving(frame, found),
        )

    def retry_unserved(self) -> None:
        if self._unserved is not None and self._host.find_key(self.peer) is not None:
            self._handle_relay(self._unserved)

    def _start_serving(self, frame: RelayFrame, found: dict[str, tuple[ReplicaState, int]]) -> None:
        if self._serving is None:
            return
        self._serving.set_wants(frame, found)
        for source in found:
            self._host.want_source(source)

    def _handle_reading(self, said: ReadingFrame) -> None:
        if said.reader != self.peer:
            raise LinkError(f"{self.peer} says how far {said.reader} has read")
        self._host.forward_reading(said)

    def send_reading(self, said: ReadingFrame) -> None:
        self._port.send(said)

    def learn_incarnations(self, lives: IncarnationsFrame) -> None:
        if self._serving is not None:
            self._serving.learn_incarnations(lives)

    def push_groups(self, fresh: StoredGroups) -> None:
        if self._serving is not None:
            self._serving.push_groups(fresh)

    def mark_grown(self, source: str) -> None:
        if self._serving is not None:
            self._serving.mark_grown(source)

    def reader_progress(self) -> dict[str, ReaderProgress]:
        return {} if self._serving is None else self._serving.reader_progress()


class ReplicaFollower:
    """Reads all of one outbox, checks it group by group, and stores it."""

    def __init__(
        self, host: RelayHost, port: LinkPort, source: str, place: ReplicaPosition
    ) -> None:
        self._host = host
        self._port = port
        self._source = source
        self._stored = place
        self._incarnations: Sequence[Incarnation] = ()
        self._key = b""
        self._incarnation = place.incarnation
        self._seq = place.seq
        self._chain = place.chain
        self._tail: list[bytes] = []
        self._first = True

    def set_source(self, lives: Sequence[Incarnation], key: bytes) -> None:
        self._incarnations, self._key = lives, key

    def take_events(self, frame: EventsFrame) -> None:
        if frame.source != self._source:
            raise LinkError(f"{self._source} sent the outbox of {frame.source} as its own")
        rows = self._read_rows(frame)
        if not rows:
            raise LinkError(f"{self._source} sent nothing")
        self._enter_incarnation(frame, rows[0][0])
        self._check_gapless(rows)
        self._host.note_clock(self._source, frame.now - self._port.now())
        first = self._seq + 1
        whole = not self._tail
        self._tail += [row[3] for row in rows]
        groups = [self._close_group(group) for group in frame.groups]
        if len(self._tail) > MAX_GROUP_EVENTS:
            raise LinkError(f"{self._source} has a commit group without an end")
        fresh = None
        if whole and groups:
            inside = [row for row in rows if row[0] <= self._seq]
            life = (frame.incarnation, frame.first_seq)
            fresh = StoredGroups(self._source, life, first, self._seq, inside, groups)
        self._store_rows(frame, rows, groups, fresh)

    def _read_rows(self, frame: EventsFrame) -> list[ReplicaRow]:
        everyone = set(frame.everyone)
        rows: list[ReplicaRow] = []
        for body in frame.events:
            envelope = read_event(self._source, body)
            to = EVERYBODY if envelope.seq in everyone else envelope.to_node_id
            rows.append((envelope.seq, to, body, event_digest(body)))
        return rows

    def _enter_incarnation(self, frame: EventsFrame, first: int) -> None:
        """A new life starts with its genesis; a source may start later than it was asked to."""
        if (frame.incarnation, frame.first_seq) not in self._incarnations:
            raise LinkError(f"{self._source} sent a life it does not have")
        if frame.incarnation != self._incarnation:
            if self._tail:
                raise LinkError(f"{self._source} ends a life in the middle of a group")
            self._incarnation, self._seq = frame.incarnation, frame.first_seq - 1
            self._chain = genesis(self._source, frame.incarnation)
        if self._first and (self._chain is None or first > self._seq + 1):
            if first > self._seq + 1:
                self._report_gap(self._seq, first)
            self._seq, self._chain = first - 1, None
        self._first = False

    def _report_gap(self, seq: int, first: int) -> None:
        self._port.commit(
            lambda tx: self._host.raise_gap(tx, self._source, seq, first), _ignore_result
        )

    def _check_gapless(self, rows: Sequence[ReplicaRow]) -> None:
        expected = self._seq + len(self._tail) + 1
        if [row[0] for row in rows] != list(range(expected, expected + len(rows))):
            raise LinkError(f"{self._source} leaves out events: {expected} should be next")

    def _close_group(self, group: CommitGroup) -> CommitGroup:
        """A group is complete if it goes on where the last one ended, and is what was signed."""
        size = group.last - self._seq
        if group.first != self._seq + 1 or not 0 < size <= len(self._tail):
            raise LinkError(f"a group of {self._source} does not start where the last one ended")
        if self._chain not in (None, group.previous):
            raise LinkError(f"the outbox of {self._source} is not the one it was")
        digests, self._tail = self._tail[:size], self._tail[size:]
        check_group(self._source, self._incarnation, group, digests, self._key)
        self._seq, self._chain = group.last, group.chain
        return CommitGroup(
            group.first, group.last, group.previous, group.chain, group.signature, b"".join(digests)
        )

    def _store_rows(
        self,
        frame: EventsFrame,
        rows: list[ReplicaRow],
        groups: list[CommitGroup],
        fresh: StoredGroups | None,
    ) -> None:
        before = self._stored
        now = ReplicaPosition(self._incarnation, self._seq, self._chain) if groups else before
        self._stored = now

        def store(tx: Tx) -> bool:
            if groups and not replica.advance_replica(tx, self._source, before, now):
                return False
            replica.store_rows(tx, self._source, frame.incarnation, rows, groups)
            return True

        self._port.commit(store, lambda kept: self._confirm_stored(frame, kept, groups, fresh))

    def _confirm_stored(
        self, frame: EventsFrame, kept: bool, groups: list[CommitGroup], fresh: StoredGroups | None
    ) -> None:
        size = frame_weight(frame)
        self._port.send(TakenFrame(frame.source, frame.incarnation, frame.upto, size, "follow"))
        if kept and fresh is not None:
            self._host.push_groups(fresh)
        elif kept and groups:
            self._host.mark_grown(frame.source)


class ReaderShelf(Struct):
    """One reader's place in one replica. `position` is how far it was sent all there is for it."""

    positions: list[tuple[str, str, int]]
    through: int
    incarnations: IncarnationsFrame | None = None
    position: int = 0
    caught_up: bool = False
    sent: int = 0
    taken: int = 0


class RelayFeed:
    """One reader, all it wants of what we keep, in turns, as fast as it takes it."""

    def __init__(self, host: RelayHost, port: LinkPort, reader: str, credit: int) -> None:
        self._host = host
        self._port = port
        self._reader = reader
        self._window = self._credit = credit
        self._reading = False
        self._shelves: dict[str, ReaderShelf] = {}

    def set_wants(self, frame: RelayFrame, found: dict[str, tuple[ReplicaState, int]]) -> None:
        before = self._shelves
        self._shelves = {}
        for source, (kept, through) in found.items():
            if source in before:
                self._shelves[source] = before[source]
                continue
            said = [each for each in frame.positions if each[0] == source]
            self._shelves[source] = ReaderShelf(said, through)
            if kept.incarnations is not None:
                self.learn_incarnations(kept.incarnations)
        self.pump()

    def learn_incarnations(self, lives: IncarnationsFrame) -> None:
        """Where the lives changed, a reader goes on where they forked."""
        shelf = self._shelves.get(lives.source)
        if shelf is None or shelf.incarnations == lives:
            return
        if shelf.incarnations is None:
            shelf.position = max(
                position_after(lives.incarnations, shelf.positions, lives.source), shelf.through
            )
        else:
            life = incarnation_at(shelf.incarnations.incarnations, shelf.position)
            there = (lives.source, life[0], shelf.position)
            shelf.position = position_after(lives.incarnations, [there], lives.source)
            shelf.through = min(shelf.through, shelf.position)
            shelf.sent = min(shelf.sent, shelf.position)
        shelf.incarnations, shelf.caught_up = lives, False
        self._port.send(lives)
        self.pump()

    def take_credit(self, frame: TakenFrame) -> None:
        shelf = self._shelves.get(frame.source)
        if shelf is not None:
            shelf.positions = [(frame.source, frame.incarnation, frame.upto)]
            shelf.taken = frame.upto
        self._credit = min(self._window, self._credit + frame.size)
        self.pump()

    def mark_grown(self, source: str) -> None:
        shelf = self._shelves.get(source)
        if shelf is not None:
            shelf.caught_up = False
            self.pump()

    def push_groups(self, fresh: StoredGroups) -> None:
        """Pass on what was just stored, unless others have to go first."""
        shelf = self._shelves.get(fresh.source)
        if shelf is None or shelf.incarnations is None or not self._host.find_key(fresh.source):
            return
        if shelf.caught_up and self._credit > 0 and shelf.position == fresh.first - 1:
            shelf.position = fresh.last
            mine = [row for row in fresh.rows if row[1] in (self._reader, EVERYBODY)]
            groups = list(_groups_holding(fresh.groups, [row[0] for row in mine]))
            last = mine[-1][0] if mine else fresh.last
            bodies = [row[2] for row in mine]
            self._send_events(
                fresh.source,
                ReplicaExcerpt(fresh.incarnation, fresh.last, True, last, bodies, groups),
            )
        elif shelf.position < fresh.last:
            self.mark_grown(fresh.source)

    def pump(self) -> None:
        """Go on as far as credit allows, with whoever waited longest."""
        if self._reading or self._credit <= 0:
            return
        for source, shelf in self._shelves.items():
            if (
                shelf.incarnations is not None
                and not shelf.caught_up
                and self._host.find_key(source)
            ):
                self._read_excerpt(source, shelf, shelf.incarnations)
                return

    def _read_excerpt(self, source: str, shelf: ReaderShelf, lives: IncarnationsFrame) -> None:
        self._reading = True
        del self._shelves[source]
        self._shelves[source] = shelf
        position = shelf.position
        self._port.commit(
            lambda tx: replica.read_excerpt(tx, source, self._reader, lives.incarnations, position),
            lambda found: self._send_excerpt(source, shelf, lives, found),
        )

    def _send_excerpt(
        self,
        source: str,
        shelf: ReaderShelf,
        lives: IncarnationsFrame,
        found: ReplicaExcerpt | None,
    ) -> None:
        self._reading = False
        if found is None:
            shelf.caught_up = True
            self._host.restart_following(source)
        elif shelf.incarnations == lives and self._shelves.get(source) is shelf:
            shelf.position = max(shelf.position, found.upto)
            shelf.caught_up = found.complete
            self._send_events(source, found)
        self.pump()

    def _send_events(self, source: str, found: ReplicaExcerpt) -> None:
        if not found.events:
            return
        now = self._host.estimate_clock(source, self._port.now())
        frame = EventsFrame(
            source, *found.incarnation, found.last, now, found.events, found.groups, "relay"
        )
        self._credit -= frame_weight(frame)
        self._shelves[source].sent = found.last
        self._port.send(frame)

    def reader_progress(self) -> dict[str, ReaderProgress]:
        """Where the reader is, for the journal."""
        known = {
            each: shelf for each, shelf in self._shelves.items() if shelf.incarnations is not None
        }
        for shelf in known.values():
            if shelf.taken >= shelf.sent:
                shelf.through = shelf.position
        return {
            source: ReaderProgress(shelf.positions, shelf.through)
            for source, shelf in known.items()
        }


def _groups_holding(groups: Iterable[CommitGroup], seqs: Sequence[int]) -> Iterable[CommitGroup]:
    for group in groups:
        place = bisect_left(seqs, group.first)
        if place < len(seqs) and seqs[place] <= group.last:
            yield group


def _ignore_result(value: object) -> None:
    """There is nothing to do with it."""
