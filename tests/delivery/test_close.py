"""The transaction close: receipts, the ends of deliveries, and giving up."""

from gatepost.delivery import restore
from gatepost.delivery.close import apply_receipt, give_up_delivery
from gatepost.delivery.decisions import (
    DeliveryEnded,
    GiveUpDelivery,
    HoldReported,
    PairMoved,
    ReceiptArrived,
)
from gatepost.delivery.delivery_table import find_delivery
from gatepost.delivery.outgoing import SenderPair
from gatepost.events import EventKind, Receipt
from tests.delivery.mesh import Gate, Mesh
from tests.delivery.tools import letters, online, signals, wait

SECOND = 1_000
DAY = 86_400 * SECOND


def test_a_receipt_counts_only_from_where_it_was_routed(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b).event_id
    said = Receipt(status="processed", outcome="ok")
    a.do(lambda tx: a.coordinator.apply_decisions(tx, [ReceiptArrived("c", sent, said)]))
    assert a.state(sent) == "emitted"
    assert a.core.parts.counts.ignored_receipts == 1


def test_the_acceptance_of_a_withdrawn_offer_does_not_count_for_the_next(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    """Its node may hold the next one, or refuse it."""
    online(mesh, "a", "b", "c", fallback=True)
    sent = a.send(b).event_id
    online(mesh, "a", "c", fallback=True)
    mesh.flow()
    online(mesh, "a", "b", fallback=True)
    mesh.flow()
    assert a.rows("SELECT node, offer FROM delivery") == [("b", 3)]

    def accept(offer: int) -> str:
        said = ReceiptArrived("b", sent, Receipt(status="accepted", offer=offer))
        a.do(lambda tx: a.coordinator.apply_decisions(tx, [said]))
        return a.state(sent)

    assert [accept(offer) for offer in (1, 0, 3)] == ["emitted", "emitted", "accepted"]
    assert signals(a, "b") == ["withdraw", "confirm"]


def test_a_late_receipt_amends_a_dead_letter(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a")
    sent = a.send(b).event_id
    wait(mesh, DAY + SECOND)
    late = ReceiptArrived("b", sent, Receipt(status="accepted"))
    a.do(lambda tx: a.coordinator.apply_decisions(tx, [late]))
    assert a.state(sent) == "dead_letter"
    assert a.rows("SELECT verdict FROM undelivered") == [("accepted",)]


def test_a_journal_that_was_restored_empty_has_forgotten_what_others_hold(a: Gate, b: Gate) -> None:
    """Its former incarnation has left no trace in it."""
    unknown = HoldReported("b", b.node.event_ids.next_id(), "blob")
    a.do(lambda tx: a.coordinator.apply_decisions(tx, [unknown]))
    assert signals(a, "b") == [], "a journal that was never restored has not forgotten it"
    a.do(lambda tx: restore.begin_incarnation(tx, "a-2", 1))
    a.do(lambda tx: a.coordinator.apply_decisions(tx, [unknown]))
    assert signals(a, "b") == ["forgotten"]


def test_later_messages_of_a_pair_do_not_wait_for_a_reply_that_is_under_way(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    """Its turn has ended. Replies wait for messages, so messages must not wait for replies."""
    sent = a.send(b).event_id
    receipt = Receipt(status="processed", outcome="ok", replied=True)
    decisions = a.do(lambda tx: apply_receipt(a.core.parts, tx, ReceiptArrived("b", sent, receipt)))
    assert PairMoved(SenderPair("A", "B")) in decisions
    assert a.rows("SELECT state, pair_seq FROM delivery") == [("accepted", 0)]


def test_a_delivery_that_is_given_up_ends_and_keeps_its_payload(a: Gate, b: Gate) -> None:
    id = a.send(b, b'"keep me"').event_id
    found = a.do(lambda tx: find_delivery(tx, id))
    decision = GiveUpDelivery(found, "exhausted", "b never answered", "refused: full")
    decisions = a.do(lambda tx: give_up_delivery(a.core.parts, tx, decision))
    ended = DeliveryEnded(
        id,
        SenderPair("A", "B"),
        "dead_letter",
        "exhausted",
        "mailbox",
        "message",
        None,
        "refused: full",
    )
    assert list(decisions) == [ended]
    (letter,) = letters(a)
    assert (letter.reason, letter.detail, letter.pair_seq) == ("exhausted", "b never answered", 1)
    kept = a.rows("SELECT reason, verdict, payload FROM undelivered")
    assert kept == [("exhausted", "refused: full", b'"keep me"')]
    assert a.incidents("dead_letter") == [id]


def test_the_dead_letter_goes_to_the_node_that_may_hold_the_event(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    id = a.send(b).event_id
    found = a.do(lambda tx: find_delivery(tx, id))
    a.do(lambda tx: a.coordinator.apply_decisions(tx, [GiveUpDelivery(found, "expired", "late")]))
    (event,) = [event for event in a.events() if event.kind == EventKind.DEAD_LETTER]
    assert (event.to_node_id, event.ref_event_id) == ("b", id)
