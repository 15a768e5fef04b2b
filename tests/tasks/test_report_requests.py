"""Reports that the requester's gateway did not get, and asks for."""

from functools import partial

import pytest
from msgspec.structs import replace

from gatepost.delivery.decisions import TaskReportWanted
from gatepost.delivery.frames import AnyFrame, EventsFrame, SkipFrame
from gatepost.errors import Forbidden
from gatepost.events import Signal, decode_event, decode_payload
from gatepost.routing import GatewayEntry, RoutingDirectory
from gatepost.tasks import report_requests
from tests.tasks.task_mesh import TaskMesh
from tests.tasks.test_unknown_tasks import OneWayMesh

ABANDON_MS = 1_024_000
FIRST_MS = ABANDON_MS >> 6


class ForgetfulMesh(OneWayMesh):
    """What `b` reports can be left out of its frames, or be gone from its outbox."""

    def leave_out_reports(self) -> None:
        def leave_out(frame: AnyFrame) -> AnyFrame:
            if not isinstance(frame, EventsFrame):
                return frame
            kept = [body for body in frame.events if "task_" not in decode_event(body).kind]
            return replace(frame, events=kept)

        self.wire.end_of(self.mesh["b"]).tamper = leave_out

    def read_after_pruning(self) -> None:
        """Link them again; what `b` had for `a` until now is gone."""
        self.wire.cut()
        self.wire = self.mesh.link("a", "b")

        def skip(frame: AnyFrame) -> AnyFrame:
            if not isinstance(frame, EventsFrame):
                return frame
            sql = "UPDATE recipient SET cut_seq = max(cut_seq, ?) WHERE node_id = 'a'"
            self.b.gate.do(lambda tx: tx.execute(sql, (frame.upto,)))
            self.be_honest()
            where = (frame.source, frame.incarnation, frame.first_seq, frame.upto)
            return SkipFrame(*where, "cut off")

        self.wire.end_of(self.mesh["b"]).tamper = skip
        self.flow()

    def be_honest(self) -> None:
        self.wire.end_of(self.mesh["b"]).tamper = lambda frame: frame

    def note_progress(self) -> None:
        """What a gateway does every second."""
        for gate in self.mesh.gates.values():
            for end in gate.ends:
                end.port.outbox.save_progress()
        self.flow()

    def ask(self) -> int:
        self.note_progress()
        asked: int = self.a.gate.do(self.a.engine.report_requests.ask_of_silent_tasks)
        self.flow()
        return asked

    def ask_after(self, ms: int) -> int:
        self.mesh.clock.advance(ms)
        return self.ask()

    def begin(self) -> str:
        id = self.create()
        self.b.accept(id)
        self.flow()
        self.ask()
        self.mesh.clock.advance(1)
        return id

    def questions(self) -> int:
        signals = [event for event in self.a.gate.events() if event.kind == "signal"]
        said = [decode_payload(event, Signal).signal for event in signals]
        return said.count("report_request")


@pytest.fixture
def mesh() -> ForgetfulMesh:
    return ForgetfulMesh(abandon_secs=ABANDON_MS / 1000)


def test_an_end_that_was_left_out_as_the_last_event_is_asked_for(mesh: ForgetfulMesh) -> None:
    id = mesh.begin()
    mesh.leave_out_reports()
    mesh.b.complete(id, 42)
    mesh.flow()
    mesh.be_honest()
    assert mesh.states(id) == ("running", "completed")
    mesh.ask_after(FIRST_MS)
    mesh.heal()
    assert mesh.states(id) == ("completed", "completed")
    assert mesh.a.payload(id).result == b"42"


def test_an_end_that_was_left_out_amends_one_that_was_presumed(mesh: ForgetfulMesh) -> None:
    id = mesh.begin()
    mesh.leave_out_reports()
    mesh.b.complete(id, 42)
    mesh.flow()
    mesh.be_honest()
    mesh.mesh.clock.advance(ABANDON_MS + 1)
    assert mesh.sweep() == 1
    assert mesh.a.task(id).is_presumed
    assert mesh.ask_after(FIRST_MS) == 1
    mesh.heal()
    assert mesh.states(id) == ("completed", "completed")


def test_an_unknown_task_ends_as_it_ended_although_its_reports_were_pruned(
    mesh: ForgetfulMesh,
) -> None:
    id = mesh.lose_word()
    mesh.b.complete(id, 42)
    mesh.read_after_pruning()
    assert mesh.a.gate.incidents("skipped")
    assert mesh.states(id) == ("completed", "completed")
    assert mesh.a.payload(id).result == b"42"


def test_an_unknown_task_that_runs_is_followed_again_once_its_gateway_was_asked(
    mesh: ForgetfulMesh,
) -> None:
    id = mesh.lose_word()
    mesh.read_after_pruning()
    assert mesh.states(id) == ("running", "running")


