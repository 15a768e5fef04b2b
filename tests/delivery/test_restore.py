"""Coming back from a backup: a new incarnation, in which nothing is done twice or lost."""

from typing import Any

import apsw
import pytest
from msgspec import Raw
from msgspec.structs import replace

from gatepost.delivery import restore
from gatepost.delivery.answers import report_hold
from gatepost.delivery.outbox_writer import RESTORED
from gatepost.delivery.send_request import fingerprint_send
from gatepost.delivery.undelivered import is_safe_to_replay
from gatepost.journal import Tx, Writer
from gatepost.mailbox import MailboxPolicy
from gatepost.routing import AgentHome, RoutingDirectory, RoutingRule
from gatepost.wire.operations import NewSend
from tests.delivery.mesh import Gate, Mesh, Wire

DIGEST = "sha256:" + "a" * 64
LEAP = 1000


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b")


def _link(mesh: Mesh) -> Wire:
    wire = mesh.link("a", "b")
    mesh.flow()
    return wire


def _restore(mesh: Mesh, gate: Gate, backup: apsw.Connection) -> None:
    """As the command does it: a new incarnation and the quarantine, before anything else."""
    for wire in list(mesh.wires):
        if gate in (wire.one.gate, wire.other.gate):
            wire.cut()
    gate.connection = backup
    gate.incarnations += 1
    incarnation = f"{gate.id}-{gate.incarnations}"
    bare = Writer(backup, gate.clock, lambda outcomes: None)
    _run(bare, lambda tx: restore.begin_incarnation(tx, incarnation, LEAP))
    gate.start()
    quiet = Writer(backup, gate.clock, lambda outcomes: None, participants=(gate.outbox,))
    while _run(quiet, lambda tx: restore.quarantine(tx, gate.core, 2)):
        pass


def _run(writer: Writer, operation: Any) -> Any:
    found: list[Any] = []
    for done, value, error in writer.run_group([(operation, lambda v, e: found.append((v, e)))]):
        done(value, error)
    ((value, error),) = found
    assert error is None
    return value


def _undelivered(gate: Gate) -> list[Any]:
    return gate.rows("SELECT reason, verdict FROM undelivered ORDER BY event_id")


def _dead(gate: Gate) -> list[Any]:
    return gate.rows("SELECT reason FROM dead_letter ORDER BY id")


def _nothing_open(mesh: Mesh) -> bool:
    return all(
        gate.rows("SELECT count(*) FROM delivery WHERE processed_at IS NULL") == [(0,)]
        for gate in mesh.gates.values()
    )


def test_a_new_incarnation_goes_on_behind_the_backup(mesh: Mesh) -> None:
    _link(mesh)
    a, b = mesh["a"], mesh["b"]
    a.send(b)
    mesh.flow()
    backup = b.backup()
    last = b.value("SELECT max(last_seq) FROM head")
    _restore(mesh, b, backup)
    incarnations = b.rows("SELECT id, first_seq FROM incarnation ORDER BY first_seq")
    assert incarnations == [("b-1", 1), ("b-2", last + 1)]
    facts = dict(b.rows("SELECT name, value FROM fact WHERE name IN ('incarnation', 'leap')"))
    assert facts == {"incarnation": "b-2", "leap": LEAP}


def test_an_incarnation_without_events_leaves_no_trace(mesh: Mesh) -> None:
    b = mesh["b"]
    before = b.backup()
    _restore(mesh, b, before)
    _restore(mesh, b, b.backup())
    assert b.rows("SELECT id FROM incarnation") == [("b-3",)]


def test_mail_that_waits_or_is_in_flight_becomes_dead_letters(mesh: Mesh) -> None:
    _link(mesh)
    a, b = mesh["a"], mesh["b"]
    sent = [a.send(b).event_id for _ in range(5)]
    mesh.flow()
    b.do(lambda tx: b.dispatcher.dequeue(tx, "B", "someone", 2))
    backup = b.backup()
    _restore(mesh, b, backup)
    assert _dead(b) == [(RESTORED,)] * 5
    assert b.rows("SELECT count(*) FROM lease") == [(0,)]
    assert b.settle() == 0, "nobody gets it until somebody releases it"
    _link(mesh)
    states = a.rows("SELECT state, outcome, reason FROM delivery")
    assert states == [("processed", "dead_letter", RESTORED)] * len(sent)


