import msgspec

from gatepost.events import TaskInfo
from gatepost.pipeline.kernels.incidents import stable_id
from gatepost.tasks.capabilities.misfires import (
    RoutingMisses,
    note_late_tasks,
    note_misfire,
    review_id,
)
from gatepost.tasks.task_states import TaskInput, TaskState
from gatepost.tasks.task_table import change_task
from tests.tasks.harness import HubHarness

INFO = TaskInfo(
    capability_id="review",
    capability_version="1.0",
    delegation_skill_version="1.1",
    executor_skill_version="1.2",
)


def test_the_pipeline_gives_the_same_misfire_the_same_id() -> None:
    assert review_id(INFO, "eta_breach") == stable_id("review", "1.0", "1.1", "1.2", "eta_breach")


def test_repeated_misfires_are_one_review_with_samples(hub: HubHarness) -> None:
    tasks = [hub.add_task() for _ in range(12)]
    opened = [
        hub.run(lambda tx, task=task: note_misfire(tx, INFO, "terminal_error", task))  # type: ignore[misc]
        for task in tasks
    ]
    assert opened == [True, *[False] * 11]
    ((count, samples),) = hub.connection.execute("SELECT count, corr_ids FROM review").fetchall()
    assert (count, msgspec.json.decode(str(samples))) == (12, tasks[:8])


def test_a_closed_review_stays_closed(hub: HubHarness) -> None:
    hub.run(lambda tx: note_misfire(tx, INFO, "terminal_error", None))
    hub.connection.execute("UPDATE review SET status = 'resolved'")
    hub.run(lambda tx: note_misfire(tx, INFO, "terminal_error", None))
    assert hub.connection.execute("SELECT count, status FROM review").fetchall() == [
        (1, "resolved")
    ]


def test_a_task_without_a_capability_has_nobody_to_review(hub: HubHarness) -> None:
    assert not hub.run(lambda tx: note_misfire(tx, TaskInfo(), "terminal_error", None))
    assert hub.connection.execute("SELECT 1 FROM review").fetchall() == []


def test_a_task_is_late_once(hub: HubHarness) -> None:
    info = msgspec.json.encode(INFO)
    eta = hub.clock.now() + 1000
    late = hub.add_task(state=TaskState.RUNNING, eta_at=eta, info=info)
    hub.add_task(state=TaskState.RUNNING, eta_at=eta + 5000, info=info)
    hub.add_task(state=TaskState.RUNNING, eta_at=eta, info=info, requester_node="other")
    done = hub.add_task(state=TaskState.RUNNING, eta_at=eta, info=info)
    hub.run(lambda tx: change_task(tx, done, TaskInput.FAIL))
    assert hub.run(note_late_tasks) == []
    hub.clock.advance(1001)
    assert hub.run(note_late_tasks) == [late]
    assert hub.run(note_late_tasks) == []
    assert hub.connection.execute("SELECT failure_class FROM review").fetchall() == [
        ("eta_breach",)
    ]


def test_only_repeated_misses_within_a_while_count() -> None:
    misses = RoutingMisses()
    assert [misses.count_miss("a", now) for now in (0, 1, 2, 3)] == [False, False, True, True]
    assert not misses.count_miss("b", 3)
    far = 10_000_000
    assert [misses.count_miss("a", far + now) for now in (0, 1, 2)] == [False, False, True]