def test_a_gateway_that_skips_events_again_and_again_is_asked_once_a_minute(
    mesh: ForgetfulMesh,
) -> None:
    mesh.begin()
    ask = partial(mesh.a.engine.report_requests.ask_after_skip, node="b")
    assert [mesh.a.gate.do(ask) for _ in range(3)] == [1, 0, 0]
    mesh.mesh.clock.advance(60_000)
    assert mesh.a.gate.do(ask) == 1


def test_a_silent_executor_is_asked_whenever_its_silence_has_doubled(mesh: ForgetfulMesh) -> None:
    mesh.begin()
    mesh.leave_out_reports()
    asked = [mesh.ask_after(FIRST_MS // 4) for _ in range(4 * 64)]
    assert [number + 1 for number, each in enumerate(asked) if each] == [4, 8, 16, 32, 64, 128, 256]
    assert mesh.questions() == 7


def test_an_executor_that_answers_is_asked_more_often_and_never_presumed_lost(
    mesh: ForgetfulMesh,
) -> None:
    id = mesh.begin()
    for _ in range(200):
        assert mesh.ask_after(FIRST_MS) == 1
        assert mesh.sweep() == 0
    assert mesh.states(id) == ("running", "running")


def test_a_gateway_that_was_started_again_asks_for_every_silent_task(mesh: ForgetfulMesh) -> None:
    mesh.b.accept(mesh.create())
    mesh.flow()
    mesh.mesh.clock.advance(3 * FIRST_MS)
    assert (mesh.ask(), mesh.ask()) == (1, 0)


def test_a_presumed_end_is_asked_about_as_long_as_its_word_was_waited_for(
    mesh: ForgetfulMesh,
) -> None:
    mesh.begin()
    mesh.leave_out_reports()
    mesh.mesh.clock.advance(ABANDON_MS + 1)
    mesh.sweep()
    mesh.ask()
    asked = [mesh.ask_after(FIRST_MS) for _ in range(200)]
    assert sum(asked) == 7 and not any(asked[64:])


def test_nothing_is_said_again_while_a_report_waits_to_be_read(mesh: ForgetfulMesh) -> None:
    id = mesh.begin()
    mesh.wire.cut()
    mesh.b.complete(id, "x" * 1000)
    wanted = TaskReportWanted("a", id)
    for _ in range(10):
        mesh.b.gate.do(lambda tx: mesh.b.engine.apply_notice(tx, wanted))
    assert mesh.b.kinds().count("task_complete") == 1
    mesh.heal()
    mesh.b.gate.do(lambda tx: mesh.b.engine.apply_notice(tx, wanted))
    assert mesh.b.kinds().count("task_complete") == 2


def test_a_task_is_reported_to_its_requester_alone(mesh: ForgetfulMesh) -> None:
    id = mesh.begin()
    mesh.b.complete(id, 42)
    before = mesh.b.kinds()
    answer = mesh.b.engine.report_requests.answer_request
    with pytest.raises(Forbidden, match="another requested"):
        mesh.b.gate.do(lambda tx: answer(tx, TaskReportWanted("c", id)))
    mesh.b.gate.do(lambda tx: answer(tx, TaskReportWanted("c", mesh.a.create(mesh.b))))
    assert mesh.b.kinds() == before


def test_nothing_is_asked_about_a_request_that_is_under_way(mesh: ForgetfulMesh) -> None:
    mesh.ask()
    mesh.create()
    assert mesh.ask_after(3 * FIRST_MS) == 0


def test_a_gateway_that_has_left_the_room_is_not_asked(mesh: ForgetfulMesh) -> None:
    mesh.begin()
    a = mesh.a.gate
    a.see(RoutingDirectory({"a": GatewayEntry(a.key.public)}, a.directory.agents, {}))
    assert mesh.ask_after(FIRST_MS) == 0


def test_the_questions_find_their_tasks_by_indexes(mesh: ForgetfulMesh) -> None:
    sql = report_requests._select_silent(7)
    plan = str(mesh.a.gate.rows(f"EXPLAIN QUERY PLAN {sql}", *[0] * 28))
    assert "task_open" in plan and "task_ended" in plan and "SCAN task" not in plan


def test_a_presumed_failure_is_said_again_as_one() -> None:
    mesh = TaskMesh()
    id = mesh.create()
    mesh.b.accept(id)
    presume = mesh.a.engine.requested.presume_failed
    task = mesh.a.task(id)
    mesh.a.gate.do(lambda tx: tx.execute("UPDATE task SET requester_node = 'b'"))
    mesh.a.gate.do(lambda tx: presume(tx, task, "executor_lost", "silent"))
    repeat = mesh.a.engine.report_requests.report_ends_again
    mesh.a.gate.do(lambda tx: repeat(tx, "b"))
    report = mesh.a.gate.events()[-1]
    content = mesh.b.engine.requested._events.open_report("a", report)
    assert b'"presumed":"yes"' in content
