"""Reads all of one outbox, checks it commit group by commit group, and stores it as a replica.

proof.py has the rules of relays and proofs.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from gatepost.delivery.frames import (
    CommitGroup,
    EventsFrame,
    Incarnation,
    TakenFrame,
    frame_weight,
)
from gatepost.errors import LinkError
from gatepost.events import event_digest, genesis_chain
from gatepost.journal.outbox import EVERYBODY
from gatepost.journal.transaction import Tx
from gatepost.links import outbox_replica
from gatepost.links.link_port import LinkPort, ignore_result
from gatepost.links.outbox_replica import ReplicaPosition, ReplicaRow
from gatepost.links.proof import check_group, read_event

# No commit group has more events than this; a larger one cannot be relayed.
MAX_GROUP_EVENTS = 1 << 20


class StoredGroups(Struct, frozen=True):
    """Whole groups that were just stored: events `first` to `last` of one incarnation."""

    source: str
    incarnation: Incarnation
    first: int
    last: int
    rows: list[ReplicaRow]
    groups: list[CommitGroup]


class FollowerHost(Protocol):
    """The relay that a follower works for."""

    def note_clock(self, source: str, ahead: int) -> None: ...

    def raise_gap(self, tx: Tx, source: str, seq: int, first: int) -> None: ...

    def push_groups(self, stored: StoredGroups) -> None: ...

    def mark_grown(self, source: str) -> None: ...


class ReplicaFollower:
    """Follows one source from `position`. `set_source` comes before the first events."""

    def __init__(
        self, host: FollowerHost, port: LinkPort, source: str, position: ReplicaPosition
    ) -> None:
        self._host = host
        self._port = port
        self._source = source
        self._stored = position
        self._incarnations: Sequence[Incarnation] = ()
        self._key = b""
        # The end of the last closed group, and the chain there.
        self._incarnation = position.incarnation
        self._seq = position.seq
        self._chain = position.chain
        # The digests of events whose group is not closed yet.
        self._tail: list[bytes] = []
        self._is_first = True

    def set_source(self, incarnations: Sequence[Incarnation], key: bytes) -> None:
        self._incarnations, self._key = incarnations, key

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
        starts_group = not self._tail
        self._tail += [row[3] for row in rows]
        groups = [self._close_group(group) for group in frame.groups]
        if len(self._tail) > MAX_GROUP_EVENTS:
            raise LinkError(f"{self._source} has a commit group without an end")
        stored = None
        if starts_group and groups:
            whole = [row for row in rows if row[0] <= self._seq]
            incarnation = (frame.incarnation, frame.first_seq)
            stored = StoredGroups(self._source, incarnation, first, self._seq, whole, groups)
        self._store_rows(frame, rows, groups, stored)

    def _read_rows(self, frame: EventsFrame) -> list[ReplicaRow]:
        everyone = set(frame.everyone)
        rows: list[ReplicaRow] = []
        for body in frame.events:
            envelope = read_event(self._source, body)
            to = EVERYBODY if envelope.seq in everyone else envelope.to_node_id
            rows.append((envelope.seq, to, body, event_digest(body)))
        return rows

    def _enter_incarnation(self, frame: EventsFrame, first: int) -> None:
        """Start a new incarnation with its genesis. A source may start later than it was asked."""
        if (frame.incarnation, frame.first_seq) not in self._incarnations:
            raise LinkError(f"{self._source} sent an incarnation it does not have")
        if frame.incarnation != self._incarnation:
            if self._tail:
                raise LinkError(f"{self._source} ends an incarnation in the middle of a group")
            self._incarnation, self._seq = frame.incarnation, frame.first_seq - 1
            self._chain = genesis_chain(self._source, frame.incarnation)
        if self._is_first and (self._chain is None or first > self._seq + 1):
            if first > self._seq + 1:
                self._report_gap(self._seq, first)
            self._seq, self._chain = first - 1, None
        self._is_first = False

    def _report_gap(self, seq: int, first: int) -> None:
        self._port.commit(
            lambda tx: self._host.raise_gap(tx, self._source, seq, first), ignore_result
        )

    def _check_gapless(self, rows: Sequence[ReplicaRow]) -> None:
        expected = self._seq + len(self._tail) + 1
        if [row[0] for row in rows] != list(range(expected, expected + len(rows))):
            raise LinkError(f"{self._source} leaves out events: {expected} should be next")

    def _close_group(self, group: CommitGroup) -> CommitGroup:
        """Check that a group continues where the last one ended and that its source signed it."""
        size = group.last - self._seq
        if group.first != self._seq + 1 or not 0 < size <= len(self._tail):
            raise LinkError(f"a group of {self._source} does not start where the last one ended")
        if self._chain not in (None, group.previous):
            raise LinkError(f"the outbox of {self._source} is not the one it was")
        digests, self._tail = self._tail[:size], self._tail[size:]
        check_group(self._source, self._incarnation, group, digests, self._key)
        self._seq, self._chain = group.last, group.chain
        return replace(group, digests=b"".join(digests))

    def _store_rows(
        self,
        frame: EventsFrame,
        rows: list[ReplicaRow],
        groups: list[CommitGroup],
        stored: StoredGroups | None,
    ) -> None:
        before = self._stored
        now = ReplicaPosition(self._incarnation, self._seq, self._chain) if groups else before
        self._stored = now

        def store(tx: Tx) -> bool:
            if groups and not outbox_replica.advance_replica(tx, self._source, before, now):
                return False
            outbox_replica.store_rows(tx, self._source, frame.incarnation, rows, groups)
            return True

        self._port.commit(store, lambda kept: self._confirm_stored(frame, kept, groups, stored))

    def _confirm_stored(
        self,
        frame: EventsFrame,
        kept: bool,
        groups: list[CommitGroup],
        stored: StoredGroups | None,
    ) -> None:
        size = frame_weight(frame)
        self._port.send(TakenFrame(frame.source, frame.incarnation, frame.upto, size, "follow"))
        if kept and stored is not None:
            self._host.push_groups(stored)
        elif kept and groups:
            self._host.mark_grown(frame.source)
