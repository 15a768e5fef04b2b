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
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.feed import Port
from gatepost.delivery.frames import (
    AnyFrame,
    Events,
    Follow,
    Group,
    Hello,
    Life,
    Lives,
    Reading,
    Relay,
    Taken,
    weight,
)
from gatepost.delivery.lives import after, life_of
from gatepost.delivery.proof import check_group, check_lives, read_event
from gatepost.delivery.replica import Excerpt, Kept, Moved, Place, Row
from gatepost.errors import LinkError
from gatepost.events import event_digest, genesis
from gatepost.journal.outbox import EVERYBODY, Appended
from gatepost.journal.tx import Tx

# How long what no reader took is kept.
KEEP_MS = 48 * 3_600_000
# No commit group has more events than this; one that has cannot be relayed.
GROUP_EVENTS = 1 << 20


Commit = Callable[[Callable[[Tx], Any], Callable[[Any], None]], None]


class Fresh(Struct, frozen=True):
    """Groups just stored, whole: from `first` to `last` of one life."""

    source: str
    life: Life
    first: int
    last: int
    rows: list[Row]
    groups: list[Group]


class RelayHost:
    """What a gateway does as a relay. `load` it, then give every link a part of it.

    Everything but `load` and what is committed runs where links do.
    """

    def __init__(self, coordinator: DeliveryCoordinator, window: int, keep: int = KEEP_MS) -> None:
        self._coordinator = coordinator
        self.window = window
        self._keep = keep
        self._wanted: set[str] = set()
        self._parts: list[HostPart] = []
        self._clocks: dict[str, int] = {}
        self._readings: dict[tuple[str, str], Reading] = {}

    def load(self, tx: Tx) -> None:
        self._wanted = replica.sources(tx)

    def part(self, port: Port, peer: str) -> "HostPart":
        return HostPart(self, port, peer)

    def key_of(self, node: str) -> bytes | None:
        """The key of a member; whoever is none gets nothing and gives nothing."""
        found = self._coordinator.routes.directory.gateways.get(node)
        return None if found is None else found.key

    # -- links come and go

    def came(self, part: "HostPart") -> None:
        self._parts.append(part)
        for key in [each for each in self._readings if each[0] == part.peer]:
            part.tell(self._readings.pop(key))
        self._follow(part.peer)

    def went(self, part: "HostPart") -> None:
        if part in self._parts:
            self._parts.remove(part)
        self._follow(part.peer)

    def _follow(self, source: str) -> None:
        """One link to a source is enough to follow it."""
        links = [part for part in self._parts if part.peer == source]
        if source in self._wanted and links and not any(part.follows for part in links):
            links[0].follow()

    def room_changed(self) -> None:
        """Who was asked for and unknown may be a member now."""
        for part in self._parts:
            part.room_changed()

    def want(self, source: str) -> None:
        self._wanted.add(source)
        self._follow(source)

    def start_again(self, source: str) -> None:
        """Somebody needs it from further behind than it is kept."""
        for part in self._parts:
            if part.peer == source and part.follows:
                part.follow()

    def reading(self, said: Reading) -> None:
        """Pass it on, now or when we meet; only the last word counts."""
        source = next((part for part in self._parts if part.peer == said.source), None)
        if source is not None:
            source.tell(said)
        elif said.source in self._wanted:
            self._readings[said.source, said.reader] = said

    # -- what comes of it

    def tell(self, lives: Lives) -> None:
        for part in self._parts:
            part.learned(lives)

    def push(self, fresh: Fresh) -> None:
        for part in self._parts:
            part.push(fresh)

    def grew(self, source: str) -> None:
        for part in self._parts:
            part.grew(source)

    def heard_clock(self, source: str, ahead: int) -> None:
        self._clocks[source] = ahead

    def clock_of(self, source: str, now: int) -> int:
        """What the clock of a source says, going by what it said last."""
        return max(0, now + self._clocks.get(source, 0))

    def gap(self, tx: Tx, source: str, seq: int, first: int) -> None:
        detail = f"the replica goes on at {first} after {seq}: its source has nothing in between"
        self._coordinator.incidents.raise_(tx, "replica_gap", f"{source}/{first}", detail)

    # -- forgetting, every now and then

    def prune(self, commit: Commit) -> None:
        moved = {
            (source, part.peer): at for part in self._parts for source, at in part.moved().items()
        }
        commit(lambda tx: replica.prune(tx, moved, self._keep), self._pruned)

    def _pruned(self, unwanted: set[str]) -> None:
        self._wanted -= unwanted
        for part in self._parts:
            if part.peer in unwanted:
                part.unfollow()


