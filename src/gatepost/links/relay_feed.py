"""A relay's feed for one reader: all outboxes that it wants, in turns, at its own pace.

proof.py has the rules of relays and proofs.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from gatepost.delivery.frames import (
    CommitGroup,
    EventsFrame,
    IncarnationsFrame,
    Position,
    TakenFrame,
    frame_weight,
)
from gatepost.delivery.incarnations import incarnation_at, position_after
from gatepost.journal.outbox import EVERYBODY
from gatepost.links import outbox_replica
from gatepost.links.credit_window import CreditWindow
from gatepost.links.link_port import LinkPort
from gatepost.links.outbox_replica import ReaderProgress, ReplicaExcerpt, ReplicaState
from gatepost.links.replica_follower import StoredGroups


class RelayFeedHost(Protocol):
    """The relay that a feed works for."""

    def find_key(self, node: str) -> bytes | None: ...

    def restart_following(self, source: str, reader: str, position: int) -> None: ...

    def estimate_clock(self, source: str, now: int) -> int: ...


class ReaderShelf(Struct):
    """The reader's place in one replica.

    `positions` are the reader's own. Through `through`, which is saved, the replica has nothing
    more for it. It was sent everything through `position`.
    """

    positions: list[Position]
    through: int
    incarnations: IncarnationsFrame | None = None
    position: int = 0
    caught_up: bool = False
    sent: int = 0
    taken: int = 0


class RelayFeed:
    """Serves `reader` from replicas; all of them share one credit window."""

    def __init__(self, host: RelayFeedHost, port: LinkPort, reader: str, window: int) -> None:
        self._host = host
        self._port = port
        self._reader = reader
        self._window = CreditWindow(window)
        self._shelves: dict[str, ReaderShelf] = {}

    def set_wants(
        self,
        positions: Sequence[Position],
        found: dict[str, tuple[ReplicaState, int]],
        anew: Collection[str],
    ) -> None:
        """Serve exactly these outboxes from now on; feeds that were served before continue.

        Those in `anew` start again at their position.
        """
        before = self._shelves
        self._shelves = {}
        read: dict[str, list[Position]] = {}
        for position in positions:
            read.setdefault(position[0], []).append(position)
        for source, (state, through) in found.items():
            if source in before and source not in anew:
                self._shelves[source] = before[source]
                continue
            self._shelves[source] = ReaderShelf(read.get(source, []), through)
            if state.incarnations is not None:
                self.learn_incarnations(state.incarnations)
        self.pump()

    def learn_incarnations(self, frame: IncarnationsFrame) -> None:
        """Note the incarnations of a source; after a fork the reader continues from there."""
        shelf = self._shelves.get(frame.source)
        if shelf is None or shelf.incarnations == frame:
            return
        if shelf.incarnations is None:
            reached = position_after(frame.incarnations, shelf.positions, frame.source)
            shelf.position = max(reached, shelf.through)
        else:
            incarnation = incarnation_at(shelf.incarnations.incarnations, shelf.position)
            before = (frame.source, incarnation[0], shelf.position)
            # The source may have been restored to before the incarnation that was read last.
            known = [*shelf.positions, before]
            shelf.position = position_after(frame.incarnations, known, frame.source)
            shelf.through = min(shelf.through, shelf.position)
            shelf.sent = min(shelf.sent, shelf.position)
        shelf.incarnations, shelf.caught_up = frame, False
        self._port.send(frame)
        self.pump()

    def take_credit(self, frame: TakenFrame) -> None:
        shelf = self._shelves.get(frame.source)
        if shelf is not None:
            others = [each for each in shelf.positions if each[1] != frame.incarnation]
            shelf.positions = [*others, (frame.source, frame.incarnation, frame.upto)]
            shelf.taken = frame.upto
        self._window.refund(frame.size)
        self.pump()

    def mark_grown(self, source: str) -> None:
        """The replica of `source` has more than before."""
        shelf = self._shelves.get(source)
        if shelf is not None:
            shelf.caught_up = False
            self.pump()

    def push_groups(self, stored: StoredGroups) -> None:
        """Send groups that were just stored, unless earlier events are not sent yet."""
        shelf = self._shelves.get(stored.source)
        if shelf is None or shelf.incarnations is None or not self._host.find_key(stored.source):
            return
        follows = shelf.caught_up and shelf.position == stored.first - 1
        if follows and self._window.has_credit:
            shelf.position = stored.last
            mine = [row for row in stored.rows if row[1] in (self._reader, EVERYBODY)]
            groups = list(_groups_holding(stored.groups, [row[0] for row in mine]))
            last = mine[-1][0] if mine else stored.last
            bodies = [row[2] for row in mine]
            excerpt = ReplicaExcerpt(stored.incarnation, stored.last, True, last, bodies, groups)
            self._send_events(stored.source, shelf, excerpt)
        elif shelf.position < stored.last:
            self.mark_grown(stored.source)

    def pump(self) -> None:
        """Read for the outbox that waited longest, as far as credit allows."""
        for source, shelf in self._shelves.items():
            behind = shelf.incarnations is not None and not shelf.caught_up
            if behind and self._host.find_key(source):
                if self._window.begin_read():
                    self._read_excerpt(source, shelf)
                return

    def _read_excerpt(self, source: str, shelf: ReaderShelf) -> None:
        # Move this outbox behind the others for the next turn.
        del self._shelves[source]
        self._shelves[source] = shelf
        frame, position = shelf.incarnations, shelf.position
        incarnations = frame.incarnations if frame is not None else []
        self._port.commit(
            lambda tx: outbox_replica.read_excerpt(
                tx, source, self._reader, incarnations, position
            ),
            lambda found: self._send_excerpt(source, shelf, frame, found),
        )

    def _send_excerpt(
        self,
        source: str,
        shelf: ReaderShelf,
        incarnations: IncarnationsFrame | None,
        found: ReplicaExcerpt | None,
    ) -> None:
        self._window.end_read()
        if found is None:
            shelf.caught_up = True
            self._host.restart_following(source, self._reader, shelf.position)
        elif shelf.incarnations == incarnations and self._shelves.get(source) is shelf:
            shelf.position = max(shelf.position, found.upto)
            shelf.caught_up = found.complete
            self._send_events(source, shelf, found)
        self.pump()

    def _send_events(self, source: str, shelf: ReaderShelf, found: ReplicaExcerpt) -> None:
        if not found.events:
            return
        now = self._host.estimate_clock(source, self._port.now())
        frame = EventsFrame(
            source, *found.incarnation, found.last, now, found.events, found.groups, "relay"
        )
        self._window.spend(frame_weight(frame))
        shelf.sent = found.last
        self._port.send(frame)

    def reader_progress(self) -> dict[str, ReaderProgress]:
        """The reader's place in each replica, for the journal."""
        for shelf in self._shelves.values():
            if shelf.incarnations is not None and shelf.taken >= shelf.sent:
                shelf.through = shelf.position
        # Include sources that were never followed, so that the relay remembers that they are
        # wanted.
        return {
            source: ReaderProgress(shelf.positions, shelf.through)
            for source, shelf in self._shelves.items()
        }


def _groups_holding(groups: Iterable[CommitGroup], seqs: Sequence[int]) -> Iterable[CommitGroup]:
    """The groups that hold at least one of these events."""
    for group in groups:
        place = bisect_left(seqs, group.first)
        if place < len(seqs) and seqs[place] <= group.last:
            yield group
