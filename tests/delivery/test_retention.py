"""Retention: rows that are forgotten, rows that are kept, and readers the outbox waits for."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.delivery import incident_table, retention
from gatepost.delivery.retention import OutboxBounds
from gatepost.delivery.send_request import fingerprint_send
from gatepost.journal import Tx
from gatepost.wire.operations import NewSend
from tests.delivery.mesh import Gate, Mesh

DAY = 86_400_000
DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b")


def _forget(gate: Gate, age: int = 2 * DAY) -> int:
    total = 0
    while gone := gate.do(lambda tx: retention.forget_closed(tx, gate.core, tx.now - age, 2)):
        total += gone
    return total


def _bounds(gate: Gate, cut_off: int = 30 * DAY) -> OutboxBounds:
    return OutboxBounds(gate.id, gate.core.routes, gate.core.incidents, cut_off)


def _away(gate: Gate, name: str) -> None:
    gateways = dict(gate.directory.gateways)
    gateways[name] = replace(gateways[name], online=False)
    gate.see(replace(gate.directory, gateways=gateways))


def _inbox(gate: Gate) -> int:
    return int(gate.value("SELECT count(*) FROM inbox"))


def _note_acks(mesh: Mesh) -> None:
    """Let every reader say once more how far it is, for that is written down now and then."""
    for wire in list(mesh.wires):
        wire.cut()
    mesh.link("a", "b")
    mesh.flow()


# -- the inbox


def test_taken_events_are_forgotten_once_they_cannot_come_again(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    for _ in range(5):
        a.send(b)
    mesh.flow()
    b.settle()
    mesh.flow()
    _note_acks(mesh)
    assert _forget(b) == 0
    mesh.clock.advance(3 * DAY)
    assert _forget(b) == 5
    assert _inbox(b) == 0


def test_an_event_is_remembered_while_its_mail_is_not_settled(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    a.send(b, ttl_secs=30 * 86_400)
    mesh.flow()
    _note_acks(mesh)
    mesh.clock.advance(3 * DAY)
    _forget(b)
    assert _inbox(b) == 1
    b.settle()
    mesh.flow()
    _note_acks(mesh)
    _forget(b)
    assert _inbox(b) == 0


def test_an_event_is_remembered_until_its_sender_has_read_the_receipt(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    wire = mesh.link("a", "b")
    mesh.flow()
    wire.end_of(b).tamper = lambda frame: None
    a.send(b)
    mesh.flow()
    b.settle()
    mesh.clock.advance(3 * DAY)
    _forget(b)
    assert _inbox(b) == 1
    _note_acks(mesh)
    _forget(b)
    assert _inbox(b) == 0


def test_an_undecided_event_is_let_go_when_it_expires(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    blob = (DIGEST, b"k" * 32, 10, mesh.clock.now())
    a.do(lambda tx: tx.execute("INSERT INTO blob VALUES (?, ?, ?, ?, NULL, NULL)", blob))
    wire = mesh.link("a", "b")
    new = NewSend("A", "B", payload_ref=DIGEST)
    a.do(lambda tx: a.coordinator.send(tx, new, fingerprint_send(new)))
    later = a.send(b, ttl_secs=30 * 86_400).event_id
    mesh.flow()
    wire.cut()
    assert b.mail() == []
    mesh.clock.advance(3 * DAY)
    _forget(b)
    assert b.mail() == [later], "what waited behind it goes on"
    assert b.rows("SELECT * FROM held") == []
    mesh.link("a", "b")
    mesh.flow()
    assert a.rows("SELECT verdict FROM undelivered") == [("refused: expired",)]


def test_of_one_class_the_latest_incidents_are_kept(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_table, "_KEEP_OF_CLASS", 3)
    a = mesh["a"]
    for number in range(8):
        a.do(partial(_raise_skipped, a, f"x/{number}"))
        mesh.clock.advance(1)
    a.do(lambda tx: a.core.incidents.raise_(tx, "relay", "x", "y"))
    assert _forget(a) == 5
    subjects = a.rows("SELECT subject FROM incident ORDER BY subject")
    assert subjects == [("x",), ("x/5",), ("x/6",), ("x/7",)]


def _raise_skipped(gate: Gate, subject: str, tx: Tx) -> None:
    gate.core.incidents.raise_(tx, "skipped", subject, "y")


def test_incidents_are_kept_for_a_month(mesh: Mesh) -> None:
    a = mesh["a"]
    a.do(lambda tx: a.core.incidents.raise_(tx, "skipped", "x", "y"))
    mesh.clock.advance(29 * DAY)
    assert _forget(a) == 0
    mesh.clock.advance(2 * DAY)
    assert _forget(a) == 1
    assert a.incidents() == []


# -- the outbox


def test_the_outbox_waits_for_every_member_that_has_not_read() -> None:
    mesh = Mesh("a", "b", "c")
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    bounds = _bounds(a)
    assert a.do(bounds.lowest_needed) is None
    a.send(b)
    a.send(c)
    first, second = (row[0] for row in a.rows("SELECT seq FROM outbox ORDER BY seq"))
    assert a.do(bounds.lowest_needed) == first
    mesh.link("a", "b")
    mesh.flow()
    assert a.do(bounds.lowest_needed) == second, "b has taken what is for it, c has not"
    assert a.do(bounds.read_through) == second - 1
    mesh.link("a", "c")
    mesh.flow()
    assert a.do(bounds.lowest_needed) is None


def test_a_reader_that_comes_back_says_how_far_it_is(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    bounds = _bounds(a)
    mesh.link("a", "b")
    a.send(b)
    mesh.flow()
    _note_acks(mesh)
    assert a.do(bounds.lowest_needed) is None
    assert a.do(bounds.read_through) is None


def test_the_outbox_keeps_events_an_open_delivery_may_have_to_send_again(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    bounds = _bounds(a)
    assert a.do(bounds.lowest_open) is None
    assert a.do(bounds.closed_through) is None
    first, second = a.send(b).event_id, a.send(b).event_id

    def seq(id: str) -> Any:
        (found,) = [event.seq for event in a.events() if event.event_id == id]
        return found

    assert a.do(bounds.lowest_open) == seq(first)
    mesh.link("a", "b")
    mesh.flow()
    (mail, _) = b.do(lambda tx: b.dispatcher.dequeue(tx, "B", "c", 2))
    b.do(lambda tx: b.coordinator.ack(tx, "B", [mail.receipt], [], {}))
    mesh.flow()
    assert a.do(bounds.lowest_open) == seq(second)
    assert a.do(bounds.closed_through) == seq(second) - 1


def test_a_reader_that_is_away_too_long_is_cut_off_and_told(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    bounds = _bounds(a, cut_off=10 * DAY)
    old = a.send(b, ttl_secs=60).event_id
    _away(a, "b")
    mesh.clock.advance(9 * DAY)
    a.do(lambda tx: None)
    recent = a.send(b).event_id
    assert a.do(bounds.cut_off_readers) == []
    mesh.clock.advance(2 * DAY)
    assert a.do(bounds.cut_off_readers) == ["b"]
    (seq,) = [e.seq for e in a.events() if e.event_id == recent and e.kind == "message"]
    assert a.do(bounds.lowest_needed) is not None
    assert a.value("SELECT cut_seq FROM recipient WHERE node_id = 'b'") < seq
    (incident,) = a.incidents("reader_cut_off")
    assert incident.startswith("b/")
    assert a.do(bounds.cut_off_readers) == [], "what is newer waits on"
    cut = a.value("SELECT cut_seq FROM recipient WHERE node_id = 'b'")
    a.connection.execute("DELETE FROM outbox WHERE seq <= ?", (cut,))
    mesh.meet()
    mesh.link("a", "b")
    mesh.flow()
    assert b.incidents("skipped") != []
    assert old not in b.mail()


def test_a_member_that_is_there_is_never_cut_off(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    a.send(b, ttl_secs=60 * 86_400)
    mesh.clock.advance(40 * DAY)
    assert a.do(_bounds(a).cut_off_readers) == []


def test_a_member_without_events_needs_nothing(mesh: Mesh) -> None:
    a = mesh["a"]
    _away(a, "b")
    a.send(a)
    mesh.clock.advance(60 * DAY)
    assert a.do(_bounds(a).lowest_needed) is None
    assert a.do(_bounds(a).cut_off_readers) == []