def test_work_done_since_the_backup_is_not_done_again(mesh: Mesh) -> None:
    _link(mesh)
    a, b = mesh["a"], mesh["b"]
    a.send(b)
    mesh.flow()
    backup = b.backup()
    assert b.settle() == 1
    mesh.flow()
    a.send(b)
    mesh.flow()
    assert b.settle() == 1
    mesh.flow()
    _restore(mesh, b, backup)
    _link(mesh)
    assert b.settle() == 0
    outcomes = a.rows("SELECT outcome FROM delivery")
    assert outcomes == [("ok",), ("ok",)], "what the sender was told stands"
    after = a.send(b).event_id
    mesh.flow()
    assert b.settle() == 1, "and what comes now is taken, though numbers are missing"
    mesh.flow()
    assert a.state(after) == "processed"


def test_an_event_taken_since_the_backup_is_given_up_by_its_sender(mesh: Mesh) -> None:
    _link(mesh)
    a, b = mesh["a"], mesh["b"]
    backup = b.backup()
    a.send(b)
    mesh.flow()
    wire = mesh.wires[0]
    wire.cut()
    late = a.send(b).event_id
    _restore(mesh, b, backup)
    _link(mesh)
    assert _undelivered(a) == [("owner_restored", None)]
    assert not is_safe_to_replay("owner_restored", None)
    assert b.mail() == [late], "what it cannot have heard of is delivered"
    b.settle()
    mesh.flow()
    assert _nothing_open(mesh)


def test_an_event_both_sides_forgot_is_not_done_again(mesh: Mesh) -> None:
    wire = _link(mesh)
    a, b = mesh["a"], mesh["b"]
    a.send(b)
    mesh.flow()
    assert b.settle() == 1
    mesh.flow()
    wire.cut()
    a.send(b)
    backups = a.backup(), b.backup()
    _link(mesh)
    assert b.settle() == 1, "it is sent and processed after both backups"
    mesh.flow()
    for gate, backup in zip((a, b), backups, strict=True):
        _restore(mesh, gate, backup)
    _link(mesh)
    assert b.settle() == 0
    mesh.flow()
    assert _nothing_open(mesh)


def test_a_pair_that_went_elsewhere_meanwhile_does_not_wait_for_lost_numbers() -> None:
    """A lost incarnation did numbers 1 and 2; 3 is under way, and 4 goes elsewhere."""
    mesh = Mesh("a", "b", "c")
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    c.do(lambda tx: c.agents.register(tx, "B"))
    wire = _link(mesh)
    backup = b.backup()
    for _ in range(2):
        a.send(b)
    mesh.flow()
    assert b.settle() == 2
    mesh.flow()
    wire.cut()
    third = a.send(b).event_id
    a.see(
        RoutingDirectory(a.directory.gateways, {**a.directory.agents, "B": AgentHome("c", ("b",))})
    )
    fourth = a.send(b).event_id
    _restore(mesh, b, backup)
    mesh.link("a", "b")
    mesh.link("a", "c")
    mesh.flow()
    assert b.mail() == [third]
    b.settle()
    mesh.flow()
    assert c.rows("SELECT msg_id FROM mail") == [(fourth,)], "and then it is the others' turn"


def test_a_retry_after_the_restore_does_not_bring_it_back(mesh: Mesh) -> None:
    """The first of its events was heard by the lost incarnation, a later one was not."""
    wire = _link(mesh)
    a, b = mesh["a"], mesh["b"]
    backup = b.backup()
    wire.end_of(b).tamper = lambda frame: None
    a.send(b)
    mesh.flow()
    assert b.settle() == 1
    wire.cut()
    mesh.clock.advance(30_000)
    a.do(lambda tx: None)
    mesh.clock.advance(5_000)
    a.do(lambda tx: None)
    assert [event.attempt for event in a.events() if event.kind == "message"] == [1, 2]
    _restore(mesh, b, backup)
    _link(mesh)
    assert b.mail() == []
    assert _undelivered(a) == [("owner_restored", "refused: resend")]


