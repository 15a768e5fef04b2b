"""Checks the promises between outboxes, a column at a time. Needs pyarrow and numpy, but not Spark.

Events and receipts come together by the id of the event they are about. Turns come together once
more by the pair of agents, to compare the order of turns with the order of sending.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from msgspec import Struct

from gatepost.archive.room_facts import RoomFacts
from gatepost.pipeline.audit.rules import UNJUDGED
from gatepost.pipeline.kernels.blocks import hash_text, join_ids, mix_hashes
from gatepost.pipeline.kernels.columns import (
    ABSENT,
    Flags,
    IdHalves,
    Numbers,
    drawn_at,
    mark_changes,
)
from gatepost.pipeline.kernels.evidence import (
    FOUND,
    OUTCOMES,
    SEQ_BITS,
    OutboxPart,
    found_table,
    position_incarnation,
    position_seq,
)
from gatepost.pipeline.kernels.groups import Groups
from gatepost.pipeline.kernels.spans import SpanIndex

TURNS, UNARCHIVED, UNREAD = "turns", "unarchived", "unread"

_NO_END: Final = 1 << 62
_OK = OUTCOMES.index("ok")
_TURN_COLUMNS: Final = (
    *("high", "low", "node", "position", "at", "node_name", "incarnation", "corr_id"),
)


class OutboxKnowledge(Struct, frozen=True):
    """Facts about an outbox beside its events. Events with ids up to `as_of` should be archived."""

    spans: SpanIndex
    as_of: int


class UnreadSegments(Struct, frozen=True):
    """Unreadable segments, which may contain missing events or receipts.

    `times` has a span for each segment, by its clock, `positions` one from its first event on.
    """

    times: SpanIndex
    positions: SpanIndex

    @classmethod
    def from_tables(cls, unread: Sequence[pa.Table], slack: int) -> Self:
        """Ids are drawn at most `slack` ms before or after their events."""
        rows = [row for table in unread for row in table.to_pylist()]
        times = [(row["node"], row["since"] - slack, row["until"] + slack) for row in rows]
        positions = [(row["node"], row["position"], _NO_END) for row in rows]
        return cls(SpanIndex.from_rows(times), SpanIndex.from_rows(positions))


NOTHING_UNREAD: Final = UnreadSegments.from_tables((), 0)


def describe_unread(part: OutboxPart, first: int, since: int, until: int) -> pa.Table:
    """The segment that begins with the event `first`, as one row."""
    position = (part.number << SEQ_BITS) + first
    row = (hash_text(part.node), since, until, position)
    names = ("node", "since", "until", "position")
    return pa.table({name: [value] for name, value in zip(names, row, strict=True)})


def compare_outboxes(
    sent: pa.Table,
    receipts: pa.Table,
    known: OutboxKnowledge,
    unread: UnreadSegments = NOTHING_UNREAD,
) -> Iterator[tuple[str, pa.Table]]:
    """Named tables: the violations found in events and receipts, and the rows left to check."""
    rows = _ReceiptRows(sent, receipts)
    made = [
        (FOUND, _doubled_turns(rows)),
        (FOUND, _unaccepted_turns(rows, known.spans, unread)),
        (FOUND, _orphaned_receipts(rows, known.spans, unread)),
        (UNARCHIVED, _unarchived_events(rows, known)),
        (TURNS, _ordered_turns(rows)),
    ]
    return ((name, table) for name, table in made if table.num_rows)


class _ReceiptRows:
    """Receipts, and the events they are about: both have the same `about` number."""

    def __init__(self, sent: pa.Table, receipts: pa.Table) -> None:
        self.table = receipts
        self.sent = sent
        self.position: Numbers = receipts["position"].to_numpy()
        self.node: Numbers = receipts["node"].to_numpy()
        self.owner: Numbers = receipts["owner"].to_numpy()
        self.outcome: Numbers = receipts["outcome"].to_numpy().astype(np.int64)
        self.processed: Flags = np.asarray(receipts["processed"])
        self.high: IdHalves = receipts["high"].to_numpy()
        self.low: IdHalves = receipts["low"].to_numpy()
        keys = (
            np.concatenate((sent[name].to_numpy(), receipts[name].to_numpy()))
            for name in ("high", "low", "owner")
        )
        numbers = Groups.group_equal(*keys).group_numbers
        self.sent_about: Numbers = numbers[: len(sent)]
        self.about: Numbers = numbers[len(sent) :]
        self.count = int(numbers.max()) + 1 if len(numbers) else 0

    def __len__(self) -> int:
        return len(self.about)

    @cached_property
    def drawn(self) -> Numbers:
        """The time at which the id of the event was drawn."""
        return drawn_at(self.high)

    @cached_property
    def unmatched(self) -> Flags:
        """Whether the event is missing from its owner's outbox."""
        opened = np.zeros(self.count, bool)
        opened[self.sent_about] = True
        return ~opened[self.about]

    def to_found(self, rows: Numbers, rule: str, details: Sequence[str] | pa.Array) -> pa.Table:
        return _to_found(self.table.take(pa.array(rows)), rule, details)