class HostPart:
    """A relay's part of one link: it follows the other side, or serves it, or both."""

    def __init__(self, host: RelayHost, port: Port, peer: str) -> None:
        self._host = host
        self._port = port
        self.peer = peer
        self._following: Following | None = None
        self._serving: Serving | None = None
        self._lives: list[Life] = []
        self._asked = 0
        # What the other side wants, if some of it is of nodes we have not heard of yet.
        self._unserved: Relay | None = None

    @property
    def follows(self) -> bool:
        return self._asked > 0 or self._following is not None

    def greeted(self, hello: Hello) -> None:
        self._lives = hello.lives
        self._host.came(self)

    def appended(self, group: Appended) -> None:
        """Our own outbox is no replica."""

    def closed(self) -> None:
        self._following, self._serving, self._asked = None, None, 0
        self._unserved = None
        self._host.went(self)

    def receive(self, frame: AnyFrame) -> bool:
        match frame:
            case Relay():
                self._wants(frame)
            case Taken(stream="relay"):
                if self._serving is not None:
                    self._serving.taken(frame)
            case Reading():
                self._reads(frame)
            case Lives(source=self.peer):
                self._answered(frame)
            case Events(stream="follow"):
                self._events(frame)
            case _:
                return False
        return True

    # -- following

    def follow(self) -> None:
        """Follow the other side, from where somebody needs it."""
        self._asked += 1
        self._port.commit(lambda tx: replica.begin(tx, self.peer, self._lives), self._begin)

    def unfollow(self) -> None:
        if self.follows:
            self._asked += 1
            self._following = None
            self._port.send(Follow([], 0))

    def _begin(self, place: Place | None) -> None:
        if place is None:
            self._asked -= 1
            return
        self._following = Following(self._host, self._port, self.peer, place)
        position = (self.peer, place.incarnation, place.seq)
        self._port.send(Follow([position], self._host.window))

    def _answered(self, lives: Lives) -> None:
        if self._asked == 0:
            raise LinkError(f"{self.peer} answers what nobody asked")
        self._asked -= 1
        if self._following is None or self._asked:
            return
        key = self._host.key_of(self.peer)
        if key is None:
            raise LinkError(f"{self.peer} is not in this room")
        check_lives(lives, key)
        self._following.start(lives.lives, key)
        self._port.commit(lambda tx: replica.learn(tx, lives), lambda _: self._host.tell(lives))

    def _events(self, frame: Events) -> None:
        # Until the last Follow is answered, what comes belongs to an earlier one.
        if self._asked == 0 and self._following is not None:
            self._following.events(frame)

    # -- serving

    def _wants(self, frame: Relay) -> None:
        if self._host.key_of(self.peer) is None:
            raise LinkError(f"{self.peer} is not in this room")
        if self._serving is None:
            window = min(frame.window, self._host.window)
            self._serving = Serving(self._host, self._port, self.peer, window)
        wants = [each for each in frame.wants if each != self.peer and self._host.key_of(each)]
        self._unserved = frame if len(wants) < len(frame.wants) else None
        self._port.commit(
            lambda tx: replica.read_by(tx, self.peer, wants, frame.positions),
            lambda found: self._serve(frame, found),
        )

    def room_changed(self) -> None:
        if self._unserved is not None and self._host.key_of(self.peer) is not None:
            self._wants(self._unserved)

    def _serve(self, frame: Relay, found: dict[str, tuple[Kept, int]]) -> None:
        if self._serving is None:
            return
        self._serving.wants(frame, found)
        for source in found:
            self._host.want(source)

    def _reads(self, said: Reading) -> None:
        if said.reader != self.peer:
            raise LinkError(f"{self.peer} says how far {said.reader} has read")
        self._host.reading(said)

    def tell(self, said: Reading) -> None:
        self._port.send(said)

    def learned(self, lives: Lives) -> None:
        if self._serving is not None:
            self._serving.learned(lives)

    def push(self, fresh: Fresh) -> None:
        if self._serving is not None:
            self._serving.push(fresh)

    def grew(self, source: str) -> None:
        if self._serving is not None:
            self._serving.grew(source)

    def moved(self) -> dict[str, Moved]:
        return {} if self._serving is None else self._serving.moved()


