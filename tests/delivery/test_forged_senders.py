"""Events in the name of agents that live elsewhere, and replies and receipts nobody asked for."""

import pytest

from gatepost.delivery.inbox.held_events import SENDER_GRACE_MS
from gatepost.delivery.release import next_due
from gatepost.events import DeadLetterNotice, EventKind, Receipt, Signal, decode_payload
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory, RoutingRule
from tests.delivery.forger import Forger
from tests.delivery.mesh import Gate, Mesh


@pytest.fixture
def mesh() -> Mesh:
    """`c` is hostile: it is linked with `a` and `b`, who are honest."""
    mesh = Mesh("a", "b", "c")
    for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
        mesh.link(one, other)
    mesh.flow()
    return mesh


def see_homes(mesh: Mesh, rules: dict[str, RoutingRule] | None = None, **homes: AgentHome) -> None:
    gateways = {name: GatewayEntry(gate.key.public) for name, gate in mesh.gates.items()}
    agents = {name.upper(): AgentHome(name) for name in mesh.gates} | homes
    for gate in mesh.gates.values():
        gate.see(RoutingDirectory(gateways, agents, rules or {}))
    mesh.flow()


def wait_out_grace(mesh: Mesh) -> None:
    mesh.flow()
    for _ in range(0, SENDER_GRACE_MS, 5_000):
        mesh.clock.advance(5_000)
        for gate in mesh.gates.values():
            gate.do(lambda tx: None)
    mesh.flow()


def refusals(gate: Gate, to: str) -> list[str]:
    """The reasons for which a gate refused events of another one."""
    told = [each for each in gate.events() if each.kind == "ack" and each.to_node_id == to]
    receipts = [decode_payload(each, Receipt) for each in told]
    return [each.reason or "" for each in receipts if each.status == "refused"]


# -- senders


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("kind", [EventKind.MESSAGE, EventKind.TASK_CREATE, EventKind.REPLY])
def test_mail_in_the_name_of_an_agent_elsewhere_never_reaches_anybody(
    mesh: Mesh, number: int, kind: str
) -> None:
    b, c = mesh["b"], mesh["c"]
    Forger(c).emit(b, source_agent_id="A", kind=kind, pair_seq=number)
    mesh.flow()
    assert (b.mail(), refusals(b, "c")) == ([], [])
    assert b.do(lambda tx: next_due(b.core.parts, tx)) is not None
    wait_out_grace(mesh)
    assert (b.mail(), refusals(b, "c")) == ([], ["forged_sender"])
    assert b.core.abuse.counts() == {("c", "forged_sender"): 1}
    assert b.incidents("abuse")[0].startswith("c/forged_sender@")
    assert b.value("SELECT count(*) FROM held") == 0