def test_a_held_event_goes_back_to_its_senders_judgement(mesh: Mesh) -> None:
    _link(mesh)
    a, b = mesh["a"], mesh["b"]
    blob = (DIGEST, b"k" * 32, 10, mesh.clock.now())
    a.do(lambda tx: tx.execute("INSERT INTO blob VALUES (?, ?, ?, ?, NULL, NULL)", blob))
    new = NewSend("A", "B", payload_ref=DIGEST)
    a.do(lambda tx: a.coordinator.send(tx, new, fingerprint_send(new)))
    a.send(b)
    mesh.flow()
    assert [row[0] for row in b.rows("SELECT why FROM held ORDER BY pair_seq")] == ["blob", "order"]
    _restore(mesh, b, b.backup())
    _link(mesh)
    assert [reason for reason, _ in _undelivered(a)] == ["owner_restored"] * 2
    assert b.rows("SELECT * FROM held") == []
    after = a.send(b).event_id
    mesh.flow()
    assert b.mail() == [after]


def test_open_deliveries_are_asked_about_and_learn_the_truth(mesh: Mesh) -> None:
    """The sender is restored: its owner did the work, and told an incarnation that is lost."""
    _link(mesh)
    a, b = mesh["a"], mesh["b"]
    done, waits = a.send(b).event_id, a.send(b).event_id
    backup = a.backup()
    mesh.flow()
    first, second = b.do(lambda tx: b.dispatcher.dequeue(tx, "B", "c", 2))
    b.do(lambda tx: b.coordinator.ack(tx, "B", [first.receipt], [], {first.receipt: Raw(b'"yes"')}))
    mesh.flow()
    assert a.state(done) == "replied"
    _restore(mesh, a, backup)
    assert [a.state(id) for id in (done, waits)] == ["incident"] * 2
    _link(mesh)
    assert a.state(done) == "processed"
    assert a.state(waits) == "incident", "its turn has not ended"
    assert [reason for reason, _ in _undelivered(b)] == ["owner_restored"], "the answer is kept"
    b.do(lambda tx: b.coordinator.ack(tx, "B", [second.receipt], [], {}))
    mesh.flow()
    assert a.state(waits) == "processed"
    assert len(b.mail()) == 2, "nothing came twice"


def test_a_restored_sender_uses_numbers_again_and_no_receiver_waits(mesh: Mesh) -> None:
    _link(mesh)
    a, b = mesh["a"], mesh["b"]
    a.send(b)
    mesh.flow()
    backup = a.backup()
    lost = [a.send(b).event_id for _ in range(3)]
    mesh.flow()
    _restore(mesh, a, backup)
    _link(mesh)
    new = [a.send(b).event_id for _ in range(5)]
    mesh.flow()
    assert b.mail()[1:] == lost + new, "in their order, though numbers repeat"
    assert b.settle() == 9
    mesh.flow()
    assert {a.state(id) for id in new} == {"processed"}


def test_an_event_of_an_earlier_incarnation_does_not_take_the_place_of_a_new_one(
    mesh: Mesh,
) -> None:
    """Both incarnations have a number 2 that has to be held, and neither is lost."""
    _link(mesh)
    a, b = mesh["a"], mesh["b"]
    blob = (DIGEST, b"k" * 32, 10, mesh.clock.now())
    a.do(lambda tx: tx.execute("INSERT INTO blob VALUES (?, ?, ?, ?, NULL, NULL)", blob))
    backup = a.backup()

    def send() -> list[str]:
        new = NewSend("A", "B", payload_ref=DIGEST)
        large = a.do(lambda tx: a.coordinator.send(tx, new, fingerprint_send(new))).event_id
        return [large, a.send(b).event_id]

    send()
    mesh.flow()
    _restore(mesh, a, backup)
    _link(mesh)
    send()
    mesh.flow()
    assert b.rows("SELECT count(*) FROM held WHERE event_id IS NOT NULL") == [(4,)]
    assert b.value("SELECT held FROM inbox_pair") == 4


def test_an_offer_that_was_confirmed_since_is_not_offered_again() -> None:
    mesh = Mesh("a", "b", "c")
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    c.do(lambda tx: c.agents.register(tx, "B", standby=True))
    agents = {**a.directory.agents, "B": AgentHome("b", ("c",))}
    for gate in mesh.gates.values():
        gate.see(RoutingDirectory(a.directory.gateways, agents, {"B": RoutingRule("b", ("c",))}))
    sent = a.send(b).event_id
    backup = a.backup()
    mesh.link("a", "b")
    mesh.flow()
    _restore(mesh, a, backup)
    assert a.value("SELECT offer FROM delivery") == 0
    mesh.link("a", "b")
    mesh.flow()
    assert a.state(sent) in ("incident", "processed"), "it was confirmed before, so b has it"
    b.settle()
    mesh.flow()
    assert a.state(sent) == "processed"
    assert c.mail() == []


