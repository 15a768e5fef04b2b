from functools import partial

import pytest

from gatepost.errors import IdempotencyConflict, UnknownTask, WrongState
from gatepost.tasks import task_table
from gatepost.tasks.task_states import TaskInput, TaskState
from gatepost.tasks.task_table import (
    Task,
    TaskFilter,
    TaskPayload,
    change_task,
    complete_task,
    count_open_tasks,
    find_task,
    list_tasks,
    list_waiting_sources,
    load_payload,
    load_task,
    prune_tasks,
    unclaimed_tasks,
)
from tests.tasks.harness import HubHarness

RESULT = TaskPayload(result=b'"fine"', mark=b"1")


def test_a_completion_that_is_repeated_changes_nothing(hub: HubHarness) -> None:
    id = hub.add_task(state=TaskState.RUNNING)
    first, is_new = hub.run(lambda tx: complete_task(tx, id, RESULT))
    hub.clock.advance(1000)
    again, is_new_again = hub.run(lambda tx: complete_task(tx, id, RESULT))
    assert (is_new, is_new_again, again) == (True, False, first)
    assert hub.run(lambda tx: load_payload(tx, id)).result == b'"fine"'


def test_a_completion_with_another_result_is_a_conflict(hub: HubHarness) -> None:
    id = hub.add_task(state=TaskState.RUNNING)
    hub.run(lambda tx: complete_task(tx, id, RESULT))
    with pytest.raises(IdempotencyConflict):
        hub.run(lambda tx: complete_task(tx, id, TaskPayload(result=b"2", mark=b"2")))
    assert hub.run(lambda tx: load_payload(tx, id)).result == b'"fine"'


def test_a_cancelled_task_cannot_be_completed(hub: HubHarness) -> None:
    id = hub.add_task(state=TaskState.RUNNING)
    hub.run(lambda tx: change_task(tx, id, TaskInput.CANCEL))
    with pytest.raises(WrongState):
        hub.run(lambda tx: complete_task(tx, id, RESULT))
    assert hub.run(lambda tx: load_payload(tx, id)).result is None


def test_each_step_notes_its_moment(hub: HubHarness) -> None:
    id = hub.add_task()
    moments = []

    def apply(input: TaskInput) -> Task:
        hub.clock.advance(10)
        moments.append(hub.clock.now())
        return hub.run(lambda tx: change_task(tx, id, input, {"note": str(input)}))

    inputs = (TaskInput.ACCEPT, TaskInput.START, TaskInput.UPDATE, TaskInput.FAIL)
    task = [apply(input) for input in inputs][-1]
    assert [task.accepted_at, task.started_at, task.ended_at] == [
        moments[0],
        moments[1],
        moments[3],
    ]
    assert (task.updated_at, task.note) == (moments[3], "fail")


def test_an_unknown_task_has_its_own_error(hub: HubHarness) -> None:
    id = hub.ids.next_id()
    assert hub.run(lambda tx: find_task(tx, id)) is None
    with pytest.raises(UnknownTask):
        hub.run(lambda tx: load_task(tx, id))
    with pytest.raises(UnknownTask):
        hub.run(lambda tx: change_task(tx, id, TaskInput.ACCEPT))


def test_lists_are_newest_first_filtered_and_paged(hub: HubHarness) -> None:
    ids = [hub.add_task(agent=agent) for agent in ("a", "b", "a", "a")]
    everything = hub.run(lambda tx: list_tasks(tx, TaskFilter(), 3))
    assert [task.id for task in everything] == [ids[3], ids[2], ids[1]]
    rest = hub.run(lambda tx: list_tasks(tx, TaskFilter(after=ids[1]), 3))
    assert [task.id for task in rest] == [ids[0]]
    of_b = hub.run(lambda tx: list_tasks(tx, TaskFilter(agent="b", state=TaskState.PENDING), 9))
    assert [task.id for task in of_b] == [ids[1]]


def test_a_session_sees_its_own_task_and_the_requests_of_its_agent(hub: HubHarness) -> None:
    own, asked = hub.add_task(requester="cli"), hub.add_task(requester="boss")
    hub.add_task(requester="boss", requester_node="elsewhere")
    hub.add_task(requester="other")
    seen = hub.run(lambda tx: list_tasks(tx, TaskFilter(session=(own, "boss")), 9))
    assert [task.id for task in seen] == [asked, own]


def test_the_queue_is_oldest_first_and_per_executor(hub: HubHarness) -> None:
    ids = [hub.add_task(), hub.add_task(executor="agent"), hub.add_task()]
    hub.add_task(requester="bo")
    queue = hub.run(lambda tx: unclaimed_tasks(tx, "agent:al", 9))
    assert [task.id for task in queue] == [ids[0], ids[2]]
    assert hub.run(lambda tx: count_open_tasks(tx, "session")) == 3
    assert hub.run(list_waiting_sources) == ["agent:al", "agent:bo"]
    plan = hub.connection.execute(f"EXPLAIN QUERY PLAN {task_table._SELECT_UNCLAIMED}", ("x", 1))
    assert "task_waiting" in str(plan.fetchall())


def test_pruning_takes_only_tasks_that_ended_long_ago(hub: HubHarness) -> None:
    old, open_ = hub.add_task(state=TaskState.RUNNING), hub.add_task(state=TaskState.RUNNING)
    hub.run(lambda tx: complete_task(tx, old, RESULT))
    hub.clock.advance(1000)
    assert hub.run(lambda tx: prune_tasks(tx, hub.clock.now() - 1001, hub.clock.now(), 10)) == 0
    assert hub.run(lambda tx: prune_tasks(tx, hub.clock.now(), hub.clock.now(), 10)) == 1
    assert hub.run(lambda tx: find_task(tx, old)) is None
    assert hub.run(lambda tx: load_payload(tx, old)) == TaskPayload()
    assert hub.run(lambda tx: find_task(tx, open_)) is not None


def test_a_task_of_another_gateway_is_kept_for_its_questions(hub: HubHarness) -> None:
    own = hub.add_task(state=TaskState.RUNNING)
    others = hub.add_task(state=TaskState.RUNNING, requester_node="b")
    for id in (own, others):
        hub.run(partial(complete_task, id=id, result=RESULT))
    hub.clock.advance(1000)
    now = hub.clock.now()
    assert hub.run(lambda tx: prune_tasks(tx, now, now - 1001, 10)) == 1
    assert hub.run(lambda tx: find_task(tx, own)) is None
    assert hub.run(lambda tx: prune_tasks(tx, now, now, 10)) == 1
