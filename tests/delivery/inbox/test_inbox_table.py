"""Inbox rows: storage makes the moves of the table, and no others."""

from itertools import product

import pytest

from gatepost.delivery.inbox.inbox_states import TRANSITIONS, InboxInput, InboxState
from gatepost.delivery.inbox.inbox_table import (
    _RECORD,
    change_state,
    find_row,
    find_unseen,
    record_event,
    select_undecided,
    state_of,
)
from gatepost.events import Envelope, EventIdGenerator, EventKind, parse_event_id
from gatepost.journal import Tx, open_memory_journal
from gatepost.testing import ManualClock

IDS = EventIdGenerator(ManualClock())
# A confirmation is about an offer, which has a row.
MOVES = [
    move
    for move in product(InboxState, InboxInput)
    if move != (InboxState.UNSEEN, InboxInput.CONFIRM)
]
_PUT = """
INSERT INTO inbox (source, event_id, state, mailbox, sender, corr_id, pair_seq, at)
VALUES ('a', ?, ?, 'bob', 'al', 'c', 1, 0)
"""


def event(number: int = 1) -> Envelope:
    return Envelope(
        event_id=IDS.next_id(),
        seq=number,
        source_node_id="a",
        source_agent_id="al",
        to_node_id="b",
        to_agent_id="bob",
        kind=EventKind.MESSAGE,
        created_at=0,
        pair_seq=number,
    )


@pytest.fixture
def tx() -> Tx:
    return Tx(open_memory_journal(), 1)


@pytest.mark.parametrize(("state", "input"), MOVES)
def test_a_row_moves_as_the_table_says_or_not_at_all(
    tx: Tx, state: InboxState, input: InboxInput
) -> None:
    envelope = event()
    id = parse_event_id(envelope.event_id)
    if state is not InboxState.UNSEEN:
        tx.execute(_PUT, (id, state.value))
    if input in _RECORD:
        record_event(tx, "a", envelope, input)
    else:
        change_state(tx, "a", id, input)
    assert state_of(tx, "a", id) is TRANSITIONS.get((state, input), state)


def test_events_never_seen_are_found_at_once(tx: Tx) -> None:
    seen, new, twice = event(), event(), event()
    record_event(tx, "a", seen, InboxInput.ACCEPT)
    found = find_unseen(tx, "a", [seen, new, twice, twice])
    assert found == {parse_event_id(new.event_id)}, "one that comes twice is looked up"


def test_sources_do_not_mix(tx: Tx) -> None:
    envelope = event()
    record_event(tx, "a", envelope, InboxInput.ACCEPT)
    id = parse_event_id(envelope.event_id)
    assert state_of(tx, "x", id) is InboxState.UNSEEN
    assert find_row(tx, "x", id) is None


def test_undecided_events_are_held_or_offered(tx: Tx) -> None:
    events = [event() for _ in range(4)]
    inputs = (InboxInput.HOLD, InboxInput.OFFER, InboxInput.ACCEPT, InboxInput.REFUSE)
    for envelope, input in zip(events, inputs, strict=True):
        record_event(tx, "a", envelope, input, "why")
    found = {row[1] for row in select_undecided(tx)}
    assert found == {parse_event_id(envelope.event_id) for envelope in events[:2]}
