"""Order, delay, retries and subject of a message, between gateways: its owner honours them."""

from functools import partial

import msgspec
import pytest
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from gatepost.delivery import restore
from gatepost.delivery.decisions import RerouteDelivery
from gatepost.delivery.delivery_table import find_delivery
from gatepost.delivery.reroute import reroute_refused
from gatepost.delivery.send_request import fingerprint_send
from gatepost.errors import ExpiresTooSoon, IdempotencyConflict, InvalidRequest
from gatepost.events import EventKind
from gatepost.journal import Tx
from gatepost.mailbox import MailboxPolicy, browse
from gatepost.mailbox.dead_letters import DeadLetterFilter, find_dead_letters
from gatepost.mailbox.enqueue import find_mailbox
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory, RoutingRule
from gatepost.wire.operations import EventInfo, LeasedMessage, NewSend, Summary
from tests.delivery.mesh import Gate, Mesh

MINUTE = 60_000


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


def dequeue(gate: Gate, limit: int = 10, consumer: str = "") -> list[LeasedMessage]:
    found: list[LeasedMessage] = gate.do(
        lambda tx: gate.dispatcher.dequeue(tx, gate.id.upper(), consumer, limit)
    )
    return found


def ids(messages: list[LeasedMessage]) -> list[str]:
    return [message.msg_id for message in messages]


def seconds(mesh: Mesh, ms: int) -> float:
    """A moment so many milliseconds from now, as a client writes it."""
    return (mesh.clock.now() + ms) / 1000


# -- order


