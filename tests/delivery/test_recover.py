"""After a journal was lost: deliveries to a restored owner, and those of a restored sender."""

from functools import partial

from gatepost.delivery.decisions import (
    GiveUpDelivery,
    JournalLost,
    ReaderRestored,
    ReaderResumed,
    RerouteDelivery,
)
from gatepost.delivery.delivery_table import find_delivery
from gatepost.delivery.recover import announce_resumed, answer_restored, doubt_open, greet_reader
from gatepost.events import EventKind, Signal, decode_payload
from gatepost.routing import Route
from tests.delivery.mesh import Gate
from tests.delivery.tools import signals


def test_only_what_a_restored_owner_may_have_heard_of_is_given_up(a: Gate, b: Gate) -> None:
    first, second = a.send(b).event_id, a.send(b).event_id
    sent_seq = a.value("SELECT min(seq) FROM outbox WHERE to_node = 'b'")
    heard = "UPDATE recipient SET sent_seq = ?, incarnation = 'b-1' WHERE node_id = 'b'"
    a.do(lambda tx: tx.execute(heard, (sent_seq,)))
    decisions = a.do(lambda tx: greet_reader(a.core.parts, tx, "b", "b-2", 0, restored=False))
    found = a.do(lambda tx: find_delivery(tx, first))
    given_up = GiveUpDelivery(found, "owner_restored", "b has another journal than it had")
    assert decisions == [given_up, ReaderResumed("b", "b-2"), JournalLost("b")]
    a.do(lambda tx: a.coordinator.apply_decisions(tx, decisions))
    assert (a.state(first), a.state(second)) == ("dead_letter", "emitted")


def test_an_event_that_came_again_after_the_backup_is_given_up(a: Gate, b: Gate) -> None:
    """The backup knows that it was refused, and not what became of it when it came again."""
    sent = a.send(b).event_id
    (first,) = a.rows("SELECT seq FROM outbox WHERE to_node = 'b'")[0]
    found = a.do(lambda tx: find_delivery(tx, sent))
    again = RerouteDelivery(found, Route("b", "retry", False))
    a.do(lambda tx: a.coordinator.apply_decisions(tx, [again]))
    a.do(lambda tx: tx.execute("UPDATE recipient SET sent_seq = last_seq, incarnation = 'b-1'"))
    a.do(lambda tx: a.coordinator.greet_reader(tx, "b", "b-2", first, restored=True))
    assert a.state(sent) == "dead_letter"


def test_a_restored_owner_is_told_which_numbers_never_come_again(a: Gate, b: Gate) -> None:
    a.send_many(b, 3)
    resumed = ReaderResumed("b", "b-2")
    a.do(lambda tx: announce_resumed(a.core.parts, tx, resumed))
    said = [decode_payload(each, Signal) for each in a.events() if each.kind == EventKind.SIGNAL]
    closed = Signal(signal="pair_closed", from_agent="A", to_agent="B", through=3)
    assert said == [closed, Signal(signal="resumed", text="b-2", through=0)]


def test_a_reader_is_resumed_once_and_answered_each_time_it_asks(a: Gate) -> None:
    resumed, greet = ReaderResumed("b", "b-2"), partial(greet_reader, a.core.parts)
    assert a.do(lambda tx: greet(tx, "b", "b-1", 0, restored=False)) == (), "its first journal"
    assert a.do(lambda tx: greet(tx, "b", "b-1", 0, restored=False)) == ()
    assert a.do(lambda tx: greet(tx, "b", "b-2", 0, restored=False)) == [resumed, JournalLost("b")]
    restored = ReaderRestored("b", "b-2", "a-1", 0)
    assert a.do(lambda tx: answer_restored(a.core.parts, tx, restored)) == [resumed]


def test_a_restored_reader_that_was_never_met_may_have_heard_by_relays(a: Gate, b: Gate) -> None:
    sent = a.send(b).event_id
    a.do(lambda tx: tx.execute("UPDATE recipient SET sent_seq = last_seq"))
    greeted = a.do(lambda tx: a.coordinator.greet_reader(tx, "b", "b-2", 0, restored=True))
    assert (greeted, a.state(sent)) == (True, "dead_letter")


def test_a_restored_sender_asks_about_each_open_delivery_once(a: Gate, b: Gate) -> None:
    ids = a.send_many(b, 3)
    counts = [a.do(lambda tx: doubt_open(a.core.parts, tx, 2))[0] for _ in range(3)]
    assert counts == [2, 1, 0]
    assert {a.state(id) for id in ids} == {"incident"}
    assert signals(a, "b") == ["status_request"] * 3


def test_a_restored_gateway_does_not_try_again_what_it_may_have_done_itself(
    a: Gate, b: Gate
) -> None:
    """Its agent was not registered yet when the backup was made."""
    sent = a.send(b).event_id
    a.do(lambda tx: tx.execute("UPDATE delivery SET node = 'a', state = 'retry_pending'"))
    _, decisions = a.do(lambda tx: doubt_open(a.core.parts, tx, 2))
    a.do(lambda tx: a.coordinator.apply_decisions(tx, decisions))
    assert a.state(sent) == "dead_letter"
    assert a.rows("SELECT reason FROM undelivered") == [("owner_restored",)]
