"""Cursors: the next event of an outbox is recognized, and so is one that was left out."""

from typing import Any

import pytest

from gatepost.delivery.inbox.cursors import (
    ANYTHING,
    OutboxCursor,
    OutboxGaps,
    last_incarnation,
    last_read_seq,
    read_positions,
)
from gatepost.errors import LinkError
from gatepost.events import Envelope, EventIdGenerator, EventKind
from gatepost.journal import Tx, open_memory_journal
from gatepost.testing import ManualClock

IDS = EventIdGenerator(ManualClock())


@pytest.fixture
def tx() -> Tx:
    return Tx(open_memory_journal(), 1)


def event(seq: int, after: int = 0, **fields: Any) -> Envelope:
    given: dict[str, Any] = {"to_node_id": "b", **fields}
    return Envelope(
        event_id=IDS.next_id(), seq=seq, prev_seq_to=after, source_node_id="a",
        source_agent_id="gateway", kind=EventKind.SIGNAL, created_at=0, **given,
    )  # fmt: skip


def test_events_for_a_node_follow_each_other_and_not_those_for_others(tx: Tx) -> None:
    cursor = OutboxCursor.load(tx, "a", "a-1", 1)
    assert cursor.follows(event(3))
    cursor.read_event(event(3))
    assert cursor.follows(event(9, after=3))
    assert not cursor.follows(event(9, after=5)), "5 was for us too, and never came"
    assert cursor.has_read(event(3))
    assert not cursor.has_read(event(4))


def test_a_new_reader_has_not_missed_what_was_said_to_everybody(tx: Tx) -> None:
    cursor = OutboxCursor.load(tx, "a", "a-1", 1)
    assert cursor.follows(event(7, after=4, to_node_id=None))
    cursor.read_event(event(7, after=4, to_node_id=None))
    assert not cursor.follows(event(9, after=8, to_node_id=None))


def test_behind_a_skip_an_event_may_follow_any_that_was_skipped(tx: Tx) -> None:
    cursor = OutboxCursor.load(tx, "a", "a-1", 1)
    cursor.skip_through(10)
    cursor.save(tx)
    cursor = OutboxCursor.load(tx, "a", "a-1", 1)
    assert (cursor.last_to, cursor.known) == (ANYTHING, 10)
    assert cursor.follows(event(12, after=10))
    assert not cursor.follows(event(13, after=11))


def test_a_gap_fails_the_batch_and_rewinds_the_cursor_in_the_next_group(tx: Tx) -> None:
    cursor, gaps = OutboxCursor.load(tx, "a", "a-1", 1), OutboxGaps()
    cursor.read_event(event(3))
    cursor.read_through(8)
    cursor.save(tx)
    with pytest.raises(LinkError, match="events 4 to 8 of a were left out"):
        gaps.check_follows(cursor, event(9, after=5))
    gaps.rewind_cursors(tx)
    assert read_positions(tx, ["a"]) == [("a", "a-1", 3)]


@pytest.mark.parametrize("target", ["b", None])
def test_a_gap_that_another_way_has_filled_rewinds_nothing(tx: Tx, target: str | None) -> None:
    cursor, gaps = OutboxCursor.load(tx, "a", "a-1", 1), OutboxGaps()
    cursor.read_event(event(3, to_node_id=target))
    cursor.save(tx)
    with pytest.raises(LinkError):
        gaps.check_follows(cursor, event(9, after=5, to_node_id=target))
    for seq, after in ((5, 3), (9, 5)):
        gaps.check_follows(cursor, event(seq, after, to_node_id=target))
        cursor.read_event(event(seq, after, to_node_id=target))
    cursor.read_through(9)
    cursor.save(tx)
    gaps.rewind_cursors(tx)
    assert read_positions(tx, ["a"]) == [("a", "a-1", 9)]


def test_until_an_incarnation_was_read_the_position_is_in_the_one_before(tx: Tx) -> None:
    first = OutboxCursor.load(tx, "a", "a-1", 1)
    first.read_event(event(4))
    first.read_through(4)
    first.save(tx)
    OutboxCursor.load(tx, "a", "a-2", 5).save(tx)
    assert read_positions(tx, ["a", "x"]) == [("a", "a-1", 4)]
    assert last_incarnation(tx, "a") == "a-2"


def test_a_new_incarnation_goes_on_behind_what_is_known_of_the_last(tx: Tx) -> None:
    first = OutboxCursor.load(tx, "a", "a-1", 1)
    first.read_event(event(4))
    first.save(tx)
    second = OutboxCursor.load(tx, "a", "a-2", 8)
    assert second.follows(event(8, after=4))
    assert not second.follows(event(8, after=6)), "6 was for us, at the end of the incarnation"


def test_the_last_seq_read_is_the_highest_of_any_incarnation(tx: Tx) -> None:
    assert last_read_seq(tx, "a") == 0
    for incarnation, first, upto in (("a-1", 1, 7), ("a-2", 5, 6)):
        cursor = OutboxCursor.load(tx, "a", incarnation, first)
        cursor.read_through(upto)
        cursor.save(tx)
    assert last_read_seq(tx, "a") == 7
