"""What a sender does by itself: retry, wait, re-route, give up, ask."""

from functools import partial

import pytest
from msgspec import UNSET, Raw

from gatepost.delivery.decisions import ReceiptArrived
from gatepost.delivery.send_request import fingerprint_send
from gatepost.events import Kind, Receipt, decode_payload
from gatepost.events.envelope import DeadLetter, Signal
from gatepost.journal import Tx
from gatepost.routing import Directory, Gateway, Home, Rule
from gatepost.wire import NewSend
from tests.delivery.mesh import Gate, Mesh

SECOND = 1_000
DAY = 86_400 * SECOND


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b", "c")


@pytest.fixture
def a(mesh: Mesh) -> Gate:
    return mesh["a"]


@pytest.fixture
def b(mesh: Mesh) -> Gate:
    return mesh["b"]


@pytest.fixture
def c(mesh: Mesh) -> Gate:
    return mesh["c"]


def online(mesh: Mesh, *names: str, fallback: bool = False) -> None:
    """Everyone believes these to be there; with `fallback`, c stands by for b's agent."""
    gateways = {id: Gateway(gate.key.public, id in names) for id, gate in mesh.gates.items()}
    agents = {id.upper(): Home(id, ("c",) if id == "b" else ()) for id in mesh.gates}
    rules = {"B": Rule("b", ("c",))} if fallback else {}
    if fallback:
        mesh["c"].do(lambda tx: mesh["c"].agents.register(tx, "B", standby=True))
    for gate in mesh.gates.values():
        gate.see(Directory(gateways, agents, rules))


def wait(mesh: Mesh, ms: int) -> None:
    """Time passes, and everyone notices."""
    mesh.clock.advance(ms)
    for gate in mesh.gates.values():
        gate.do(lambda tx: None)
    mesh.flow()


def attempts(a: Gate, event_id: str) -> list[int]:
    return [e.attempt for e in a.events() if e.event_id == event_id]


def letters(a: Gate) -> list[DeadLetter]:
    return [decode_payload(e, DeadLetter) for e in a.events() if e.kind == Kind.DEAD_LETTER]


def signals(gate: Gate, to: str) -> list[str]:
    found = [e for e in gate.events() if e.kind == Kind.SIGNAL and e.to_node_id == to]
    return [decode_payload(e, Signal).signal for e in found]


