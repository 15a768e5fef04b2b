import msgspec

from gatepost.gateway.hub.hub_state import (
    HubState,
    RouterState,
    StateTask,
    export_state,
    import_state,
)
from gatepost.hub.runtimes.runtime import SessionHandle
from gatepost.hub.sessions import claim_session, note_running
from gatepost.hub.task_states import TaskState
from gatepost.hub.task_tokens import issue_task_token
from gatepost.hub.tasks import TaskFilter, list_tasks, load_task
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


def test_the_export_names_the_session_and_the_token_of_a_task() -> None:
    hub = HubHarness()
    task = hub.add_task()
    issued = hub.run(lambda tx: issue_task_token(tx, hub.clock, "reviewer", task, (), 1000))
    hub.run(lambda tx: claim_session(tx, "s1", task, "reviewer", "process"))
    hub.run(lambda tx: note_running(tx, "s1", SessionHandle("s1", {})))
    ((_, exported),) = hub.run(export_state).router.tasks
    assert (exported.session_name, exported.token_id) == ("s1", issued.token.token_id)


SEED = b"""{
  "flushed_at": 1740000000000,
  "registry": {"tokens": [["token-uuid", {"token_id": "t", "agent_name": "a", "expiry": 5}]]},
  "router": {
    "tasks": [["task-uuid", {
      "id": "6b2f7ad1-94a1-4bd5-b9c2-0d2b1c1f8a77", "status": "running", "token_id": "t",
      "agent_name": "code-reviewer", "session_name": "s", "result": null
    }]]
  },
  "messages": {
    "pending": [["token-id", [{"id": "msg-uuid"}]]],
    "log": [{"id": "m", "status": "delivered"}]
  }
}"""


def test_the_document_of_another_kind_of_hub_is_imported_once() -> None:
    hub = HubHarness()
    state = msgspec.json.decode(SEED, type=HubState)
    assert hub.run(lambda tx: import_state(tx, state)) == 1
    (task,) = hub.run(lambda tx: list_tasks(tx, TaskFilter(), 9))
    assert (task.agent, task.error_code) == ("code-reviewer", "executor_lost")
    assert hub.run(lambda tx: import_state(tx, state)) == 0


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
