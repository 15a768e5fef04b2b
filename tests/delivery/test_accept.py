"""The receiver accepts, holds, refuses, and answers again."""

from collections.abc import Callable

import pytest
from msgspec import Raw
from msgspec.structs import replace as changed

from gatepost.delivery.delivery_table import find_delivery
from gatepost.delivery.parts import TaskHub
from gatepost.delivery.send_request import fingerprint_send
from gatepost.delivery.timers import draft_retry
from gatepost.events import Envelope, EventKind, Receipt, decode_payload
from gatepost.journal import Tx
from gatepost.mailbox import MailboxPolicy
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory
from gatepost.wire.operations import NewSend
from tests.delivery.mesh import Gate, Mesh


@pytest.fixture
def mesh() -> Mesh:
    mesh = Mesh("a", "b")
    mesh.link("a", "b")
    mesh.flow()
    return mesh


@pytest.fixture
def a(mesh: Mesh) -> Gate:
    return mesh["a"]


@pytest.fixture
def b(mesh: Mesh) -> Gate:
    return mesh["b"]


def receipts(gate: Gate) -> list[tuple[str, str | None]]:
    found = [decode_payload(e, Receipt) for e in gate.events() if e.kind == EventKind.ACK]
    return [(said.status, said.reason) for said in found]


def held(gate: Gate) -> list[str]:
    return [row[0] for row in gate.rows("SELECT why FROM held ORDER BY pair_seq")]


def test_a_full_mailbox_holds_mail_and_lets_receipts_through(mesh: Mesh, a: Gate, b: Gate) -> None:
    b.dispatcher.policy = changed(MailboxPolicy(), max_pending=2)
    mine = b.send(a).event_id
    mesh.flow()
    ids = a.send_many(b, 5)
    a.settle()
    mesh.flow()
    assert (b.mail(), held(b)) == (ids[:2], ["full", "order", "order"])
    assert b.state(mine) == "processed", "the receipt was behind what is held"
    assert [a.state(id) for id in ids] == ["accepted"] * 2 + ["emitted"] * 3
    while b.settle():
        mesh.flow()
    assert (b.mail(), held(b)) == (ids, [])
    assert {a.state(id) for id in ids} == {"processed"}


def test_mail_for_a_full_mailbox_is_not_given_up_before_it_expires(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    b.dispatcher.policy = changed(MailboxPolicy(), max_pending=1)
    ids = a.send_many(b, 3)
    mesh.flow()
    assert held(b) == ["full", "order"]
    assert a.rows("SELECT reason FROM delivery ORDER BY pair_seq")[1] == ("held: full",)
    for _ in range(200):
        mesh.clock.advance(120_000)
        for gate in (a, b):
            gate.do(lambda tx: None)
        mesh.flow()
    assert {a.state(id) for id in ids[1:]} <= {"emitted", "retry_pending"}
    assert a.rows("SELECT reason FROM delivery ORDER BY pair_seq")[2] == ("held: order",)
    while b.settle():
        mesh.flow()
    assert [a.state(id) for id in ids] == ["processed"] * 3
    assert a.rows("SELECT DISTINCT reason FROM delivery") == [(None,)]


def test_mail_for_a_full_mailbox_is_given_up_when_it_expires(mesh: Mesh, a: Gate, b: Gate) -> None:
    b.dispatcher.policy = changed(MailboxPolicy(), max_pending=1)
    a.send(b)
    late = a.send(b, ttl_secs=3600.0).event_id
    mesh.flow()
    for _ in range(31):
        mesh.clock.advance(120_000)
        a.do(lambda tx: None)
        mesh.flow()
    assert a.state(late) == "dead_letter"
    assert a.rows("SELECT reason FROM undelivered") == [("expired",)]
    assert held(b) == []


def test_an_owner_that_falls_silent_is_given_up_though_it_held_the_event(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    b.dispatcher.policy = changed(MailboxPolicy(), max_pending=1)
    a.send(b)
    lost = a.send(b).event_id
    mesh.flow()
    b.jobs.clear()
    for _ in range(100):
        mesh.clock.advance(400_000)
        a.do(lambda tx: None)
    assert a.state(lost) == "dead_letter"
    assert a.rows("SELECT reason FROM undelivered") == [("exhausted",)]


def test_an_agent_that_is_not_here_is_refused(mesh: Mesh, a: Gate, b: Gate) -> None:
    gateways = {id: GatewayEntry(gate.key.public) for id, gate in mesh.gates.items()}
    a.see(RoutingDirectory(gateways, {"GHOST": AgentHome("b")}))
    new = NewSend("A", "GHOST", Raw(b"1"))
    sent = a.do(lambda tx: a.coordinator.send(tx, new, fingerprint_send(new)))
    mesh.flow()
    assert ("refused", "no_agent") in receipts(b)
    assert a.state(sent.event_id) == "dead_letter"


def test_an_event_that_expired_on_the_way_is_not_engaged(mesh: Mesh, a: Gate, b: Gate) -> None:
    for wire in mesh.wires:
        wire.cut()
    sent = a.send(b, ttl_secs=1.0).event_id
    mesh.clock.advance(2_000)
    mesh.link("a", "b")
    mesh.flow()
    assert (b.mail(), a.state(sent)) == ([], "dead_letter")


def test_the_same_event_again_is_answered_and_not_taken_again(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b).event_id
    mesh.flow()
    b.settle()
    mesh.flow()
    before = len(b.events())
    a.do(lambda tx: tx.append_event(_again(a, tx, sent)))
    mesh.flow()
    assert b.mail() == [sent]
    assert [e.kind for e in b.events()[before:]] == [EventKind.ACK, EventKind.ACK]


def _again(gate: Gate, tx: Tx, event_id: str) -> Envelope:
    """The event as a retry appends it."""
    found = find_delivery(tx, event_id)
    assert found is not None
    return draft_retry(found)


def test_a_dead_letter_closes_its_gap(mesh: Mesh, a: Gate, b: Gate) -> None:
    b.dispatcher.policy = changed(MailboxPolicy(), max_pending=1)
    a.send(b)
    gone = a.send(b, ttl_secs=5.0).event_id
    last = a.send(b).event_id
    mesh.flow()
    assert held(b) == ["full", "order"]
    mesh.clock.advance(6_000)
    a.do(lambda tx: None)
    mesh.flow()
    assert a.state(gone) == "dead_letter"
    b.settle()
    b.do(lambda tx: None)
    mesh.flow()
    assert b.mail()[1:] == [last]


def test_a_held_event_that_cannot_be_released_fails_no_commit_of_others(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    b.dispatcher.policy = changed(MailboxPolicy(), max_pending=1)
    ids = a.send_many(b, 3)
    mesh.flow()

    class FailingHub(TaskHub):
        def needs_check(
            self, tx: Tx, envelope: Envelope, open_payload: Callable[[], bytes]
        ) -> bool:
            if envelope.event_id == ids[1]:
                raise KeyError("a bug")
            return False

    b.core.parts.hub = FailingHub()
    b.dispatcher.policy = MailboxPolicy()
    b.settle()
    mine = b.send(a).event_id
    mesh.flow()
    assert (mine in a.mail(), b.incidents("unreadable_event")) == (True, [f"a/{ids[1]}"])
    assert (a.state(ids[1]), b.mail(), held(b)) == ("dead_letter", [ids[0], ids[2]], [])