def test_without_an_answer_it_is_sent_again_without_its_payload(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    sent = a.send(b).event_id
    wait(mesh, 19 * SECOND)
    assert attempts(a, sent) == [1]
    wait(mesh, 2 * SECOND)
    assert a.state(sent) == "retry_pending"
    wait(mesh, 3 * SECOND)
    assert (a.state(sent), attempts(a, sent)) == ("emitted", [1, 2])
    first, again = a.events()
    assert first.payload is not UNSET
    assert again.payload is UNSET


def test_attempts_go_on_though_the_clock_was_set_back(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b).event_id
    for number in range(2, 4):
        mesh.clock.advance(-DAY // 24)
        wait(mesh, 0)
        wait(mesh, 20 * SECOND)
        assert a.state(sent) == "retry_pending"
        mesh.clock.advance(-DAY // 24)
        wait(mesh, 0)
        wait(mesh, 360 * SECOND)
        assert attempts(a, sent) == list(range(1, number + 1))


def test_after_fifteen_attempts_it_is_given_up_and_kept(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b, b'{"keep": "me"}').event_id
    for _ in range(60):
        wait(mesh, 400 * SECOND)
    assert a.state(sent) == "dead_letter"
    assert len(attempts(a, sent)) == 15
    assert [letter.reason for letter in letters(a)] == ["exhausted"]
    assert a.rows("SELECT payload FROM undelivered") == [(b'{"keep": "me"}',)]
    assert a.incidents("dead_letter") == [sent]


def test_no_attempt_is_spent_on_who_is_away(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a", "c")
    sent = a.send(b).event_id
    wait(mesh, DAY - SECOND)
    assert (a.state(sent), attempts(a, sent)) == ("emitted", [1])
    wait(mesh, 2 * SECOND)
    assert (a.state(sent), letters(a)[0].reason) == ("dead_letter", "expired")


def test_who_comes_back_gets_what_waited(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a", "c")
    ids = a.send_many(b, 3)
    wait(mesh, 3_600 * SECOND)
    online(mesh, "a", "b", "c")
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == ids
    assert a.state(ids[0]) == "accepted"


def test_accepted_and_not_processed_is_an_incident_and_a_question(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    mesh.link("a", "b")
    sent = a.send(b).event_id
    mesh.flow()
    wait(mesh, 601 * SECOND)
    assert a.state(sent) == "incident"
    assert a.incidents("sla_breach") == [sent]
    assert signals(a, "b") == ["status_request"]
    b.settle()
    mesh.flow()
    assert a.state(sent) == "processed"
    assert attempts(a, sent) == [1]


def test_a_receipt_counts_only_from_where_it_was_routed(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b).event_id
    said = Receipt(status="processed", outcome="ok")
    a.do(lambda tx: a.coordinator.apply(tx, [ReceiptArrived("c", sent, said)]))
    assert a.state(sent) == "emitted"
    assert a.core.sender.receipts.ignored == 1


def test_a_late_receipt_amends_a_dead_letter(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a")
    sent = a.send(b).event_id
    wait(mesh, DAY + SECOND)
    late = ReceiptArrived("b", sent, Receipt(status="accepted"))
    a.do(lambda tx: a.coordinator.apply(tx, [late]))
    assert a.state(sent) == "dead_letter"
    assert a.rows("SELECT verdict FROM undelivered") == [("accepted",)]


def test_an_offer_is_engaged_only_when_it_is_confirmed(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a", "b", "c", fallback=True)
    wire = mesh.link("a", "b")
    mesh.flow()
    wire.end_of(b).tamper = lambda frame: None
    sent = a.send(b).event_id
    mesh.flow()
    assert (a.state(sent), b.mail()) == ("emitted", [])
    wire.cut()
    mesh.link("a", "b")
    mesh.flow()
    assert (a.state(sent), b.mail()) == ("accepted", [sent])
    assert signals(a, "b") == ["confirm"]


def test_a_fallback_takes_over_and_the_owner_that_returns_does_nothing(
    mesh: Mesh, a: Gate, b: Gate, c: Gate
) -> None:
    online(mesh, "a", "b", "c", fallback=True)
    mesh.link("a", "c")
    ids = a.send_many(b, 3)
    mesh.flow()
    online(mesh, "a", "c", fallback=True)
    mesh.flow()
    assert signals(a, "b") == ["withdraw"] * 3
    taken = c.rows("SELECT m.msg_id FROM mail m JOIN mailbox x ON x.id = m.mailbox"
                   " WHERE x.name = 'B' ORDER BY m.arrival")  # fmt: skip
    assert [row[0] for row in taken] == ids
    online(mesh, "a", "b", "c", fallback=True)
    mesh.link("a", "b")
    mesh.flow()
    assert b.mail() == []
    assert {a.state(id) for id in ids} == {"accepted"}


def test_a_pair_with_accepted_work_waits_for_its_owner(mesh: Mesh, a: Gate, b: Gate) -> None:
    online(mesh, "a", "b", "c", fallback=True)
    wire = mesh.link("a", "b")
    mesh.link("a", "c")
    first = a.send(b).event_id
    mesh.flow()
    wire.cut()
    online(mesh, "a", "c", fallback=True)
    second = a.send(b).event_id
    mesh.flow()
    assert (a.state(first), a.state(second)) == ("accepted", "emitted")
    mesh.link("a", "b")
    b.settle()
    mesh.flow()
    assert (a.state(first), a.state(second)) == ("processed", "accepted")


def take_turns(gate: Gate, tx: Tx) -> list[str]:
    """Whoever is B here takes and acks all there is."""
    mail = gate.dispatcher.dequeue(tx, "B", "x", 100)
    gate.coordinator.ack(tx, "B", [each.receipt for each in mail], [], {})
    return [each.msg_id for each in mail]


def test_a_pair_that_moves_there_and_back_drains(mesh: Mesh, a: Gate, b: Gate, c: Gate) -> None:
    """Each node goes on as soon as what was before its part is settled, wherever."""
    online(mesh, "a", "b", "c", fallback=True)
    wire = mesh.link("a", "b")
    mesh.link("a", "c")
    ids = a.send_many(b, 2)
    mesh.flow()
    wire.cut()
    online(mesh, "a", "c", fallback=True)
    ids += a.send_many(b, 2)
    mesh.flow()
    online(mesh, "a", "b", "c", fallback=True)
    ids += a.send_many(b, 2)
    mesh.link("a", "b")
    turns: list[str] = []
    for _ in range(10):
        mesh.flow()
        for gate in (b, c):
            turns += gate.do(partial(take_turns, gate))
    assert turns == ids
    assert {a.state(id) for id in ids} == {"processed"}


def test_who_takes_over_does_not_wait_for_what_died_behind_it_on_the_old_route(
    mesh: Mesh, a: Gate, b: Gate, c: Gate
) -> None:
    online(mesh, "a", "b", "c", fallback=True)
    mesh.link("a", "c")
    first = a.send(b).event_id
    gone = a.send(b, ttl_secs=5.0).event_id
    wait(mesh, 6 * SECOND)
    assert a.state(gone) == "dead_letter"
    online(mesh, "a", "c", fallback=True)
    last = a.send(b).event_id
    mesh.flow()
    assert c.do(partial(take_turns, c)) == [first, last]


def test_nobody_can_take_it_is_told_at_once_and_kept(mesh: Mesh, a: Gate) -> None:
    gateways = {"a": Gateway(a.key.public)}
    a.see(Directory(gateways, {"GONE": Home(None)}))
    new = NewSend("A", "GONE", Raw(b"1"))
    sent = a.do(lambda tx: a.coordinator.send(tx, new, fingerprint_send(new)))
    assert (sent.state, sent.reason) == ("dead_letter", "no_route")
    assert [letter.reason for letter in letters(a)] == ["no_route"]
    assert a.rows("SELECT payload FROM undelivered") == [(b"1",)]
