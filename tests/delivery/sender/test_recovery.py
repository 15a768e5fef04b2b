"""After a journal was lost: deliveries to a restored owner, and those of a restored sender."""

from gatepost.delivery.decisions import GiveUpDelivery, OwnerRestored
from gatepost.events import EventKind, Signal, decode_payload
from tests.delivery.mesh import Gate
from tests.delivery.sender.tools import signals


def test_only_what_a_restored_owner_may_have_heard_of_is_given_up(a: Gate, b: Gate) -> None:
    first, second = a.send(b).event_id, a.send(b).event_id
    sent_seq = a.value("SELECT min(seq) FROM outbox WHERE to_node = 'b'")
    recovery = a.core.sender.recovery
    decisions = a.do(lambda tx: recovery.give_up_sent(tx, "b", sent_seq, "it was restored"))
    found = a.do(lambda tx: a.core.sender.deliveries.find(tx, first))
    given_up = GiveUpDelivery(found, "owner_restored", "it was restored")
    assert decisions == [given_up, OwnerRestored("b")]
    a.do(lambda tx: a.coordinator.apply_decisions(tx, decisions))
    assert (a.state(first), a.state(second)) == ("dead_letter", "emitted")


def test_a_restored_owner_is_told_which_numbers_never_come_again(a: Gate, b: Gate) -> None:
    a.send_many(b, 3)
    restored = OwnerRestored("b")
    a.do(lambda tx: a.core.sender.recovery.announce_closed_pairs(tx, restored))
    (event,) = [event for event in a.events() if event.kind == EventKind.SIGNAL]
    signal = decode_payload(event, Signal)
    assert (signal.signal, signal.from_agent, signal.to_agent, signal.through) == (
        "pair_closed", "A", "B", 3,
    )  # fmt: skip


def test_a_restored_sender_asks_about_each_open_delivery_once(a: Gate, b: Gate) -> None:
    ids = a.send_many(b, 3)
    recovery = a.core.sender.recovery
    counts = [a.do(lambda tx: recovery.doubt_open(tx, 2))[0] for _ in range(3)]
    assert counts == [2, 1, 0]
    assert {a.state(id) for id in ids} == {"incident"}
    assert signals(a, "b") == ["status_request"] * 3
