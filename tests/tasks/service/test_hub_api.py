"""The hub's API over HTTP: who may do what, and what each answer is."""

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import httpx
import pytest

from gatepost.errors import NotFound
from gatepost.tasks.policy import Operator
from gatepost.tasks.service.hub_api import HubApi
from gatepost.wire.tasks import NewTask
from tests.gateway.tools import opened
from tests.tasks.service.hub_client import HubClient
from tests.waiting import wait_until

UNKNOWN = "01a1e43d-9d8d-718e-9067-c0d71feb1aaf"
ENDPOINTS: list[tuple[str, str, Any]] = [
    ("GET", "/api/hub/agents", None),
    ("POST", "/api/hub/tasks", {"description": "x", "agent_name": "matrix"}),
    ("GET", "/api/hub/tasks", None),
    ("GET", "/api/hub/tasks/{task}", None),
    ("POST", "/api/hub/tasks/{task}/cancel", {}),
    ("GET", "/api/hub/tasks/{task}/log", None),
    ("GET", "/api/hub/sessions", None),
    ("POST", "/api/hub/messages", {"recipient": "hub", "type": "x"}),
    ("GET", "/api/hub/messages", None),
    ("POST", "/api/hub/messages/ack", None),
    ("POST", "/api/hub/messages/nack", {}),
    ("GET", "/api/hub/message-log", None),
    ("GET", "/api/hub/tokens", None),
    ("POST", "/api/hub/tokens/renew", None),
    ("DELETE", "/api/hub/tokens/0011223344556677", None),
    ("GET", "/api/hub/state", None),
    ("POST", "/api/hub/state", {}),
    ("GET", "/api/events", None),
]


