"""A trace through a relay: passed on, answered by the target, and nothing made up on the way."""

import pytest
from msgspec.structs import replace

from gatepost.delivery.frames import AnyFrame, TraceAnswer, TraceRequest, TraceStep
from gatepost.ledger import Ledger
from gatepost.links.trace_part import LedgerRead
from tests.delivery.mesh import Mesh, Wire


@pytest.fixture
def mesh() -> Mesh:
    """`a` and `b` have a link with the relay `s`, and none with each other."""
    mesh = Mesh("a", "b", "c", "s", relays=["s"])
    for name in ("a", "b"):
        mesh.link(name, "s")
    mesh.flow()
    return mesh


def wire_of(mesh: Mesh, name: str) -> Wire:
    (wire,) = [w for w in mesh.wires if {w.one.gate.id, w.other.gate.id} == {name, "s"}]
    return wire


def ask(mesh: Mesh, asker: str, target: str, event_id: str) -> list[TraceAnswer]:
    answers: list[TraceAnswer] = []
    part = wire_of(mesh, asker).end_of(mesh[asker]).port.trace
    part.request_trace([event_id], answers.append, target)
    mesh.flow()
    return answers


def deliver(mesh: Mesh) -> str:
    sent = mesh["a"].send(mesh["b"]).event_id
    mesh.flow()
    mesh.refresh()
    assert mesh["b"].mail() == [sent]
    return sent


def test_a_trace_goes_through_a_relay(mesh: Mesh) -> None:
    sent = deliver(mesh)
    (answer,) = ask(mesh, "a", "b", sent)
    assert {"taken", "accepted"} <= {step.what for step in answer.steps}
    assert answer.problem == ""


def test_a_relay_is_told_of_nothing_between_others(mesh: Mesh) -> None:
    sent = deliver(mesh)
    wire = wire_of(mesh, "b")
    answers: list[TraceAnswer] = []
    wire.end_of(mesh["s"]).port.trace.request_trace([sent], answers.append)
    mesh.flow()
    assert answers[0].steps == []


def test_a_relay_cannot_ask_for_others(mesh: Mesh) -> None:
    sent = deliver(mesh)
    wire = wire_of(mesh, "b")
    request = TraceRequest(9, [sent], "b", "a", bytes(64))
    wire.end_of(mesh["s"]).port.send(request)
    mesh.flow()
    assert "not signed by a" in wire.errors[0]


@pytest.mark.parametrize("made_up", ["steps", "signature"])
def test_a_relay_cannot_make_up_an_answer(mesh: Mesh, made_up: str) -> None:
    sent = deliver(mesh)
    wire = wire_of(mesh, "a")

    def tamper(frame: AnyFrame) -> AnyFrame:
        if not isinstance(frame, TraceAnswer):
            return frame
        if made_up == "signature":
            return replace(frame, signature=bytes(64))
        return replace(frame, steps=[TraceStep(1, "accepted", sent)])

    wire.end_of(mesh["s"]).tamper = tamper
    assert ask(mesh, "a", "b", sent) == []
    assert "not signed by b" in wire.errors[0]


def test_a_relay_without_a_link_says_so(mesh: Mesh) -> None:
    sent = deliver(mesh)
    (answer,) = ask(mesh, "a", "c", sent)
    assert (answer.steps, answer.problem) == ([], "the relay has no link with c")


def test_a_gateway_that_is_no_relay_passes_nothing_on() -> None:
    mesh = Mesh("a", "s", "b")
    mesh.link("a", "s")
    mesh.link("b", "s")
    mesh.flow()
    (answer,) = ask(mesh, "a", "b", mesh["a"].send(mesh["s"]).event_id)
    assert answer.problem == "it is no relay"


def test_a_relay_passes_on_a_few_requests_at_once_and_forgets_old_ones(mesh: Mesh) -> None:
    sent = deliver(mesh)
    wire_of(mesh, "b").end_of(mesh["s"]).tamper = lambda frame: (
        None if isinstance(frame, TraceRequest) else frame
    )
    for _ in range(4):
        assert ask(mesh, "a", "b", sent) == []
    (answer,) = ask(mesh, "a", "b", sent)
    assert answer.problem == "too many requests at once"
    mesh.clock.advance(10_000)
    assert ask(mesh, "a", "b", sent) == []


def test_a_gateway_asks_for_so_many_events_and_then_slowly(mesh: Mesh) -> None:
    sent = deliver(mesh)
    answers: list[TraceAnswer] = []
    part = wire_of(mesh, "a").end_of(mesh["a"]).port.trace

    def ask_at_once(times: int) -> int:
        answers.clear()
        for _ in range(times):
            part.request_trace([sent] * 64, answers.append)
            mesh.flow()
        return len(answers)

    assert ask_at_once(8) == 8
    assert ask_at_once(3) == 0
    mesh.clock.advance(2_000)
    assert ask_at_once(1) == 1


class Counted:
    """A gateway whose ledger is always the same."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def read_ledger(self, at: int | None, done: LedgerRead) -> None:
        done(self.ledger if at is None else Ledger(sent=at, processed=at))


def ask_ledger(mesh: Mesh) -> list[TraceAnswer]:
    answers: list[TraceAnswer] = []
    part = wire_of(mesh, "a").end_of(mesh["a"]).port.trace
    part.request_trace(["ledger-1"], answers.append, "b", ledger=True)
    mesh.flow()
    return answers


def test_a_ledger_goes_through_a_relay(mesh: Mesh) -> None:
    mesh["b"].peers.traces.ledger = Counted(Ledger(sent=3, processed=2, waiting=1))
    (answer,) = ask_ledger(mesh)
    assert answer.ledger == [3, 2, 0, 1, 0, 0]


def test_a_ledger_is_asked_for_as_it_was(mesh: Mesh) -> None:
    mesh["b"].peers.traces.ledger = Counted(Ledger())
    answers: list[TraceAnswer] = []
    part = wire_of(mesh, "a").end_of(mesh["a"]).port.trace
    part.request_trace(["ledger-1"], answers.append, "b", ledger=True, at=9)
    mesh.flow()
    assert answers[0].ledger == [9, 9, 0, 0, 0, 0]


def test_a_relay_cannot_change_a_ledger(mesh: Mesh) -> None:
    mesh["b"].peers.traces.ledger = Counted(Ledger(sent=3, processed=3))
    wire = wire_of(mesh, "b")
    wire.end_of(mesh["b"]).tamper = lambda frame: (
        replace(frame, ledger=[4, 4, 0, 0, 0, 0]) if isinstance(frame, TraceAnswer) else frame
    )
    assert ask_ledger(mesh) == []
    assert wire.errors, "the link on which the counts changed is ended"


def test_a_gateway_that_asks_for_ledgers_all_the_time_gets_no_more_answers(mesh: Mesh) -> None:
    mesh["b"].peers.traces.ledger = Counted(Ledger())
    told = [answer for _ in range(200) for answer in ask_ledger(mesh) if answer.ledger]
    assert 0 < len(told) < 100
