"""Held events keep the order of their pair; a number that never comes keeps its place too."""

import pytest

from gatepost.delivery.inbox import held_events
from gatepost.delivery.inbox.held_events import (
    FullMailboxes,
    Holds,
    SuspectEvents,
    pairs_held_for_capacity,
    wanted_blobs,
)
from gatepost.delivery.inbox.inbox_pairs import InboxPair, PairKey
from gatepost.delivery.inbox.inbox_states import InboxState
from gatepost.delivery.inbox.inbox_table import state_of
from gatepost.events import (
    Envelope,
    EventIdGenerator,
    EventKind,
    PayloadRef,
    encode_event,
    parse_event_id,
)
from gatepost.journal import Tx, open_memory_journal
from gatepost.testing import ManualClock

IDS = EventIdGenerator(ManualClock())
KEY = PairKey("a", "al", "bob")
DIGEST = "sha256:" + "a" * 64


class Shelf:
    """The held events of one pair."""

    def __init__(self) -> None:
        self.tx = Tx(open_memory_journal(), 1)
        self.full = FullMailboxes()
        self.holds = Holds(self.full, SuspectEvents(1000))
        self.pair = InboxPair("a-1", 1)

    def hold(self, number: int, why: str = "order", offer: int = 0) -> Envelope:
        envelope = Envelope(
            event_id=IDS.next_id(),
            seq=number,
            source_node_id="a",
            source_agent_id="al",
            to_node_id="b",
            to_agent_id="bob",
            kind=EventKind.MESSAGE,
            created_at=0,
            pair_seq=number,
            offer=offer,
            payload_ref=PayloadRef(DIGEST, 9, {}) if why == "blob" else None,
        )
        held_events.hold_event(
            self.tx, self.holds, KEY, self.pair, envelope, encode_event(envelope), why
        )
        return envelope

    def state_of(self, envelope: Envelope) -> InboxState:
        return state_of(self.tx, "a", parse_event_id(envelope.event_id))

    def first(self) -> tuple[int, bytes | None]:
        found = held_events.first_held(self.tx, KEY)
        assert found is not None
        return found.number, found.event_id


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_the_lowest_number_comes_first(shelf: Shelf) -> None:
    late, early = shelf.hold(5), shelf.hold(3)
    assert shelf.first() == (3, parse_event_id(early.event_id))
    assert (shelf.pair.held, shelf.state_of(late)) == (2, InboxState.HELD)
    held_events.remove_number(shelf.tx, KEY, shelf.pair, 3)
    assert (shelf.first()[0], shelf.pair.held) == (5, 1)


def test_events_of_earlier_incarnations_go_first_in_their_order(shelf: Shelf) -> None:
    """A number that comes a third time is no exception: a hostile outbox repeats it as it likes."""
    first = [shelf.hold(5), shelf.hold(9)]
    second = [shelf.hold(5), shelf.hold(9)]
    third = [shelf.hold(5), shelf.hold(9)]
    order = []
    while (found := held_events.first_held(shelf.tx, KEY)) is not None:
        order.append(found.event_id)
        held_events.remove_number(shelf.tx, KEY, shelf.pair, found.number)
    assert order == [parse_event_id(each.event_id) for each in (*first, *second, *third)]
    assert shelf.pair.held == 0


def test_a_number_that_never_comes_is_held_without_an_event(shelf: Shelf) -> None:
    held_events.hold_gone_number(shelf.tx, KEY, shelf.pair, 2)
    held_events.hold_gone_number(shelf.tx, KEY, shelf.pair, 2)
    assert (shelf.first(), shelf.pair.held) == ((2, None), 1)


def test_an_event_replaces_the_note_that_its_number_never_comes(shelf: Shelf) -> None:
    """The note was about an earlier incarnation of the outbox."""
    held_events.hold_gone_number(shelf.tx, KEY, shelf.pair, 2)
    came = shelf.hold(2)
    assert (shelf.first(), shelf.pair.held) == ((2, parse_event_id(came.event_id)), 1)


def test_an_event_of_an_earlier_incarnation_goes_before_one_with_its_number(shelf: Shelf) -> None:
    old, new = shelf.hold(2), shelf.hold(2)
    assert shelf.first()[1] == parse_event_id(old.event_id)
    assert (shelf.state_of(new), shelf.pair.held) == (InboxState.HELD, 2)


def test_an_event_that_made_way_is_removed_and_not_the_one_with_its_number(shelf: Shelf) -> None:
    old, new = shelf.hold(2), shelf.hold(2)
    held_events.remove_event(shelf.tx, KEY, shelf.pair, parse_event_id(old.event_id))
    assert (shelf.first(), shelf.pair.held) == ((2, parse_event_id(new.event_id)), 1)


def test_offers_of_an_earlier_incarnation_are_withdrawn(shelf: Shelf) -> None:
    offer, other = shelf.hold(2, offer=1), shelf.hold(3)
    held_events.withdraw_held_offers(shelf.tx, KEY, shelf.pair)
    assert (shelf.state_of(offer), shelf.state_of(other)) == (
        InboxState.WITHDRAWN,
        InboxState.HELD,
    )
    assert shelf.pair.held == 1


def test_an_event_is_found_by_its_reason_to_wait(shelf: Shelf) -> None:
    envelope = shelf.hold(2, "blob")
    assert wanted_blobs(shelf.tx) == [(DIGEST, "a")]
    assert shelf.full.names(shelf.tx) == []
    found = held_events.first_held(shelf.tx, KEY)
    assert found is not None
    held_events.keep_waiting(shelf.tx, shelf.holds, KEY, found, envelope, "full")
    assert wanted_blobs(shelf.tx) == []
    assert shelf.full.names(shelf.tx) == ["bob"]
    assert pairs_held_for_capacity(shelf.tx, "bob") == [KEY]