def test_a_held_offer_of_an_earlier_incarnation_stops_no_other_event() -> None:
    """Nobody would ever confirm it, and what is no offer waits for offers before it."""
    mesh = Mesh("a", "b", "c")
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    agents = {**a.directory.agents, "B": AgentHome("b", ("c",))}
    a.see(RoutingDirectory(a.directory.gateways, agents, {"B": RoutingRule("b", ("c",))}))
    b.dispatcher.policy = MailboxPolicy(max_pending=1)
    mesh.link("b", "c")
    c.send(b)
    backup = a.backup()
    mesh.link("a", "b")
    a.send(b)
    mesh.flow()
    assert b.rows("SELECT why FROM held") == [("full",)]
    _restore(mesh, a, backup)
    mesh.meet()
    mesh.link("a", "b")
    new = a.send(b).event_id
    mesh.flow()
    b.settle()
    b.do(lambda tx: None)
    mesh.flow()
    assert a.state(new) == "processed"
    assert b.value("SELECT held + offered FROM inbox_pair WHERE source = 'a'") == 0


def test_invites_sessions_and_tickets_are_void_after_a_restore(mesh: Mesh) -> None:
    b = mesh["b"]

    def fill(tx: Tx) -> None:
        tx.execute(
            "INSERT INTO invite (id, tier, created_by, created_at, expires_at, secret_hash)"
            " VALUES ('i', 'edge', 'x', 0, 9, x'00')"
        )
        tx.execute(
            "INSERT INTO agent_invite VALUES ('i', 'x', '[]', 'x', 0, 9, NULL, NULL, NULL, x'00')"
        )
        tx.execute("INSERT INTO agent_session VALUES ('s', 'x', '[]', 0, 0, NULL, NULL, NULL)")
        tx.execute("INSERT INTO ticket VALUES ('j', 'g', NULL, 9)")

    b.do(fill)
    _restore(mesh, b, b.backup())
    now = mesh.clock.now()
    for table, column in (
        ("invite", "revoked_at"),
        ("agent_invite", "revoked_at"),
        ("agent_session", "revoked_at"),
        ("ticket", "used_at"),
    ):
        assert b.value(f"SELECT {column} FROM {table}") == now


def test_undelivered_messages_need_force_for_they_may_have_been_replayed(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    a.send(b, ttl_secs=1)
    mesh.clock.advance(60_000)
    a.do(lambda tx: None)
    assert is_safe_to_replay(*_undelivered(a)[0])
    _restore(mesh, a, a.backup())
    ((reason, verdict),) = _undelivered(a)
    assert (verdict, is_safe_to_replay(reason, verdict)) == (RESTORED, False)


@pytest.mark.parametrize("is_restored", [True, False])
def test_an_event_that_its_restored_sender_forgot_is_held_no_longer(
    mesh: Mesh, is_restored: bool
) -> None:
    _link(mesh)
    a, b = mesh["a"], mesh["b"]
    a.send(b)
    mesh.flow()
    backup = a.backup()
    b.dispatcher.policy = replace(MailboxPolicy(), max_pending=1)
    held = a.send(b).event_id
    mesh.flow()
    assert _states(b) == ["accepted", "held"]
    if is_restored:
        _restore(mesh, a, backup)
        _link(mesh)

    def report(tx: Tx) -> None:
        said = report_hold(b.coordinator.writer, tx, "a", held, "blob")
        b.coordinator.apply_decisions(tx, said)

    b.do(report)
    mesh.flow()
    assert _states(b) == ["accepted", "withdrawn" if is_restored else "held"]


def _states(gate: Gate) -> list[str]:
    return [row[0] for row in gate.rows("SELECT state FROM inbox ORDER BY event_id")]


def test_two_that_were_restored_hear_each_other_through_a_relay() -> None:
    """Each takes nothing from the relay until the other has answered its question."""
    mesh = Mesh("a", "b", "s", relays=["s"])
    a, b = mesh["a"], mesh["b"]
    for name in ("a", "b"):
        mesh.link(name, "s")
    mesh.flow()
    a.send(b)
    b.send(a)
    mesh.flow()
    for gate in (a, b):
        backup = gate.backup()
        gate.send(mesh["s"])
        mesh.flow()
        _restore(mesh, gate, backup)
    for name in ("a", "b"):
        mesh.link(name, "s")
    mesh.flow()
    sent = a.send(b).event_id
    mesh.flow()
    assert sent in b.mail()