def test_a_task_goes_through_a_session_to_its_result(hub: HubClient) -> None:
    hub.define("copy", "sh", "-c", "echo working; cp $GATEPOST_TASK_FILE $GATEPOST_RESULT_FILE")
    created = hub.post_task("copy", input={"n": [1, 2]}, task_type="copying").json()
    assert (created["status"], created["requester"]) == ("pending", "operator")
    task = hub.wait_for_end(created["id"])
    assert (task["status"], task["state"], task["progress"]) == ("completed", "completed", 1.0)
    assert task["result"] == {
        "description": "do it", "taskType": "copying", "input": {"n": [1, 2]}
    }  # fmt: skip
    assert task["created_at"] <= task["accepted_at"] <= task["started_at"] <= task["ended_at"]
    assert hub.log(created["id"]) == "working\n"
    listed = hub.get("tasks", agent="copy")["tasks"]
    assert [each["id"] for each in listed] == [created["id"]]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"agent_name": "nobody"}, 400, "invalid_targets"),
        ({"to_agents": []}, 400, "invalid_targets"),
        ({}, 400, "missing_route_fields"),
        ({"required_capabilities": ["fly"]}, 400, "no_route"),
        ({"agent_name": "refuser", "description": " "}, 403, "policy_denied"),
        ({"agent_name": "refuser", "to_agents": ["refuser"]}, 400, "invalid_request"),
        ({"agent_name": "refuser", "input_ref": "sha256:" + "0" * 64}, 404, "unknown_blob"),
        ({"agent_name": "refuser", "colour": "red"}, 400, "invalid_request"),
        ({"agent_name": "refuser", "task_id": "x"}, 400, "invalid_request"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_with_a_code(
    hub: HubClient, body: dict[str, Any], status: int, code: str
) -> None:
    hub.define("refuser", "true")
    with hub.http() as http:
        answer = http.post("/api/hub/tasks", json={"description": "x", **body})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert hub.get("tasks", agent="refuser")["tasks"] == []


def test_a_repeated_request_makes_one_task(hub: HubClient) -> None:
    hub.define("once", "sh", "-c", "echo 1 > $GATEPOST_RESULT_FILE")
    first = hub.create("once", idempotency_key="k1")
    assert hub.create("once", idempotency_key="k1") == first
    other = hub.post_task("once", idempotency_key="k1", description="something else")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    again = hub.post_task("once", task_id=first)
    assert again.status_code in (201, 409)
    hub.wait_for_end(first)


def test_a_task_can_be_cancelled_once(hub: HubClient) -> None:
    hub.define("sleeper", "sh", "-c", "echo up; exec sleep 1000")
    id = hub.create("sleeper")
    hub.wait_for_log(id, "up")
    answer = hub.cancel(id)
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert answer.json()["error"] == "enough"
    again = hub.cancel(id)
    assert (again.status_code, again.json()["code"]) == (409, "wrong_state")
    hub.wait_for_session_end(id)


def test_unknown_tasks_and_wrong_ids_have_their_own_codes(hub: HubClient) -> None:
    with hub.http() as http:
        assert http.get(f"/api/hub/tasks/{UNKNOWN}").json()["code"] == "unknown_task"
        assert http.get("/api/hub/tasks/xyz").json()["code"] == "invalid_id"
        assert http.get("/api/hub/tasks", params={"status": "odd"}).status_code == 400


def test_a_session_that_fails_fails_its_task(hub: HubClient) -> None:
    hub.define("broken", "sh", "-c", "echo the reason >&2; exit 3")
    task = hub.wait_for_end(hub.create("broken"))
    assert (task["status"], task["error_code"]) == ("failed", "session_failed")
    assert "exited with 3: the reason" in task["error"]
    hub.define("silent", "true")
    assert hub.wait_for_end(hub.create("silent"))["error_code"] == "no_result"
    hub.define("missing", "/no/such/program")
    task = hub.wait_for_end(hub.create("missing"))
    assert (task["error_code"], "started_at" in task) == ("launch_failed", False)
    hub.define("liar", "sh", "-c", "echo '{' > $GATEPOST_RESULT_FILE")
    assert hub.wait_for_end(hub.create("liar"))["status"] == "failed"
    hub.define("linker", "sh", "-c", "ln -s /etc/passwd $GATEPOST_RESULT_FILE")
    assert hub.wait_for_end(hub.create("linker"))["status"] == "failed"


def test_every_endpoint_refuses_callers_without_a_valid_token(hub: HubClient) -> None:
    """Without, with a wrong, an expired and a revoked token: 401 or 403, and nothing changed."""
    hub.define("matrix", "sh", "-c", "cat $GATEPOST_TOKEN_FILE; echo; exec sleep 1000")
    expired, revoked, target = (hub.create("matrix") for _ in range(3))
    tokens = {id: hub.wait_for_log(id, "\n").strip() for id in (expired, revoked, target)}
    with apsw.Connection(str(hub.state_dir / "journal.db")) as journal:
        journal.set_busy_timeout(5000)
        id = tokens[expired].split(".")[1]
        journal.execute("UPDATE task_token SET expires_at = 1 WHERE id = ?", (id,))
    hub.cancel(revoked)
    wrong = tokens[target][:-8] + "AAAAAAAA"
    bearers = [None, "nonsense", wrong, tokens[expired], tokens[revoked]]
    before = _list_tasks(hub)
    with httpx.Client(base_url=hub.gateway.url, timeout=30) as http:
        for method, path, body in ENDPOINTS:
            for bearer in bearers:
                headers = {} if bearer is None else {"authorization": f"Bearer {bearer}"}
                url = path.replace("{task}", target)
                answer = http.request(method, url, json=body, headers=headers)
                assert answer.status_code in (401, 403), (method, path, bearer, answer.text)
    assert _list_tasks(hub) == before
    for id in (expired, target):
        hub.cancel(id)


def test_a_session_passes_on_no_blob_of_others_and_nothing_that_others_cannot_read(
    hub: HubClient,
) -> None:
    script = "cat $GATEPOST_TOKEN_FILE; echo; exec sleep 1000"
    hub.define("delegator", "sh", "-c", script, capabilities=["create_tasks"])
    with hub.http() as http:
        http.put("/v1/agents/bystander")
        digest = http.post("/v1/blobs", content=b'"of the operator"').json()["digest"]
    task = hub.create("delegator")
    with hub.http(hub.wait_for_log(task, "\n").strip()) as http:
        body = {"description": "read it", "agent_name": "delegator", "input_ref": digest}
        assert http.post("/api/hub/tasks", json=body).json()["code"] == "unknown_blob"
        deep = json.loads("[" * 300 + "]" * 300)
        for payload, code in ((deep, "invalid_request"), ("x" * 70_000, "payload_too_large")):
            body = {"recipient": "bystander", "type": "x", "payload": payload}
            assert http.post("/api/hub/messages", json=body).json()["code"] == code
        report = {"event": "task.completed", "result": deep}
        http.post("/api/hub/messages", json={"recipient": "hub", "type": "x", "payload": report})
    assert hub.wait_for_end(task)["error_code"] == "invalid_request"


def test_a_session_reaches_no_more_than_its_scope(hub: HubClient) -> None:
    """The token of another agent: 403 for all that is not its own, and nothing changed."""
    hub.define("stranger", "sh", "-c", "cat $GATEPOST_TOKEN_FILE; echo; exec sleep 1000")
    hub.define("victim", "sh", "-c", "echo up; exec sleep 1000")
    own, other = hub.create("stranger"), hub.create("victim")
    token = hub.wait_for_log(own, "\n").strip()
    hub.wait_for_log(other, "up")
    with hub.http(token) as http:
        for method, path, body in ENDPOINTS:
            answer = http.request(method, path.replace("{task}", other), json=body)
            is_own = path in (
                "/api/hub/agents", "/api/hub/tasks", "/api/hub/sessions", "/api/hub/messages",
                "/api/hub/messages/ack",
                "/api/hub/messages/nack", "/api/hub/tokens/renew",
            )  # fmt: skip
            if is_own and (method, path) != ("POST", "/api/hub/tasks"):
                assert answer.status_code == 200, (method, path, answer.text)
            else:
                assert answer.status_code == 403, (method, path, answer.text)
        assert [each["id"] for each in http.get("/api/hub/tasks").json()["tasks"]] == [own]
        assert http.get(f"/api/hub/tasks/{own}").json()["id"] == own
        assert http.get("/v1/status").status_code == 401
        assert http.get("/metrics").status_code == 401
    assert hub.task(other)["status"] == "running"
    for id in (own, other):
        hub.cancel(id)


def test_a_session_sees_how_its_own_agent_runs_and_never_how_others_do(hub: HubClient) -> None:
    script = "cat $GATEPOST_TOKEN_FILE; echo; exec sleep 1000"
    hub.define("other", "sh", "-c", "PASSWORD=hunter2 true", description="helps")
    hub.define("modest", "sh", "-c", script)
    hub.define("leader", "sh", "-c", script, capabilities=["create_tasks"])
    (hub.state_dir / "agents" / "broken.json").write_text("{")
    try:
        wait_until(lambda: hub.get("agents")["problems"])
        modest, leader = hub.create("modest"), hub.create("leader")
        with hub.http(hub.wait_for_log(modest, "\n").strip()) as http:
            seen = http.get("/api/hub/agents").json()
        assert [each["name"] for each in seen["agents"]] == ["modest"]
        assert seen["agents"][0]["command"] == ["sh", "-c", script]
        with hub.http(hub.wait_for_log(leader, "\n").strip()) as http:
            answer = http.get("/api/hub/agents")
        found = {each["name"]: each for each in answer.json()["agents"]}
        assert found["other"] == {"name": "other", "description": "helps", "capabilities": []}
        assert found["leader"]["command"] and "hunter2" not in answer.text
        assert seen["problems"] == answer.json()["problems"] == []
    finally:
        (hub.state_dir / "agents" / "broken.json").unlink()
    for id in (modest, leader):
        hub.cancel(id)


def test_a_session_with_the_capability_creates_tasks(hub: HubClient) -> None:
    hub.define("helper", "sh", "-c", "echo 42 > $GATEPOST_RESULT_FILE")
    hub.define_python(
        "boss",
        """
        status, made = call("POST", "/api/hub/tasks", {"description": "x", "agent_name": "helper"})
        id = made["id"]
        status, done = call("GET", f"/api/hub/tasks/{id}?wait_secs=30")
        report(event="task.completed", result=[done["requester"], done["result"]])
        """,
        capabilities=["create_tasks"],
    )
    assert hub.wait_for_end(hub.create("boss"))["result"] == ["boss", 42]


def test_the_events_of_tasks_are_streamed(hub: HubClient) -> None:
    hub.define("streamed", "sh", "-c", "echo 1 > $GATEPOST_RESULT_FILE")
    seen: list[str] = []
    ready = threading.Event()

    def read() -> None:
        with hub.http() as http, http.stream("GET", "/api/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            ready.set()
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    seen.append(line.removeprefix("event: "))
                if "task.completed" in line:
                    return

    thread = threading.Thread(target=read)
    thread.start()
    assert ready.wait(30)
    hub.wait_for_end(hub.create("streamed"))
    thread.join(30)
    steps = ["task.pending", "task.started", "task.completed"]
    wait_until(lambda: [step for step in dict.fromkeys(seen) if step in steps] == steps)


def test_a_log_can_be_followed(hub: HubClient) -> None:
    hub.define("slow", "sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two")
    id = hub.create("slow")
    hub.wait_for_log(id, "one")
    first = hub.get(f"tasks/{id}/log", wait_secs=30)
    assert (first["text"], first["end"], first["is_complete"]) == ("one\n", 4, False)
    session = hub.task(id)["session_name"]
    (hub.state_dir / "sessions" / session / "work" / "go").touch()
    second = hub.get(f"tasks/{id}/log", offset=4, wait_secs=30)
    assert (second["offset"], second["text"]) == (4, "two\n")
    wait_until(lambda: hub.get(f"tasks/{id}/log", offset=8, wait_secs=30)["is_complete"])


@pytest.mark.anyio
async def test_a_log_that_has_not_begun_is_waited_for_and_one_kept_elsewhere_is_none(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "g") as operations:
        core = operations.core
        service: Any = SimpleNamespace(core=core, operations=operations)
        auth: Any = None
        api = HubApi(service, auth, None)
        core.registry.load_files({"run.json": b'{"name": "run", "command": ["true"]}'})
        core.agents.hub_run = frozenset({"run"})
        for name in ("run", "free"):
            await core.commit(lambda tx, name=name: core.agents.register(tx, name, "internal"))  # type: ignore[misc]
        new = NewTask("al", "do it", ["run", "free"])
        run, free = await operations.tasks.create_tasks(new, Operator())
        reading = asyncio.create_task(api.read_log(run.id, 0, 30))
        await operations.tasks.cancel_task(run.id, "enough")
        assert (await reading).is_complete
        with pytest.raises(NotFound, match="free runs by itself"):
            await api.read_log(free.id, 0, 30)


def test_large_inputs_and_results_are_blobs(hub: HubClient) -> None:
    hub.define("big", "sh", "-c", "cp $GATEPOST_TASK_FILE $GATEPOST_RESULT_FILE")
    value = "x" * 200_000
    task = hub.wait_for_end(hub.create("big", input=value))
    assert "result" not in task and task["result_ref"].startswith("sha256:")
    with hub.http() as http:
        result = http.get(f"/v1/blobs/{task['result_ref']}").json()
        assert result == {"description": "do it", "input": value}
        digest = http.post("/v1/blobs", content=b'{"from": "a blob"}').json()["digest"]
    task = hub.wait_for_end(hub.create("big", input_ref=digest))
    assert task["result"]["input"] == {"from": "a blob"}
    with hub.http() as http:
        digest = http.post("/v1/blobs", content=b"no JSON").json()["digest"]
    assert hub.post_task("big", input_ref=digest).json()["code"] == "invalid_request"


def _list_tasks(hub: HubClient) -> list[tuple[str, str]]:
    return [(task["id"], task["state"]) for task in hub.get("tasks", limit=1000)["tasks"]]
