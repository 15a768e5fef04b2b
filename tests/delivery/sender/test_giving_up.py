"""Giving up a delivery: dead letter, incident, and the payload kept for a replay."""

from gatepost.delivery.decisions import DeliveryEnded, GiveUpDelivery
from gatepost.delivery.outgoing import SenderPair
from gatepost.events import EventKind
from tests.delivery.mesh import Gate, Mesh
from tests.delivery.sender.tools import letters


def test_a_delivery_that_is_given_up_ends_and_keeps_its_payload(a: Gate, b: Gate) -> None:
    id = a.send(b, b'"keep me"').event_id
    found = a.do(lambda tx: a.core.sender.deliveries.find(tx, id))
    decision = GiveUpDelivery(found, "exhausted", "b never answered", "refused: full")
    decisions = a.do(lambda tx: a.core.sender.giving_up.give_up_delivery(tx, decision))
    ended = DeliveryEnded(
        id, SenderPair("A", "B"), "dead_letter", "exhausted", "mailbox", "message", None
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
    found = a.do(lambda tx: a.core.sender.deliveries.find(tx, id))
    a.do(lambda tx: a.coordinator.apply_decisions(tx, [GiveUpDelivery(found, "expired", "late")]))
    (event,) = [event for event in a.events() if event.kind == EventKind.DEAD_LETTER]
    assert (event.to_node_id, event.ref_event_id) == ("b", id)
