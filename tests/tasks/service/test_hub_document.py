"""A client written from the hub's document alone: plain HTTP and JSON, its paths and its shapes."""

import threading
from typing import Any

import httpx
import pytest

from gatepost.tasks.runtimes.bubblewrap import find_bubblewrap
from gatepost.tasks.runtimes.session_user import find_any_user
from tests.tasks.service.hub_client import HubClient
from tests.waiting import wait_until

TASK_FIELDS = (
    "id", "description", "agent_name", "status", "token_id", "session_name", "result", "error"
)  # fmt: skip
STATUSES = ("pending", "running", "completed", "failed", "cancelled")


def foreign(hub: HubClient, token: str | None = None) -> httpx.Client:
    return httpx.Client(
        base_url=hub.gateway.url,
        headers={"Authorization": f"Bearer {token or hub.gateway.token}"},
        trust_env=False,
        timeout=60,
    )


def submit(http: httpx.Client, agent: str) -> Any:
    body = {"description": "do it", "agent_name": agent}
    answer = http.post("/api/hub/tasks", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_submitted_task_is_answered_with_the_task_of_the_document(hub: HubClient) -> None:
    hub.define("doc-task", "sh", "-c", "echo up; exec sleep 1000")
    with foreign(hub) as http:
        task = submit(http, "doc-task")
        assert [name for name in TASK_FIELDS if name not in task] == []
        assert (task["description"], task["agent_name"]) == ("do it", "doc-task")
        assert task["status"] in STATUSES
        path = f"/api/hub/tasks/{task['id']}"
        running = wait_until(
            lambda: (now := http.get(path).json())["status"] == "running" and now, timeout=30
        )
        assert (running["result"], running["error"]) == (None, None)
        tokens = http.get("/api/hub/tokens").json()["tokens"]
        (token,) = [each for each in tokens if each["task_id"] == task["id"]]
        assert (running["token_id"], running["session_name"]) == (
            token["token_id"],
            hub.task(task["id"])["session_name"],
        )
        cancelled = http.post(f"{path}/cancel", json={}).json()
    assert (cancelled["status"], cancelled["id"]) == ("cancelled", task["id"])


def test_lists_of_tasks_are_short_and_each_task_is_whole(hub: HubClient) -> None:
    hub.define("doc-list", "sh", "-c", "true")
    with foreign(hub) as http:
        id = submit(http, "doc-list")["id"]
        listed = next(
            each for each in http.get("/api/hub/tasks").json()["tasks"] if each["id"] == id
        )
        assert {"id", "description", "agent_name", "status"} <= set(listed)
        assert not {"token_id", "session_name", "result"} & set(listed)
        whole = http.get(f"/api/hub/tasks/{id}").json()
        assert set(TASK_FIELDS) <= set(whole)


def test_a_token_lasts_its_ttl_from_the_moment_it_is_issued(hub: HubClient) -> None:
    hub.define("doc-ttl", "sh", "-c", "echo up; exec sleep 1000")
    with foreign(hub) as http:
        # The second waits for the place of the first, so it is claimed before it is launched.
        ids = [submit(http, "doc-ttl")["id"] for _ in range(2)]
        for id in ids:
            hub.wait_for_log(id, "up")
        tokens = http.get("/api/hub/tokens").json()["tokens"]
        lasting = [each["expiry"] - each["issued"] for each in tokens if each["task_id"] in ids]
    assert lasting == [3_600_000, 3_600_000]
    for id in ids:
        hub.cancel(id)


def test_the_start_of_a_task_is_one_event_and_later_reports_are_others(hub: HubClient) -> None:
    hub.define_python(
        "doc-events",
        """
        report(event="task.progress", progress=0.5)
        report(event="task.completed", result=1)
        """,
    )
    seen: list[str] = []
    ready = threading.Event()

    def read() -> None:
        with foreign(hub) as http, http.stream("GET", "/api/events") as stream:
            ready.set()
            for line in stream.iter_lines():
                if line.startswith("event: task."):
                    seen.append(line.removeprefix("event: task."))
                if "task.completed" in line:
                    return

    thread = threading.Thread(target=read)
    thread.start()
    assert ready.wait(30)
    with foreign(hub) as http:
        id = submit(http, "doc-events")["id"]
    hub.wait_for_end(id)
    thread.join(30)
    assert seen == ["pending", "started", "running", "completed"]


def test_a_type_inside_the_payload_is_the_type_of_a_message(hub: HubClient) -> None:
    hub.define_python(
        "doc-listener",
        """
        got = call("GET", "/api/hub/messages?wait_secs=30")[1]["messages"]
        report(event="task.completed", result=[[m["type"], m["payload"]] for m in got])
        """,
    )
    with foreign(hub) as http:
        id = submit(http, "doc-listener")["id"]
        payload = {"type": "question", "text": "why?"}
        body = {"recipient": "doc-listener", "payload": payload}
        answer = http.post("/api/hub/messages", json=body)
        assert (answer.status_code, answer.json()["delivered"]) == (200, True)
        for wrong in ({"text": "why?"}, {"type": 7}, "question"):
            body = {"recipient": "doc-listener", "payload": wrong}
            assert http.post("/api/hub/messages", json=body).status_code == 403
    assert hub.wait_for_end(id)["result"] == [["question", payload]]


def test_a_message_for_an_agent_waits_for_its_next_session(hub: HubClient) -> None:
    hub.define_python(
        "doc-away",
        """
        got = call("GET", "/api/hub/messages?wait_secs=30")[1]["messages"]
        report(event="task.completed", result=[m["payload"] for m in got])
        """,
    )
    with foreign(hub) as http:
        body = {"recipient": "doc-away", "payload": {"type": "note", "n": 1}}
        assert http.post("/api/hub/messages", json=body).json()["delivered"] is True
        id = submit(http, "doc-away")["id"]
    assert hub.wait_for_end(id)["result"] == [body["payload"]]


def test_a_session_reads_the_description_of_the_api(hub: HubClient) -> None:
    hub.define_python(
        "doc-reader",
        """
        status, document = call("GET", "/openapi/openapi.json")
        report(event="task.completed", result=[status, sorted(document["paths"]["/api/hub/tasks"])])
        """,
    )
    with foreign(hub) as http:
        id = submit(http, "doc-reader")["id"]
    assert hub.wait_for_end(id)["result"] == [200, ["get", "post"]]


def test_sessions_are_listed_and_a_session_sees_its_own_alone(hub: HubClient) -> None:
    hub.define("doc-session", "sh", "-c", "cat $GATEPOST_TOKEN_FILE; echo; exec sleep 1000")
    with foreign(hub) as http:
        ids = [submit(http, "doc-session")["id"] for _ in range(2)]
        token = hub.wait_for_log(ids[0], "\n").strip()
        hub.wait_for_log(ids[1], "\n")
        listed = {each["task_id"]: each for each in _sessions(http, state="running")}
        names = [hub.task(id)["session_name"] for id in ids]
        assert [listed[id]["session_name"] for id in ids] == names
        assert {listed[id]["state"] for id in ids} == {"running"}
        assert {listed[id]["backend"] for id in ids} == {"process"}
        with foreign(hub, token) as session:
            assert [each["session_name"] for each in _sessions(session)] == names[:1]
        for id in ids:
            hub.cancel(id)
            hub.wait_for_session_end(id)
        recycled = _sessions(http, state="recycled", limit=1000)
        assert set(names) <= {each["session_name"] for each in recycled}
        assert http.get("/api/hub/sessions", params={"state": "odd"}).status_code == 400


def _sessions(http: httpx.Client, **query: Any) -> Any:
    return http.get("/api/hub/sessions", params=query).json()["sessions"]


def test_a_revoked_token_does_not_say_that_its_task_has_ended(hub: HubClient) -> None:
    hub.define("doc-revoked", "sh", "-c", "cat $GATEPOST_TOKEN_FILE; echo; exec sleep 1000")
    with foreign(hub) as http:
        id = submit(http, "doc-revoked")["id"]
        token = hub.wait_for_log(id, "\n").strip()
        name = http.get(f"/api/hub/tasks/{id}").json()["token_id"]
        assert http.delete(f"/api/hub/tokens/{name}").status_code == 200
        with foreign(hub, token) as session:
            refused = session.get("/api/hub/messages")
        assert (refused.status_code, refused.json()["code"]) == (403, "revoked")
        assert "the operator revoked this token" in refused.text
        assert hub.task(id)["status"] == "running"
    hub.cancel(id)


@pytest.mark.skipif(
    find_bubblewrap(find_any_user()) is None, reason="bubblewrap makes no sandbox here"
)
def test_a_missing_program_of_a_sandboxed_agent_is_a_failed_launch(hub: HubClient) -> None:
    hub.define("doc-missing", "/no/such/program", hardened=True)
    with foreign(hub) as http:
        task = hub.wait_for_end(submit(http, "doc-missing")["id"])
    assert (task["status"], task["error_code"]) == ("failed", "launch_failed")
    assert "/no/such/program" in task["error"]