def _to_found(rows: pa.Table, rule: str, details: Sequence[str] | pa.Array) -> pa.Table:
    return found_table(
        {
            "rule": [rule] * rows.num_rows,
            "node": rows["node_name"].cast(pa.string()),
            "incarnation": rows["incarnation"].cast(pa.string()),
            "seq": position_seq(rows["position"].to_numpy()),
            "event_id": join_ids(rows["high"].to_numpy(), rows["low"].to_numpy()),
            "corr_id": rows["corr_id"],
            "at": rows["at"],
            "detail": details,
        }
    )


def _doubled_turns(rows: _ReceiptRows) -> pa.Table:
    """Events that two nodes processed, one incarnation with two outcomes, or one node twice.

    A node completes an event twice if its journal was restored and had forgotten the first turn.
    Repeating a receipt is harmless. A restored journal may also give up an event that an earlier
    incarnation completed: that is no second turn.
    """
    ends = np.flatnonzero(rows.processed)
    groups = Groups.group_equal(rows.about[ends])
    incarnation = position_incarnation(rows.position)
    writer = mix_hashes(rows.node[ends], incarnation[ends], rows.outcome[ends])
    contested = groups.min_values(writer) != groups.max_values(writer)
    shown, details = [], []
    for number in np.flatnonzero(contested).tolist():
        start = int(groups.starts[number])
        members = ends[groups.order[start : start + int(groups.sizes[number])]]
        if _is_doubled(rows, members, incarnation):
            latest = max(members.tolist(), key=lambda row: _row_time(rows, row))
            names = sorted({str(rows.table["node_name"][row]) for row in members.tolist()})
            shown.append(latest)
            details.append(f"processed on {', '.join(names)}")
    return rows.to_found(np.array(shown, np.int64), "doubled_turn", details)


def _is_doubled(rows: _ReceiptRows, members: Numbers, incarnations: Numbers) -> bool:
    nodes, turns = set(), set()
    ends: dict[tuple[int, int], set[int]] = {}
    for row in members.tolist():
        node, outcome = int(rows.node[row]), int(rows.outcome[row])
        incarnation = int(incarnations[row])
        nodes.add(node)
        ends.setdefault((node, incarnation), set()).add(outcome)
        if outcome == _OK:
            turns.add((node, incarnation if rows.table["forgotten"][row].as_py() else None))
    return len(nodes) > 1 or len(turns) > 1 or any(len(found) > 1 for found in ends.values())


def _row_time(rows: _ReceiptRows, row: int) -> tuple[int, int]:
    return rows.table["at"][row].as_py(), int(rows.position[row])


