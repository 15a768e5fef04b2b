"""Decisions are applied depth first, and are void once their delivery has changed."""

import pytest

from gatepost.delivery.decisions import (
    GiveUpDelivery,
    OwnEvent,
    ReceiptArrived,
    RerouteDelivery,
)
from gatepost.delivery.delivery_table import find_delivery
from gatepost.delivery.outbox_writer import ACCEPTED, PROCESSED
from gatepost.events import EventKind
from gatepost.journal import Tx
from gatepost.routing import Route
from tests.delivery.mesh import Gate, Mesh


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b")


@pytest.fixture
def a(mesh: Mesh) -> Gate:
    return mesh["a"]


def test_what_follows_from_a_decision_comes_before_the_next_one(mesh: Mesh, a: Gate) -> None:
    """Two deliveries come home: the first is mail before the second is even routed."""
    ids = a.send_many(mesh["b"], 2)
    order: list[tuple[str, str]] = []
    handlers = a.coordinator._handlers
    for kind, label in ((RerouteDelivery, "reroute"), (OwnEvent, "take")):
        honest = handlers[kind]

        def watched(tx: Tx, decision: object, honest=honest, label=label) -> object:  # type: ignore[no-untyped-def]
            order.append((label, _event_id(decision)))
            return honest(tx, decision)

        handlers[kind] = watched  # type: ignore[assignment]

    def come_home(tx: Tx) -> None:
        a.agents.register(tx, "B")
        found = [find_delivery(tx, id) for id in ids]
        route = Route("a", "moved")
        a.coordinator.apply_decisions(tx, [RerouteDelivery(each, route) for each in found if each])

    a.do(come_home)
    taken = [each for each in order if each[1] in ids]
    assert taken == [(what, id) for id in ids for what in ("reroute", "take")]
    assert {a.state(id) for id in ids} == {"accepted"}


def _event_id(decision: object) -> str:
    if isinstance(decision, RerouteDelivery):
        return decision.delivery.id
    assert isinstance(decision, OwnEvent)
    return decision.draft.event_id if decision.draft.kind == EventKind.MESSAGE else ""


@pytest.mark.parametrize("reason", ["refused", "expired"])
def test_a_delivery_that_ended_meanwhile_is_not_given_up(mesh: Mesh, a: Gate, reason: str) -> None:
    id = a.send(mesh["b"]).event_id
    found = a.do(lambda tx: find_delivery(tx, id))
    ended = [ReceiptArrived("b", id, ACCEPTED), ReceiptArrived("b", id, PROCESSED)]
    a.do(lambda tx: a.coordinator.apply_decisions(tx, ended))
    a.do(lambda tx: a.coordinator.apply_decisions(tx, [GiveUpDelivery(found, reason, "late")]))
    assert a.state(id) == "processed"
    assert a.incidents("dead_letter") == []


def test_a_delivery_that_was_accepted_meanwhile_is_not_routed_elsewhere(
    mesh: Mesh, a: Gate
) -> None:
    id = a.send(mesh["b"]).event_id
    found = a.do(lambda tx: find_delivery(tx, id))
    a.do(lambda tx: a.coordinator.apply_decisions(tx, [ReceiptArrived("b", id, ACCEPTED)]))
    before = len(a.events())
    moved = RerouteDelivery(found, Route("a", "moved"))
    a.do(lambda tx: a.coordinator.apply_decisions(tx, [moved]))
    assert (a.state(id), len(a.events())) == ("accepted", before)