def test_several_workers_behind_another_gateway_share_one_senders_work(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    sent = [a.send(b, order="none").event_id for _ in range(3)]
    mesh.flow()
    taken = [dequeue(b, 1, f"worker-{n}") for n in range(3)]
    assert [ids(each) for each in taken] == [[id] for id in sent]
    b.do(lambda tx: b.coordinator.ack(tx, "B", [taken[2][0].receipt], [], {}))
    mesh.flow()
    assert [a.state(id) for id in sent] == ["accepted", "accepted", "processed"]


def test_unordered_messages_take_no_pair_numbers(mesh: Mesh, a: Gate, b: Gate) -> None:
    a.send(b)
    a.send(b, order="none")
    a.send(b, order="fifo")
    mesh.flow()
    messages = [event for event in a.events() if event.kind == EventKind.MESSAGE]
    found = [(event.pair_seq, event.order) for event in messages]
    assert found == [(1, None), (0, "none"), (2, "fifo")]
    assert len(b.mail()) == 3


@pytest.mark.parametrize(("order", "numbers"), [(None, [0, 0, 0]), ("fifo", [1, 2, 3])])
def test_the_receiver_decides_if_the_message_does_not(
    mesh: Mesh, a: Gate, b: Gate, order: str | None, numbers: list[int]
) -> None:
    b.do(lambda tx: b.dispatcher.set_order(tx, "B", "none"))
    agents = {"A": AgentHome("a"), "B": AgentHome("b", unordered=True)}
    a.see(RoutingDirectory(a.directory.gateways, agents))
    for _ in range(3):
        a.send(b, order=UNSET if order is None else order)
    mesh.flow()
    messages = [event for event in a.events() if event.kind == EventKind.MESSAGE]
    assert [event.pair_seq for event in messages] == numbers
    taken = [dequeue(b, 1, f"worker-{n}") for n in range(3)]
    assert [len(each) for each in taken] == ([1, 1, 1] if order is None else [1, 0, 0])


def test_messages_of_a_sender_that_has_not_heard_of_it_stay_in_order(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    b.do(lambda tx: b.dispatcher.set_order(tx, "B", "none"))
    a.send_many(b, 2)
    mesh.flow()
    assert [len(dequeue(b, 1, f"worker-{n}")) for n in range(2)] == [1, 0]


def test_local_messages_for_a_work_queue_have_no_order(a: Gate) -> None:
    a.do(lambda tx: a.dispatcher.set_order(tx, "A", "none"))
    a.send_many(a, 2)
    assert [len(dequeue(a, 1, f"worker-{n}")) for n in range(2)] == [1, 1]
    a.do(lambda tx: a.dispatcher.set_order(tx, "A", "fifo"))
    a.send_many(a, 2)
    assert [len(dequeue(a, 1, f"worker-{n}")) for n in (3, 4)] == [1, 0]


def test_an_unordered_event_is_accepted_though_ordered_ones_are_held(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    row = ("sha256:" + "0" * 64, bytes(32), 5)
    a.do(lambda tx: tx.execute("INSERT INTO blob VALUES (?, ?, ?, 0, NULL, NULL)", row))
    new = NewSend("A", "B", payload_ref=row[0])
    a.do(lambda tx: a.coordinator.send(tx, new, fingerprint_send(new)))
    held = a.send(b).event_id
    free = a.send(b, order="none").event_id
    mesh.flow()
    assert b.rows("SELECT why FROM held ORDER BY pair_seq") == [("blob",), ("order",)]
    assert b.mail() == [free]
    assert (a.state(held), a.state(free)) == ("emitted", "accepted")


def test_unordered_events_are_held_for_a_full_mailbox_and_accepted_later(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    b.dispatcher.policy = replace(MailboxPolicy(), max_pending=1)
    sent = [a.send(b, order="none").event_id for _ in range(3)]
    late = a.send(b, order="none", ttl_secs=30.0).event_id
    mesh.flow()
    assert b.rows("SELECT why FROM held") == [("full",)] * 3
    assert b.mail() == sent[:1]
    mesh.clock.advance(40_000)
    a.do(lambda tx: None)
    mesh.flow()
    assert a.state(late) == "dead_letter"
    while b.settle():
        mesh.flow()
    assert (b.mail(), b.rows("SELECT * FROM held")) == (sent, [])
    assert {a.state(id) for id in sent} == {"processed"}


def test_an_unordered_event_whose_blob_has_come_waits_for_the_full_mailbox(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    """And says so: who waits for a blob that never comes is given up one day."""
    digest, key = "sha256:" + "0" * 64, bytes(32)
    a.do(lambda tx: tx.execute("INSERT INTO blob VALUES (?, ?, 5, 0, NULL, NULL)", (digest, key)))
    b.dispatcher.policy = replace(MailboxPolicy(), max_pending=1)
    a.send(b, order="none")
    a.send(b, order="none")
    new = NewSend("A", "B", payload_ref=digest, order="none")
    a.do(lambda tx: a.coordinator.send(tx, new, fingerprint_send(new)))
    mesh.flow()
    assert b.rows("SELECT why FROM held ORDER BY pair_seq DESC") == [("full",), ("blob",)]
    b.do(lambda tx: b.coordinator.blob_arrived(tx, digest))
    assert b.rows("SELECT why FROM held") == [("full",), ("full",)]
    while b.settle():
        mesh.flow()
    assert len(b.mail()) == 3


def test_a_reply_to_an_unordered_message_waits_for_no_other(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b, order="none").event_id
    mesh.flow()
    (message,) = dequeue(b)
    replies = {message.receipt: Raw(b'"done"')}
    b.do(lambda tx: b.coordinator.ack(tx, "B", [message.receipt], [], replies))
    mesh.flow()
    (reply,) = [event for event in b.events() if event.kind == EventKind.REPLY]
    assert (reply.order, reply.pair_seq) == ("none", 0)
    assert a.state(sent) == "replied"


def test_a_restored_sender_asks_about_unordered_messages_too(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b, order="none").event_id
    mesh.flow()
    backup = a.backup()
    b.settle()
    mesh.flow()
    for wire in mesh.wires:
        wire.cut()
    a.restore(backup)
    a.do(lambda tx: restore.begin_incarnation(tx, "a-2", 1))
    while a.do(lambda tx: restore.quarantine(tx, a.core, 10)):
        pass
    mesh.meet()
    mesh.link("a", "b")
    mesh.flow()
    assert a.state(sent) == "processed"


def test_unordered_offers_move_to_a_fallback() -> None:
    mesh = Mesh("a", "b", "c")
    a, b, c = (mesh[name] for name in "abc")
    c.do(lambda tx: c.agents.register(tx, "B", standby=True))
    gateways = {name: GatewayEntry(gate.key.public) for name, gate in mesh.gates.items()}
    home = AgentHome("b", standbys=("c",))
    room = RoutingDirectory(
        gateways, {"B": home, "A": AgentHome("a")}, {"B": RoutingRule("b", ("c",))}
    )
    for gate in mesh.gates.values():
        gate.see(room)
    sent = [a.send(b, order="none").event_id for _ in range(2)]
    away = replace(gateways["b"], online=False)
    a.see(replace(room, gateways={**gateways, "b": away}))
    mesh.link("a", "c")
    mesh.flow()
    assert a.rows("SELECT DISTINCT node, offer FROM delivery") == [("c", 2)], "the second route"
    assert [a.state(id) for id in sent] == ["accepted"] * 2
    query = "SELECT m.msg_id FROM mail m JOIN mailbox b ON b.id = m.mailbox WHERE b.name = 'B'"
    assert sorted(row[0] for row in c.rows(query)) == sorted(sent)


def test_a_refused_unordered_message_moves_alone(mesh: Mesh, a: Gate, b: Gate) -> None:
    """Its owner may accept the others at any moment."""
    sent = [a.send(b, order="none").event_id for _ in range(2)]
    numbered = a.send(b).event_id

    def refuse(tx: Tx) -> list[str]:
        found = [find_delivery(tx, id) for id in (sent[0], numbered)]
        moves = [
            each
            for delivery in found
            if delivery is not None
            for each in reroute_refused(a.core.parts, tx, delivery, frozenset(), "moved")
        ]
        return [each.delivery.id for each in moves if isinstance(each, RerouteDelivery)]

    assert a.do(refuse) == [sent[0], numbered]


# -- delay


def test_a_delayed_message_waits_at_its_owner(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b, not_before=seconds(mesh, MINUTE)).event_id
    mesh.flow()
    assert a.state(sent) == "accepted"
    mesh.clock.advance(MINUTE - 1)
    assert dequeue(b) == []
    mesh.clock.advance(1)
    assert ids(dequeue(b)) == [sent]


@pytest.mark.parametrize("local", [True, False])
def test_the_time_to_process_begins_when_a_message_is_due(
    mesh: Mesh, a: Gate, b: Gate, local: bool
) -> None:
    day = 86_400_000
    a.send(a if local else b, not_before=seconds(mesh, day), order="none")
    mesh.flow()
    for _ in range(2):
        mesh.clock.advance(day // 2 - 1)
        a.core.parts.deliveries.forget_due()  # as after a restart
        a.do(lambda tx: None)
        assert a.incidents("sla_breach") == []
    mesh.clock.advance(600_000 + 2)
    a.do(lambda tx: None)
    assert len(a.incidents("sla_breach")) == 1


def test_a_message_that_would_expire_before_it_is_due_is_refused(mesh: Mesh, a: Gate) -> None:
    with pytest.raises(ExpiresTooSoon):
        a.send(mesh["b"], not_before=seconds(mesh, MINUTE), ttl_secs=60.0)
    with pytest.raises(InvalidRequest, match="ten years"):
        a.send(mesh["b"], not_before=seconds(mesh, 11 * 365 * 86_400_000))
    assert a.rows("SELECT * FROM delivery") == []


def test_a_delayed_message_without_ttl_expires_a_day_after_it_is_due(
    mesh: Mesh, a: Gate, b: Gate
) -> None:
    week = 7 * 86_400_000
    sent = a.send(b, not_before=seconds(mesh, week)).event_id
    mesh.flow()
    mesh.clock.advance(week)
    assert ids(dequeue(b)) == [sent]


# -- retries


def test_a_message_has_the_retries_its_sender_gave_it(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b, max_retries=0).event_id
    mesh.flow()
    (message,) = dequeue(b)
    b.do(lambda tx: b.coordinator.nack(tx, "B", [message.receipt], [], "no"))
    mesh.flow()
    status = a.do(lambda tx: a.coordinator.sent.status(tx, sent))
    assert (status.state, status.outcome) == ("processed", "dead_letter")


def test_a_rejected_message_ends_at_once(mesh: Mesh, a: Gate, b: Gate) -> None:
    sent = a.send(b).event_id
    mesh.flow()
    (message,) = dequeue(b)
    b.do(lambda tx: b.coordinator.nack(tx, "B", [message.receipt], [], "not mine", retry=False))
    mesh.flow()
    status = a.do(lambda tx: a.coordinator.sent.status(tx, sent))
    assert (status.outcome, status.reason) == ("dead_letter", "not mine")


# -- again


def test_the_terms_are_part_of_what_an_idempotency_key_stands_for(mesh: Mesh, a: Gate) -> None:
    first = a.send(mesh["b"], idempotency_key="k", order="none")
    assert a.send(mesh["b"], idempotency_key="k", order="none").event_id == first.event_id
    for other in ({"order": "fifo"}, {"order": "none", "max_retries": 1}):
        with pytest.raises(IdempotencyConflict):
            a.send(mesh["b"], idempotency_key="k", **other)


def test_a_replayed_message_keeps_its_order_and_retries(mesh: Mesh, a: Gate, b: Gate) -> None:
    a.send(b, order="none", max_retries=0)
    mesh.flow()
    (message,) = dequeue(b)
    b.do(lambda tx: b.coordinator.nack(tx, "B", [message.receipt], [], "no"))
    b.do(lambda tx: b.coordinator.replay(tx, "B", DeadLetterFilter(), 10, "operator"))
    (again,) = dequeue(b)
    info = msgspec.json.decode(again.event)  # type: ignore[arg-type]
    assert (info["order"], info["max_retries"]) == ("none", 0)


def test_an_undelivered_message_keeps_its_order_and_retries(mesh: Mesh, a: Gate, b: Gate) -> None:
    for wire in mesh.wires:
        wire.cut()
    a.send(b, order="none", max_retries=2, ttl_secs=1.0)
    mesh.clock.advance(2_000)
    a.do(lambda tx: None)
    assert a.rows("SELECT ordering, max_retries FROM undelivered") == [("none", 2)]


def _subject_of(message: LeasedMessage) -> str | None:
    assert not isinstance(message.event, UnsetType)
    return msgspec.json.decode(message.event, type=EventInfo).subject


def _list_mail(agent: str, tx: Tx) -> list[Summary]:
    return browse.peek_mailbox(tx, find_mailbox(tx, agent), 9)


def test_the_subject_travels_with_the_message(mesh: Mesh, a: Gate, b: Gate) -> None:
    a.send(b, subject="change 17")
    a.send(a, subject="change 18")
    mesh.flow()
    events = [event for event in a.events() if event.kind == EventKind.MESSAGE]
    assert [event.subject for event in events] == ["change 17", "change 18"]
    for gate, subject in ((b, "change 17"), (a, "change 18")):
        (listed,) = gate.do(partial(_list_mail, gate.id.upper()))
        (message,) = dequeue(gate)
        assert (listed.subject, _subject_of(message)) == (subject, subject)


def test_a_message_without_a_subject_says_nothing_of_one(mesh: Mesh, a: Gate, b: Gate) -> None:
    a.send(b)
    mesh.flow()
    (body,) = a.rows("SELECT body FROM outbox WHERE kind = 'message'")[0]
    (meta,) = b.rows("SELECT meta FROM body WHERE meta IS NOT NULL")[0]
    assert b"subject" not in body
    assert b"subject" not in meta


def test_a_dead_letter_has_its_subject_and_so_has_its_replay(mesh: Mesh, a: Gate, b: Gate) -> None:
    a.send(b, subject="change 17")
    mesh.flow()
    (message,) = dequeue(b)
    b.do(lambda tx: b.coordinator.nack(tx, "B", [message.receipt], [], "no", retry=False))
    (letter,) = b.do(lambda tx: find_dead_letters(tx, find_mailbox(tx, "B"), DeadLetterFilter(), 9))
    assert letter.subject == "change 17"
    b.do(lambda tx: b.coordinator.replay(tx, "B", DeadLetterFilter(), 9, "test"))
    (again,) = dequeue(b)
    assert _subject_of(again) == "change 17"


def test_another_subject_is_another_message(a: Gate, b: Gate) -> None:
    a.send(b, idempotency_key="once", subject="change 17")
    with pytest.raises(IdempotencyConflict):
        a.send(b, idempotency_key="once", subject="change 18")
    with pytest.raises(IdempotencyConflict):
        a.send(b, idempotency_key="once")