def _unaccepted_turns(rows: _ReceiptRows, spans: SpanIndex, unread: UnreadSegments) -> pa.Table:
    """Receipts `processed` without `accepted` before them.

    Events from before the archive begins are left out: their `accepted` may lie there too, or in a
    segment before this one that could not be read.
    """
    groups = Groups.group_equal(rows.about, rows.node)
    accepted = groups.min_values(np.where(rows.processed, ABSENT, rows.position))
    ended = groups.min_values(np.where(rows.processed, rows.position, ABSENT))
    hasty = (ended != ABSENT) & ((accepted == ABSENT) | (accepted > ended))
    of_row = groups.group_numbers
    wrong = hasty[of_row] & rows.processed & (rows.position == ended[of_row])
    wrong &= rows.drawn >= spans.begins(rows.node)
    wrong &= ~unread.positions.contain(rows.node, rows.position)
    found = np.flatnonzero(wrong)
    details = ["processed, but not accepted before"] * len(found)
    return rows.to_found(found, "processed_before_accepted", details)


def _orphaned_receipts(rows: _ReceiptRows, spans: SpanIndex, unread: UnreadSegments) -> pa.Table:
    """Receipts about events that are missing from the outbox they should be in.

    An event id carries the time it was written, by the clock of the outbox that should hold it. So
    only outboxes that are archived around that time are checked.
    """
    lone = np.flatnonzero(rows.unmatched)
    owner, drawn = rows.owner[lone], rows.drawn[lone]
    found = lone[spans.contain(owner, drawn) & ~unread.times.contain(owner, drawn)]
    owners = rows.table["owner_name"].take(pa.array(found)).to_pylist()
    details = [f"{owner} has no such event" for owner in owners]
    return rows.to_found(found, "receipt_without_message", details)


def _unarchived_events(rows: _ReceiptRows, known: OutboxKnowledge) -> pa.Table:
    """For each node, its events that others confirmed after the end of its archive."""
    lone = np.flatnonzero(rows.unmatched & (rows.drawn < known.as_of))
    late = lone[known.spans.end_before(rows.owner[lone], rows.drawn[lone])]
    _, once = np.unique(rows.about[late], return_index=True)
    events = late[once]
    groups = Groups.group_equal(rows.owner[events])
    earliest = [rows[0] for rows in groups.sample_rows(1, rows.drawn[events])]
    first = events[np.array(earliest, np.int64)]
    return pa.table(
        {
            "node": rows.table["owner_name"].take(pa.array(first)).cast(pa.string()),
            "events": groups.sizes,
            "event_id": join_ids(rows.high[first], rows.low[first]),
        }
    )


def _ordered_turns(rows: _ReceiptRows) -> pa.Table:
    """The first turn of every event that has a place in the order of its pair."""
    done = np.flatnonzero(rows.processed & (rows.outcome == _OK))
    groups = Groups.group_equal(rows.about[done], rows.node[done])
    first = [members[0] for members in groups.sample_rows(1, rows.position[done])]
    turns = done[np.array(first, np.int64)]
    pairs, numbers = (np.zeros(rows.count, np.int64) for _ in range(2))
    numbered = np.flatnonzero(rows.sent["pair_seq"].to_numpy() > 0)
    about = rows.sent_about[numbered]
    pairs[about] = rows.sent["pair"].to_numpy()[numbered]
    numbers[about] = rows.sent["pair_seq"].to_numpy()[numbered]
    turns = turns[numbers[rows.about[turns]] > 0]
    taken = rows.table.select(list(_TURN_COLUMNS)).take(pa.array(turns))
    taken = taken.append_column("pair", pa.array(pairs[rows.about[turns]]))
    return taken.append_column("pair_seq", pa.array(numbers[rows.about[turns]]))