class Following:
    """Reads all of one outbox, checks it group by group, and stores it."""

    def __init__(self, host: RelayHost, port: Port, source: str, place: Place) -> None:
        self._host = host
        self._port = port
        self._source = source
        self._stored = place
        self._lives: Sequence[Life] = ()
        self._key = b""
        self._life = place.incarnation
        self._seq = place.seq
        self._chain = place.chain
        self._tail: list[bytes] = []
        self._first = True

    def start(self, lives: Sequence[Life], key: bytes) -> None:
        self._lives, self._key = lives, key

    def events(self, frame: Events) -> None:
        if frame.source != self._source:
            raise LinkError(f"{self._source} sent the outbox of {frame.source} as its own")
        rows = self._rows(frame)
        if not rows:
            raise LinkError(f"{self._source} sent nothing")
        self._enter(frame, rows[0][0])
        self._check_line(rows)
        self._host.heard_clock(self._source, frame.now - self._port.now())
        first = self._seq + 1
        whole = not self._tail
        self._tail += [row[3] for row in rows]
        groups = [self._close(group) for group in frame.groups]
        if len(self._tail) > GROUP_EVENTS:
            raise LinkError(f"{self._source} has a commit group without an end")
        fresh = None
        if whole and groups:
            inside = [row for row in rows if row[0] <= self._seq]
            life = (frame.life, frame.first_seq)
            fresh = Fresh(self._source, life, first, self._seq, inside, groups)
        self._store(frame, rows, groups, fresh)

    def _rows(self, frame: Events) -> list[Row]:
        everyone = set(frame.everyone)
        rows: list[Row] = []
        for body in frame.events:
            envelope = read_event(self._source, body)
            to = EVERYBODY if envelope.seq in everyone else envelope.to_node_id
            rows.append((envelope.seq, to, body, event_digest(body)))
        return rows

    def _enter(self, frame: Events, first: int) -> None:
        """A new life starts with its genesis; a source may start later than it was asked to."""
        if (frame.life, frame.first_seq) not in self._lives:
            raise LinkError(f"{self._source} sent a life it does not have")
        if frame.life != self._life:
            if self._tail:
                raise LinkError(f"{self._source} ends a life in the middle of a group")
            self._life, self._seq = frame.life, frame.first_seq - 1
            self._chain = genesis(self._source, frame.life)
        if self._first and (self._chain is None or first > self._seq + 1):
            if first > self._seq + 1:
                self._gap(self._seq, first)
            self._seq, self._chain = first - 1, None
        self._first = False

    def _gap(self, seq: int, first: int) -> None:
        self._port.commit(lambda tx: self._host.gap(tx, self._source, seq, first), _nothing)

    def _check_line(self, rows: Sequence[Row]) -> None:
        expected = self._seq + len(self._tail) + 1
        if [row[0] for row in rows] != list(range(expected, expected + len(rows))):
            raise LinkError(f"{self._source} leaves out events: {expected} should be next")

    def _close(self, group: Group) -> Group:
        """A group is complete if it goes on where the last one ended, and is what was signed."""
        size = group.last - self._seq
        if group.first != self._seq + 1 or not 0 < size <= len(self._tail):
            raise LinkError(f"a group of {self._source} does not start where the last one ended")
        if self._chain not in (None, group.previous):
            raise LinkError(f"the outbox of {self._source} is not the one it was")
        digests, self._tail = self._tail[:size], self._tail[size:]
        check_group(self._source, self._life, group, digests, self._key)
        self._seq, self._chain = group.last, group.chain
        return Group(
            group.first, group.last, group.previous, group.chain, group.signature, b"".join(digests)
        )

    def _store(
        self, frame: Events, rows: list[Row], groups: list[Group], fresh: Fresh | None
    ) -> None:
        before = self._stored
        now = Place(self._life, self._seq, self._chain) if groups else before
        self._stored = now

        def store(tx: Tx) -> bool:
            if groups and not replica.reached(tx, self._source, before, now):
                return False
            replica.store(tx, self._source, frame.life, rows, groups)
            return True

        self._port.commit(store, lambda kept: self._was_stored(frame, kept, groups, fresh))

    def _was_stored(
        self, frame: Events, kept: bool, groups: list[Group], fresh: Fresh | None
    ) -> None:
        size = weight(frame)
        self._port.send(Taken(frame.source, frame.life, frame.upto, size, "follow"))
        if kept and fresh is not None:
            self._host.push(fresh)
        elif kept and groups:
            self._host.grew(frame.source)


class Shelf(Struct):
    """One reader's place in one replica. `position` is how far it was sent all there is for it."""

    said: list[tuple[str, str, int]]
    through: int
    lives: Lives | None = None
    position: int = 0
    caught_up: bool = False
    sent: int = 0
    taken: int = 0


