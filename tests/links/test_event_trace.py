"""What a gateway tells of an event, to its own people and to other gateways."""

from typing import Any

import pytest

from gatepost.delivery.frames import (
    TraceAnswer,
    TraceRequest,
    TraceStep,
    decode_frame,
    encode_frame,
)
from gatepost.errors import LinkError
from gatepost.links.event_trace import (
    EventTrace,
    conversation_events,
    traced_event,
)
from gatepost.links.trace_part import TracePart
from tests.delivery.mesh import Gate, Mesh, Wire


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b", "c")


def told(gate: Gate, *event_ids: str, peer: str | None = None) -> list[TraceStep]:
    steps: list[TraceStep] = gate.do(
        lambda tx: EventTrace(tx, gate.id, peer).trace_events(event_ids)
    )
    return steps


def words(steps: list[TraceStep]) -> list[str]:
    return [step.what for step in steps]


def parts(wire: Wire, gate: Gate) -> TracePart:
    end = wire.end_of(gate)
    part = end.port.trace
    return part


def ask(mesh: Mesh, wire: Wire, asker: Gate, *event_ids: str) -> list[TraceStep]:
    """What the other end answers."""
    parts(wire, wire.end_of(asker).peer)
    answers: list[TraceAnswer] = []
    parts(wire, asker).request_trace(event_ids, answers.append)
    mesh.flow()
    (answer,) = answers
    assert answer.now == mesh.clock.now()
    return answer.steps


def test_both_sides_tell_their_part(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    mesh.flow()
    id = a.send(b).event_id
    mesh.flow()
    assert words(told(b, id)) == ["accepted", "taken", "waiting"]
    b.settle()
    mesh.flow()
    assert words(told(a, id)) == ["sent", "heard_accepted", "heard_processed"]
    assert words(told(b, id)) == ["accepted", "processed", "taken", "turn_ended"]
    assert {step.event_id for step in told(b, id)} == {id}


def test_the_next_turn_of_a_message_is_told_as_a_duration(mesh: Mesh) -> None:
    a = mesh["a"]
    id = a.send(a, not_before=mesh.clock.now() // 1000 + 3600).event_id
    (step,) = [each for each in told(a, id) if each.what == "waiting"]
    assert step.detail == "attempt 1, due in 1 h"
    mesh.clock.advance(3_600_000)
    (mail,) = a.do(lambda tx: a.dispatcher.dequeue(tx, "A", "worker", 1))
    assert [e.detail for e in told(a, id) if e.what == "in_hand"] == ["attempt 1, worker"]
    a.do(lambda tx: a.coordinator.nack(tx, "A", [mail.receipt], [], "no"))
    (step,) = [each for each in told(a, id) if each.what == "backing_off"]
    assert step.detail == "attempt 2, due in 5 s"


def test_a_receipt_is_about_the_event_it_refers_to(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    mesh.flow()
    id = a.send(b).event_id
    mesh.flow()
    (ack,) = [event for event in b.events() if event.kind == "ack"]
    assert b.do(lambda tx: traced_event(tx, ack.event_id)) == id
    assert a.do(lambda tx: traced_event(tx, id)) == id


def test_a_conversation_is_what_either_side_sent_in_order(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    mesh.flow()
    sent = [a.send(b, corr_id="talk").event_id, b.send(a, corr_id="talk").event_id]
    sent.append(a.send(b, corr_id="talk").event_id)
    a.send(b, corr_id="other")
    mesh.flow()
    for gate in (a, b):
        assert gate.do(lambda tx: conversation_events(tx, "talk")) == sorted(sent)


def test_an_answer_over_a_link_has_no_payload(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    wire = mesh.link("a", "b")
    mesh.flow()
    id = a.send(b, payload=b'"a secret"').event_id
    mesh.flow()
    b.settle()
    mesh.flow()
    steps = ask(mesh, wire, a, id)
    assert words(steps) == ["accepted", "processed", "taken", "turn_ended"]
    assert b"secret" not in encode_frame(TraceAnswer(1, 0, steps))
    assert decode_frame(encode_frame(TraceAnswer(1, 0, steps))) == TraceAnswer(1, 0, steps)


def test_others_are_not_told_of(mesh: Mesh) -> None:
    """c knows the ids of what a and b said to each other, and learns nothing by them."""
    a, b, c = mesh["a"], mesh["b"], mesh["c"]
    mesh.link("a", "b")
    wire = mesh.link("b", "c")
    mesh.flow()
    to_b, from_b = a.send(b).event_id, b.send(a).event_id
    ours = c.send(b).event_id
    mesh.flow()
    assert told(b, to_b) and told(b, from_b)
    assert {step.event_id for step in ask(mesh, wire, c, to_b, from_b, ours)} == {ours}
    assert told(b, to_b, from_b, peer="c") == []


def test_what_was_routed_elsewhere_is_told_only_as_far_as_it_concerns_the_asker(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    id = a.send(b).event_id
    assert words(told(a, id, peer="b")) == ["sent"]
    a.connection.execute("UPDATE delivery SET node = 'c', accepted_at = 5")
    assert words(told(a, id, peer="b")) == ["sent"], "who accepted it since is c's business"
    assert words(told(a, id)) == ["sent", "heard_accepted"]


def test_nonsense_is_answered_with_nothing(mesh: Mesh) -> None:
    wire = mesh.link("a", "b")
    mesh.flow()
    unknown = "01900000-0000-7000-8000-000000000000"
    assert ask(mesh, wire, mesh["a"], "nonsense", unknown) == []
    assert wire.errors == []


def test_an_ask_has_bounds() -> None:
    for bad in ([], ["x"] * 65):
        with pytest.raises(LinkError):
            decode_frame(encode_frame(TraceRequest(1, bad)))


def test_who_asks_too_much_at_once_gets_no_answer_to_the_rest(mesh: Mesh) -> None:
    wire = mesh.link("a", "b")
    mesh.flow()
    parts(wire, mesh["b"])
    part, answers = parts(wire, mesh["a"]), list[Any]()
    unknown = "01900000-0000-7000-8000-000000000000"
    for _ in range(10):
        part.request_trace([unknown], answers.append)
    while wire.end_of(mesh["a"]).out:
        wire.one.deliver(wire.other)
    mesh.flow()
    assert len(answers) == 4
    part.request_trace([unknown], answers.append)
    mesh.flow()
    assert len(answers) == 5, "and goes on when those are answered"


def test_an_answer_nobody_waits_for_is_dropped(mesh: Mesh) -> None:
    wire = mesh.link("a", "b")
    mesh.flow()
    parts(wire, mesh["b"])
    part, answers = parts(wire, mesh["a"]), list[Any]()
    part.forget_request(
        part.request_trace(["01900000-0000-7000-8000-000000000000"], answers.append)
    )
    mesh.flow()
    assert (answers, wire.errors) == ([], [])
