from gatepost.gateway.hub.hub_state import (
    HubState,
    RouterState,
    StateTask,
    export_state,
    import_state,
)
from gatepost.hub.task_states import TaskState
from gatepost.hub.task_tokens import issue_task_token
from gatepost.hub.tasks import load_task
from tests.hub.harness import HubHarness


def test_the_export_has_tokens_and_tasks_and_no_secret() -> None:
    hub = HubHarness()
    task = hub.add_task(state=TaskState.RUNNING)
    issued = hub.run(lambda tx: issue_task_token(tx, hub.clock, "reviewer", task, ("a",), 1000))
    state = hub.run(export_state)
    assert state.flushed_at == hub.clock.now()
    ((id, token),) = state.registry.tokens
    assert (id, token.task_id, token.expiry) == (issued.token.token_id, task, token.issued + 1000)
    assert state.router.tasks[0][1].status == "running"
    assert issued.text.rpartition(".")[2] not in str(state)


def test_an_import_takes_open_tasks_as_failed_and_drops_those_that_ended() -> None:
    hub = HubHarness()
    known = hub.add_task(state=TaskState.RUNNING)
    ids = [hub.ids.next_id() for _ in range(2)]
    exported = [
        StateTask(ids[0], "reviewer", "running", "x"),
        StateTask(ids[1], "reviewer", "completed"),
        StateTask(known, "reviewer", "running"),
    ]
    state = HubState(router=RouterState([(task.id, task) for task in exported]))
    assert hub.run(lambda tx: import_state(tx, state)) == 1
    task = hub.run(lambda tx: load_task(tx, ids[0]))
    assert (task.state, task.error_code) == (TaskState.FAILED, "executor_lost")
    assert hub.run(lambda tx: load_task(tx, known)).state is TaskState.RUNNING
    assert hub.run(lambda tx: import_state(tx, state)) == 0