def find_overtaken_turns(turns: pa.Table, unread: UnreadSegments = NOTHING_UNREAD) -> pa.Table:
    """Turns that ended after a later one of their pair, on the same node.

    The first receipt counts; others repeat it. So a turn does not count if the first one may be in
    a segment that could not be read. A restored journal numbers its pairs and its own
    events anew from the backup on. So order is checked within one incarnation of the sender and one
    of the owner.
    """
    position: Numbers = turns["position"].to_numpy()
    keys = (turns["pair"].to_numpy(), turns["node"].to_numpy(), position_incarnation(position))
    order = np.lexsort((position, *reversed(keys)))
    starts = np.zeros(len(order), bool)
    for key in keys:
        starts |= mark_changes(key[order])
    number: Numbers = turns["pair_seq"].to_numpy()[order]
    highest = _highest_before(number, starts)
    hidden = unread.positions.contain(turns["node"].to_numpy()[order], position[order])
    late = np.flatnonzero((highest > number) & ~hidden)
    details = [
        f"number {own} of its pair ended after number {other}"
        for own, other in zip(number[late].tolist(), highest[late].tolist(), strict=True)
    ]
    return _to_found(turns.take(pa.array(order[late])), "fifo_broken", details)


def _highest_before(numbers: Numbers, starts: Flags) -> Numbers:
    """The highest number before each row, since its group started; 0 for the first row."""
    values, ranks = np.unique(numbers, return_inverse=True)
    group = np.cumsum(starts) * (len(values) + 1)
    highest = np.maximum.accumulate(group + ranks + 1)
    before = np.concatenate(([0], highest[:-1])) - group
    return np.where(starts | (before <= 0), 0, values[np.maximum(before - 1, 0)])


def describe_unarchived(parts: Sequence[pa.Table]) -> pa.Table:
    """One row for each node with events that others have confirmed and that are not archived."""
    found: dict[str, tuple[int, bytes]] = {}
    for row in (row for part in parts for row in part.to_pylist()):
        count, first = found.get(row["node"], (0, row["event_id"]))
        found[row["node"]] = (count + row["events"], min(first, row["event_id"]))
    detail = "{} of its events that other gateways have confirmed are not archived"
    return _to_doubts(
        {node: detail.format(count) for node, (count, _) in sorted(found.items())},
        [first for _, (_, first) in sorted(found.items())],
    )


def describe_unknown(parts: Sequence[pa.Table], nodes: frozenset[str]) -> pa.Table:
    """One row for each unknown node to which events are addressed."""
    named = {name for part in parts for name in part["node"].to_pylist()}
    detail = "events are addressed to this node, which has no archive"
    return _to_doubts(dict.fromkeys(sorted(named - nodes), detail))


def _to_doubts(details: Mapping[str, str], ids: Sequence[bytes] | None = None) -> pa.Table:
    columns: dict[str, Any] = {
        "rule": pa.array([UNJUDGED] * len(details), pa.string()),
        "node": pa.array(list(details), pa.string()),
        "detail": pa.array(list(details.values()), pa.string()),
    }
    return found_table(columns | ({"event_id": pa.array(ids, pa.binary())} if ids else {}))


def contested_terms(facts: Sequence[RoomFacts]) -> list[tuple[int, list[tuple[int, str]]]]:
    """Terms that more than one node claimed, each with its claims (time, node) in order."""
    claims: dict[int, dict[str, int]] = {}
    for term in (term for known in facts for term in known.terms):
        claims.setdefault(term.counter, {}).setdefault(term.node, term.at)
    return [
        (counter, sorted((at, node) for node, at in nodes.items()))
        for counter, nodes in sorted(claims.items())
        if len(nodes) > 1
    ]


def last_valid_seqs(facts: Sequence[RoomFacts]) -> dict[str, int]:
    """Revoked node → its last event that counts."""
    last: dict[str, int] = {}
    for revoked in (revoked for known in facts for revoked in known.revocations):
        last[revoked.node] = min(last.get(revoked.node, revoked.last_seq), revoked.last_seq)
    return last
