"""Tasks whose request was given up although their executor may have taken it."""

from typing import Any

import msgspec
import pytest

from gatepost.delivery.frames import AnyFrame, EventsFrame
from tests.tasks.task_mesh import TaskMesh

TTL = 10
LATER = 11_000 + 65_000


class OneWayMesh(TaskMesh):
    """The way back from `b` to `a` can be cut, while `b` reads what `a` writes."""

    def cut_way_back(self) -> None:
        def lose_events(frame: AnyFrame) -> AnyFrame | None:
            return None if isinstance(frame, EventsFrame) else frame

        self.wire.end_of(self.mesh["b"]).tamper = lose_events

    def heal(self) -> None:
        self.wire.cut()
        self.wire = self.mesh.link("a", "b")
        self.flow()

    def pass_time(self, ms: int) -> None:
        self.mesh.clock.advance(ms)
        for gate in self.mesh.gates.values():
            gate.do(lambda tx: None)
        self.flow()

    def lose_word(self, **fields: Any) -> str:
        """A task that `b` accepts and begins, and that `a` does not know of for its whole TTL."""
        self.cut_way_back()
        id = self.create(ttl_secs=TTL, **fields)
        self.b.accept(id)
        self.flow()
        self.pass_time(11_000)
        self.pass_time(66_000)
        return id

    def sweep(self) -> int:
        ended: int = self.a.gate.do(self.a.engine.requested.end_lost_tasks)
        self.flow()
        return ended


@pytest.fixture
def mesh() -> OneWayMesh:
    return OneWayMesh(abandon_secs=1_000)


def test_a_task_whose_request_is_given_up_is_unknown_until_its_executor_speaks(
    mesh: OneWayMesh,
) -> None:
    id = mesh.lose_word()
    assert mesh.states(id) == ("unknown", "running")
    task = mesh.a.task(id)
    assert (task.executor_node, task.unknown_until) == ("b", mesh.mesh.clock.now() + 1_000_000)
    assert mesh.a.gate.incidents("task_unknown") == [id]
    mesh.b.complete(id, 42)
    mesh.heal()
    assert mesh.states(id) == ("completed", "completed")
    assert mesh.a.payload(id).result == b"42"
    assert mesh.a.gate.incidents("task_known") == [id]


def test_an_unknown_task_that_still_runs_is_followed_again(mesh: OneWayMesh) -> None:
    id = mesh.lose_word()
    mesh.heal()
    assert mesh.states(id) == ("running", "running")
    mesh.b.report(id, "fail", error_code="broken", error="no")
    mesh.flow()
    assert mesh.a.task(id).error_code == "broken"


def test_the_wait_for_an_executor_has_an_end_that_its_word_amends(mesh: OneWayMesh) -> None:
    id = mesh.lose_word()
    mesh.pass_time(999_000)
    assert mesh.sweep() == 0
    mesh.pass_time(2_000)
    assert mesh.sweep() == 1
    task = mesh.a.task(id)
    assert (task.state, task.error_code, task.is_presumed) == ("failed", "executor_lost", True)
    assert mesh.a.gate.incidents("task_presumed_failed") == [id]
    mesh.b.complete(id, "late")
    mesh.heal()
    task = mesh.a.task(id)
    assert (task.state, task.error_code, task.error) == ("completed", None, None)
    assert (task.is_presumed, task.amended_at) == (False, mesh.mesh.clock.now())
    assert mesh.a.payload(id).result == b'"late"'
    assert "signal" in [e.kind for e in mesh.a.gate.events() if e.to_node_id == "a"]


@pytest.mark.parametrize(
    ("action", "code", "end"), [("fail", "broken", "failed"), ("fail", "cancelled", "cancelled")]
)
def test_a_late_failure_amends_a_presumed_end(
    mesh: OneWayMesh, action: str, code: str, end: str
) -> None:
    id = mesh.lose_word()
    mesh.pass_time(1_001_000)
    mesh.sweep()
    mesh.b.report(id, action, error_code=code, error="true")
    mesh.heal()
    task = mesh.a.task(id)
    assert (task.state, task.error_code, task.error) == (end, code, "true")


def test_the_word_of_an_executor_amends_the_end_once(mesh: OneWayMesh) -> None:
    id = mesh.lose_word()
    mesh.pass_time(1_001_000)
    mesh.sweep()
    mesh.b.complete(id, 1)
    mesh.heal()
    before = mesh.a.task(id)
    engine = mesh.b.engine
    mesh.b.gate.do(lambda tx: engine.report_requests.report_ends_again(tx, "a"))
    mesh.pass_time(1_000)
    assert mesh.a.task(id) == before


def test_a_task_that_no_executor_got_has_failed_at_once(mesh: OneWayMesh) -> None:
    mesh.wire.cut()
    id = mesh.a.create(mesh.b, ttl_secs=TTL)
    mesh.pass_time(11_000)
    task = mesh.a.task(id)
    assert (task.state, task.error_code, task.is_presumed) == ("failed", "expired", False)


def test_an_executor_that_refuses_a_request_too_late_ends_the_wait(mesh: OneWayMesh) -> None:
    """The request was sent, and lost on its way."""
    mesh.wire.end_of(mesh.mesh["a"]).tamper = lambda frame: (
        None if isinstance(frame, EventsFrame) else frame
    )
    id = mesh.create(ttl_secs=TTL)
    mesh.pass_time(11_000)
    mesh.pass_time(66_000)
    assert mesh.a.task(id).state == "unknown" and not mesh.b.knows(id)
    mesh.heal()
    task = mesh.a.task(id)
    assert (task.state, task.error_code, task.is_presumed) == ("failed", "expired", False)


def test_an_unknown_task_can_be_cancelled_by_its_executor_alone(mesh: OneWayMesh) -> None:
    id = mesh.lose_word()
    assert mesh.a.cancel(id).state == "unknown"
    mesh.flow()
    assert mesh.states(id) == ("unknown", "cancelled")
    mesh.heal()
    assert mesh.states(id) == ("cancelled", "cancelled")


def test_the_misfire_of_a_presumed_failure_is_taken_back(mesh: OneWayMesh) -> None:
    info = {
        "capabilityId": "review",
        "capabilityVersion": "1",
        "delegationSkillVersion": "1",
        "executorSkillVersion": "1",
    }
    id = mesh.lose_word()
    text = msgspec.json.encode(info)
    mesh.a.gate.connection.execute("UPDATE task SET info = ?", (text,))
    mesh.pass_time(1_001_000)
    mesh.sweep()
    reviews = "SELECT failure_class, count FROM review"
    assert mesh.a.gate.rows(reviews) == [("terminal_error", 1)]
    mesh.b.complete(id, 1)
    mesh.heal()
    assert mesh.a.task(id).state == "completed"
    assert mesh.a.gate.rows(reviews) == []