def test_a_forged_sender_is_no_help_by_claiming_to_forward(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    origin = c.node.event_ids.next_id()
    Forger(c).emit(b, source_agent_id="A", origin_event_id=origin, causation_id=origin)
    wait_out_grace(mesh)
    assert (b.mail(), refusals(b, "c")) == ([], ["forged_sender"])


def test_a_claim_in_vain_and_an_unasked_standby_are_no_homes(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    see_homes(mesh, A=AgentHome("a", standbys=("c",), rivals=("c",)))
    Forger(c).emit(b, source_agent_id="A")
    wait_out_grace(mesh)
    assert (b.mail(), refusals(b, "c")) == ([], ["forged_sender"])


def test_forged_mail_keeps_nobody_elses_mail_waiting(mesh: Mesh) -> None:
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    Forger(c).emit_many(b, [{"source_agent_id": "A", "pair_seq": n} for n in (1, 2, 3)])
    mesh.flow()
    honest = [a.send(b).event_id, c.send(b).event_id]
    mesh.flow()
    assert sorted(b.mail()) == sorted(honest)


def test_mail_of_an_agent_that_has_just_moved_waits_until_the_room_says_so(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    sent = Forger(c).emit_many(b, [{"source_agent_id": "A", "pair_seq": n} for n in (1, 2)])
    mesh.flow()
    assert b.mail() == []
    see_homes(mesh, A=AgentHome("c", former=("a",)))
    assert b.mail() == sent
    wait_out_grace(mesh)
    assert b.core.abuse.counts() == {}


def test_mail_that_was_sent_before_its_sender_moved_is_accepted(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    see_homes(mesh, A=AgentHome("a", former=("c",)))
    sent = Forger(c).emit(b, source_agent_id="A")
    mesh.flow()
    assert b.mail() == [sent]


def test_mail_that_moves_with_its_receiver_may_be_anybodys(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    see_homes(mesh, B=AgentHome("b", former=("c",)))
    origin = c.node.event_ids.next_id()
    sent = Forger(c).emit(b, source_agent_id="A", origin_event_id=origin, causation_id=origin)
    mesh.flow()
    assert b.mail() == [sent]


def test_only_forwarded_mail_has_an_origin(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    Forger(c).emit(b, source_agent_id="nobody-s", origin_node_id="a")
    wait_out_grace(mesh)
    assert (b.mail(), refusals(b, "c")) == ([], ["forged_sender"])


def test_a_false_origin_disturbs_the_order_of_nobody_else(mesh: Mesh) -> None:
    """c claims to forward mail of a, and leaves a gap, closes numbers and gives one up."""
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    see_homes(mesh, B=AgentHome("b", former=("c",)))
    claim = {"source_agent_id": "A", "origin_node_id": "a"}
    origin = c.node.event_ids.next_id()
    closed = Signal(
        signal="pair_closed", from_agent="A", to_agent="B", origin_node_id="a", through=9
    )
    letter = DeadLetterNotice(reason="expired", pair_seq=12)
    Forger(c).emit_many(
        b,
        [
            claim | {"kind": EventKind.SIGNAL, "content": closed},
            claim | {"pair_seq": 11, "origin_event_id": origin},
            claim | {"kind": EventKind.DEAD_LETTER, "content": letter, "ref_event_id": origin},
        ],
    )
    mesh.flow()
    honest = [a.send(b).event_id for _ in range(3)]
    mesh.flow()
    assert b.mail() == honest
    pairs = "SELECT source, origin_node, next FROM inbox_pair ORDER BY source"
    assert b.rows(pairs) == [("a", "", 4), ("c", "a", 10)]


def test_a_fallback_may_speak_for_the_agent_it_stands_in_for(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    see_homes(mesh, {"A": RoutingRule("a", ("c",))}, A=AgentHome("a", standbys=("c",)))
    sent = Forger(c).emit(b, source_agent_id="A")
    mesh.flow()
    assert b.mail() == [sent]


def test_an_agent_that_nobody_knows_may_send(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    sent = Forger(c).emit(b, source_agent_id="nobody-s")
    mesh.flow()
    assert b.mail() == [sent]


def test_a_gateway_that_restarts_still_decides_about_suspects(mesh: Mesh) -> None:
    b, c = mesh["b"], mesh["c"]
    Forger(c).emit(b, source_agent_id="A")
    mesh.flow()
    for wire in list(mesh.wires):
        wire.cut()
    mesh.clock.advance(SENDER_GRACE_MS)
    b.start()
    assert refusals(b, "c") == []
    wait_out_grace(mesh)
    assert refusals(b, "c") == ["forged_sender"]


@pytest.mark.parametrize("jump", [60_000, -60_000])
def test_a_clock_that_is_set_condemns_nobody(mesh: Mesh, jump: int) -> None:
    b, c = mesh["b"], mesh["c"]
    Forger(c).emit(b, source_agent_id="A")
    mesh.flow()
    mesh.clock.advance(jump)
    b.do(lambda tx: None)
    assert refusals(b, "c") == []
    wait_out_grace(mesh)
    assert refusals(b, "c") == ["forged_sender"]


# -- replies and receipts


@pytest.mark.parametrize("replies", ["mailbox", "caller"])
@pytest.mark.parametrize("speaker", ["B", "C"])
def test_a_reply_of_a_node_that_never_got_the_message_is_refused(
    mesh: Mesh, replies: str, speaker: str
) -> None:
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    asked = a.send(b, replies=replies).event_id
    mesh.flow()
    Forger(c).emit(a, b'"yes"', kind=EventKind.REPLY, ref_event_id=asked, source_agent_id=speaker)
    mesh.flow()
    assert (a.mail(), a.state(asked)) == ([], "accepted")
    assert refusals(a, "c") == ["forged_reply"]
    assert a.core.abuse.counts() == {("c", "forged_receipt"): 1}
    assert a.incidents("abuse")[0].startswith("c/forged_receipt@")


def test_a_node_that_got_the_message_cannot_answer_for_another_agent(mesh: Mesh) -> None:
    a, c = mesh["a"], mesh["c"]
    asked = a.send(c).event_id
    mesh.flow()
    Forger(c).emit(a, kind=EventKind.REPLY, ref_event_id=asked, source_agent_id="B")
    mesh.flow()
    assert (a.mail(), refusals(a, "c")) == ([], ["forged_reply"])


RECEIPTS = [
    Receipt(status="accepted"),
    Receipt(status="refused", reason="moved"),
    Receipt(status="processed", outcome="ok"),
    Receipt(status="processed", outcome="ok", replied=True),
]


@pytest.mark.parametrize("receipt", RECEIPTS, ids=lambda each: f"{each.status}-{each.replied}")
def test_a_receipt_of_a_node_that_never_got_the_message_is_counted(
    mesh: Mesh, receipt: Receipt
) -> None:
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    asked = a.send(b).event_id
    mesh.flow()
    Forger(c).emit(a, receipt, kind=EventKind.ACK, ref_event_id=asked)
    mesh.flow()
    assert a.state(asked) == "accepted"
    assert a.core.abuse.counts() == {("c", "forged_receipt"): 1}


def test_a_late_receipt_of_a_node_that_once_had_the_message_is_none(mesh: Mesh) -> None:
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    asked = a.send(b).event_id
    mesh.flow()
    Forger(c).emit(a, RECEIPTS[0], kind=EventKind.ACK, ref_event_id=c.node.event_ids.next_id())
    b.settle()
    mesh.flow()
    Forger(c).emit(a, RECEIPTS[0], kind=EventKind.ACK, ref_event_id=asked)
    mesh.flow()
    assert a.core.abuse.counts() == {}
