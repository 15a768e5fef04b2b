import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.tasks.service.hub_state import export_state
from gatepost.tasks.session_runtime import SessionHandle
from gatepost.tasks.sessions import claim_session, note_running
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_tokens import issue_task_token
from tests.tasks.harness import HubHarness
from tests.tasks.service.hub_client import HubClient


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


@pytest.fixture
def target(tmp_path: Path) -> Iterator[HubClient]:
    """A hub that a document is imported to."""
    client = HubClient(tmp_path / "target", hub__agent_silence_secs=0.2)
    with client.gateway:
        yield client


def import_document(hub: HubClient, document: Any) -> Any:
    with hub.http() as http:
        answer = http.post("/api/hub/state", json=document)
        assert answer.status_code == 200, answer.text
        return answer.json()


def task(id: str, status: str, agent: str = "reviewer", **fields: Any) -> Any:
    """A task as the document has it."""
    nothing = {"token_id": None, "session_name": None, "result": None, "error": None}
    given = {"id": id, "description": "look", "agent_name": agent, "status": status}
    return [id, nothing | given | fields]


def token(id: str, task_id: str, agent: str = "reviewer", lasts: int = 3_600_000) -> Any:
    now = time.time_ns() // 1_000_000
    times = {"issued": now + lasts - 3_600_000, "expiry": now + lasts}
    return [id, {"token_id": id, "agent_name": agent, "task_id": task_id} | times]


def message(text: str) -> Any:
    head = {"id": str(uuid.uuid4()), "timestamp": 1740000000000, "sender": "lead"}
    return head | {"recipient": "reviewer", "type": "note", "payload": {"type": "note", "t": text}}


def document(tokens: list[Any], tasks: list[Any], pending: list[Any]) -> Any:
    return {
        "flushed_at": 1740000000000,
        "registry": {"tokens": tokens},
        "router": {"tasks": tasks},
        "messages": {"pending": pending, "log": [{"id": "m", "status": "delivered"}]},
    }


def test_a_running_task_goes_on_with_its_token_and_its_messages(target: HubClient) -> None:
    target.define("reviewer", "sh", "-c", "exec sleep 1000")
    bearer, id = str(uuid.uuid4()), str(uuid.uuid4())
    mail = [message("one"), message("two")]
    state = document([token(bearer, id)], [task(id, "running", token_id=bearer)], [[bearer, mail]])
    result = import_document(target, state)
    for kind, count in (("tasks", 1), ("tokens", 1), ("messages", 2)):
        assert result[kind] == {"kept": count, "known": 0, "failed": 0, "dropped": 0}
    ((item),) = result["items"]
    assert (item["id"], item["outcome"], result["log_dropped"]) == (id, "renamed", 1)
    assert target.task(id)["id"] == item["new_id"], "its old id finds it"
    with target.http() as http:
        listed = http.get("/api/hub/tokens").text
        assert bearer not in listed and item["new_id"] in listed
    with target.http(bearer) as http:
        found = http.get("/api/hub/messages").json()["messages"]
        assert [(each["id"], each["payload"]["t"]) for each in found] == [
            (mail[0]["id"], "one"), (mail[1]["id"], "two")
        ]  # fmt: skip
        # It says nothing for longer than agents may be silent: its token is its sign of life.
        time.sleep(0.6)
        payload = {"event": "task.completed", "task_id": id, "result": 7}
        body = {"recipient": "hub", "type": "report", "payload": payload}
        assert http.post("/api/hub/messages", json=body).status_code == 200
        assert (target.task(id)["status"], target.task(id)["result"]) == ("completed", 7)
        refused = http.get("/api/hub/messages")
        assert (refused.status_code, refused.json()["code"]) == (403, "revoked")
    again = import_document(target, state)
    assert (again["tasks"]["known"], again["messages"]["kept"]) == (1, 0)


def test_a_pending_task_runs_here(target: HubClient) -> None:
    target.define("reviewer", "sh", "-c", "cp $GATEPOST_TASK_FILE $GATEPOST_RESULT_FILE")
    id = str(uuid.uuid4())
    assert import_document(target, document([], [task(id, "pending")], []))["tasks"]["kept"] == 1
    assert target.wait_for_end(id)["result"] == {"description": "look"}


def test_what_is_not_kept_is_named_with_its_reason(target: HubClient) -> None:
    target.define("reviewer", "true")
    ended, lost, homeless = (str(uuid.uuid4()) for _ in range(3))
    old, weak, late = str(uuid.uuid4()), "0011223344556677", message("late")
    tasks = [task(ended, "completed"), task(lost, "running"), task(homeless, "pending", "nobody")]
    tokens = [token(old, lost, lasts=-1), token(weak, lost), token(str(uuid.uuid4()), "none")]
    result = import_document(target, document(tokens, tasks, [[old, [late]], ["x", [late]]]))
    assert result["tasks"] == {"kept": 0, "known": 0, "failed": 1, "dropped": 2}
    assert result["tokens"] == {"kept": 0, "known": 0, "failed": 0, "dropped": 3}
    assert result["messages"] == {"kept": 0, "known": 0, "failed": 0, "dropped": 2}
    said = {(each["id"], each["outcome"]): each["reason"] for each in result["items"]}
    assert said[ended, "dropped"] == "it has ended: completed"
    assert "no token" in said[lost, "failed"] and (lost, "renamed") in said
    assert "exists" in said[homeless, "dropped"]
    assert said[f"{old[:8]}…", "dropped"] == "it has expired"
    assert "secret" in said[weak, "dropped"]
    assert "expired" in said[late["id"], "dropped"]
    failed = target.task(lost)
    assert (failed["status"], failed["error_code"]) == ("failed", "executor_lost")
    with target.http(old) as http:
        assert http.get("/api/hub/messages").status_code == 401


def test_an_export_is_imported_elsewhere_with_its_mail_and_its_inputs(
    hub: HubClient, target: HubClient
) -> None:
    script = "while [ ! -e go ]; do sleep 0.01; done; cp $GATEPOST_TASK_FILE $GATEPOST_RESULT_FILE"
    hub.define("mover", "sh", "-c", script)
    running = hub.create("mover")
    with hub.http() as http:
        body = {"recipient": "mover", "type": "note", "payload": {"n": 1}}
        assert http.post("/api/hub/messages", json=body).status_code == 200
        state = http.get("/api/hub/state").json()
    ((key, (mail,)),) = [each for each in state["messages"]["pending"] if "mover" in str(each)]
    assert (mail["sender"], mail["type"], mail["payload"]) == ("operator", "note", {"n": 1})
    assert key in str(state["registry"]["tokens"]) or key == "mover"
    state["router"]["tasks"] = [
        [id, each | {"status": "pending", "input": [1, 2]}]
        for id, each in state["router"]["tasks"]
        if id == running
    ]
    target.define("mover", "sh", "-c", "cp $GATEPOST_TASK_FILE $GATEPOST_RESULT_FILE")
    result = import_document(target, state)
    assert (result["tasks"]["kept"], result["messages"]["kept"]) == (1, 1)
    assert target.wait_for_end(running)["result"] == {"description": "do it", "input": [1, 2]}
    again = target.get("state")["messages"]["pending"]
    assert [mail["id"]] == [each["id"] for _, messages in again for each in messages]
    hub.cancel(running)