class Serving:
    """One reader, all it wants of what we keep, in turns, as fast as it takes it."""

    def __init__(self, host: RelayHost, port: Port, reader: str, credit: int) -> None:
        self._host = host
        self._port = port
        self._reader = reader
        self._window = self._credit = credit
        self._reading = False
        self._shelves: dict[str, Shelf] = {}

    def wants(self, frame: Relay, found: dict[str, tuple[Kept, int]]) -> None:
        before = self._shelves
        self._shelves = {}
        for source, (kept, through) in found.items():
            if source in before:
                self._shelves[source] = before[source]
                continue
            said = [each for each in frame.positions if each[0] == source]
            self._shelves[source] = Shelf(said, through)
            if kept.lives is not None:
                self.learned(kept.lives)
        self.pump()

    def learned(self, lives: Lives) -> None:
        """Where the lives changed, a reader goes on where they forked."""
        shelf = self._shelves.get(lives.source)
        if shelf is None or shelf.lives == lives:
            return
        if shelf.lives is None:
            shelf.position = max(after(lives.lives, shelf.said, lives.source), shelf.through)
        else:
            life = life_of(shelf.lives.lives, shelf.position)
            there = (lives.source, life[0], shelf.position)
            shelf.position = after(lives.lives, [there], lives.source)
            shelf.through = min(shelf.through, shelf.position)
            shelf.sent = min(shelf.sent, shelf.position)
        shelf.lives, shelf.caught_up = lives, False
        self._port.send(lives)
        self.pump()

    def taken(self, frame: Taken) -> None:
        shelf = self._shelves.get(frame.source)
        if shelf is not None:
            shelf.said = [(frame.source, frame.life, frame.upto)]
            shelf.taken = frame.upto
        self._credit = min(self._window, self._credit + frame.size)
        self.pump()

    def grew(self, source: str) -> None:
        shelf = self._shelves.get(source)
        if shelf is not None:
            shelf.caught_up = False
            self.pump()

    def push(self, fresh: Fresh) -> None:
        """Pass on what was just stored, unless others have to go first."""
        shelf = self._shelves.get(fresh.source)
        if shelf is None or shelf.lives is None or not self._host.key_of(fresh.source):
            return
        if shelf.caught_up and self._credit > 0 and shelf.position == fresh.first - 1:
            shelf.position = fresh.last
            mine = [row for row in fresh.rows if row[1] in (self._reader, EVERYBODY)]
            groups = list(_holding(fresh.groups, [row[0] for row in mine]))
            last = mine[-1][0] if mine else fresh.last
            bodies = [row[2] for row in mine]
            self._send(fresh.source, Excerpt(fresh.life, fresh.last, True, last, bodies, groups))
        elif shelf.position < fresh.last:
            self.grew(fresh.source)

    def pump(self) -> None:
        """Go on as far as credit allows, with whoever waited longest."""
        if self._reading or self._credit <= 0:
            return
        for source, shelf in self._shelves.items():
            if shelf.lives is not None and not shelf.caught_up and self._host.key_of(source):
                self._read(source, shelf, shelf.lives)
                return

    def _read(self, source: str, shelf: Shelf, lives: Lives) -> None:
        self._reading = True
        del self._shelves[source]
        self._shelves[source] = shelf
        position = shelf.position
        self._port.commit(
            lambda tx: replica.excerpt(tx, source, self._reader, lives.lives, position),
            lambda found: self._was_read(source, shelf, lives, found),
        )

    def _was_read(self, source: str, shelf: Shelf, lives: Lives, found: Excerpt | None) -> None:
        self._reading = False
        if found is None:
            shelf.caught_up = True
            self._host.start_again(source)
        elif shelf.lives == lives and self._shelves.get(source) is shelf:
            shelf.position = max(shelf.position, found.upto)
            shelf.caught_up = found.complete
            self._send(source, found)
        self.pump()

    def _send(self, source: str, found: Excerpt) -> None:
        if not found.events:
            return
        now = self._host.clock_of(source, self._port.now())
        frame = Events(source, *found.life, found.last, now, found.events, found.groups, "relay")
        self._credit -= weight(frame)
        self._shelves[source].sent = found.last
        self._port.send(frame)

    def moved(self) -> dict[str, Moved]:
        """Where the reader is, for the journal."""
        known = {each: shelf for each, shelf in self._shelves.items() if shelf.lives is not None}
        for shelf in known.values():
            if shelf.taken >= shelf.sent:
                shelf.through = shelf.position
        return {source: Moved(shelf.said, shelf.through) for source, shelf in known.items()}


def _holding(groups: Iterable[Group], seqs: Sequence[int]) -> Iterable[Group]:
    for group in groups:
        place = bisect_left(seqs, group.first)
        if place < len(seqs) and seqs[place] <= group.last:
            yield group


def _nothing(value: object) -> None:
    """There is nothing to do with it."""
