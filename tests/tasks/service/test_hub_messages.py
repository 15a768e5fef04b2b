"""Messages through the hub: sessions that report, agents that write to each other, and the log."""

from tests.tasks.service.hub_client import HubClient
from tests.waiting import wait_until


def test_a_session_reports_progress_and_its_result(hub: HubClient) -> None:
    hub.define_python(
        "reporter",
        """
        import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
        report(event="task.progress", progress=0.5, note="half", eta_secs=60)
        print(call("GET", "/api/hub/tasks/" + os.environ["GATEPOST_TASK_ID"])[1])
        first = report(event="task.completed", result={"fine": True})
        print(first[0], report(event="task.completed", result={"fine": True}))
        time.sleep(1000)
        """,
    )
    id = hub.create("reporter")
    task = hub.wait_for_end(id)
    assert (task["result"], task["note"]) == ({"fine": True}, "half")
    assert task["eta_at"] > task["created_at"]
    hub.wait_for_session_end(id)
    log = hub.log(id)
    assert "'progress': 0.5" in log
    assert "200 (403, {'code': 'revoked'" in log, "the token ends with the task"


def test_a_session_can_fail_its_task(hub: HubClient) -> None:
    hub.define_python("honest", 'report(event="task.failed", code="too_hard", error="sorry")')
    task = hub.wait_for_end(hub.create("honest"))
    assert (task["status"], task["error_code"], task["error"]) == ("failed", "too_hard", "sorry")


def test_wrong_reports_change_nothing(hub: HubClient) -> None:
    hub.define_python(
        "wrong",
        """
        print(report(event="task.vanished")[1]["code"])
        print(report(event="task.progress", progress=7)[1]["code"])
        print(report(event="task.completed", task_id="other")[1]["code"])
        report(event="task.completed", result=1)
        """,
    )
    id = hub.create("wrong")
    assert hub.wait_for_end(id)["result"] == 1
    assert hub.wait_for_log(id, "forbidden").split() == [
        "invalid_request", "invalid_request", "forbidden"
    ]  # fmt: skip


def test_a_message_is_handed_out_again_until_the_next_call(hub: HubClient) -> None:
    hub.define_python(
        "listener",
        """
        first = call("GET", "/api/hub/messages?wait_secs=30")[1]["messages"]
        call("POST", "/api/hub/messages/nack", {"reason": "not now"})
        again = call("GET", "/api/hub/messages?wait_secs=30")[1]["messages"]
        rest = call("GET", "/api/hub/messages")[1]["messages"]
        result = [[m["sender"], m["type"], m["payload"]] for m in first]
        is_same = [m["id"] for m in first] == [m["id"] for m in again]
        report(event="task.completed", result=[result, is_same, rest])
        """,
    )
    id = hub.create("listener")
    with hub.http() as http:
        body = {"recipient": "listener", "type": "greeting", "payload": {"hello": 1}}
        answer = http.post("/api/hub/messages", json=body)
    assert answer.status_code == 200 and answer.json()["delivered"] is True
    task = hub.wait_for_end(id)
    assert task["result"] == [[["operator", "greeting", {"hello": 1}]], True, []]


def test_a_message_to_nobody_or_without_a_type_is_rejected_and_logged(hub: HubClient) -> None:
    with hub.http() as http:
        nobody = http.post("/api/hub/messages", json={"recipient": "nobody", "type": "x"})
        untyped = http.post("/api/hub/messages", json={"recipient": "hub"})
        log = http.get("/api/hub/message-log", params={"limit": 2}).json()["messages"]
    assert [nobody.status_code, untyped.status_code] == [403, 403]
    assert nobody.json()["code"] == "policy_denied"
    assert [entry["status"] for entry in log] == ["rejected", "rejected"]
    assert "no rule permits operator 'operator' to sendMessage hub 'hub'" in log[0]["reason"]


def test_the_log_is_bounded(hub: HubClient) -> None:
    with hub.http() as http:
        for _ in range(105):
            http.post("/api/hub/messages", json={"recipient": "hub", "type": "tick"})
        log = http.get("/api/hub/message-log", params={"limit": 1000}).json()["messages"]
    assert len(log) == 100


def test_a_policy_file_is_reloaded_and_refused_when_it_is_wrong(hub: HubClient) -> None:
    path = hub.state_dir / "policy.cedar"

    def send() -> int:
        with hub.http() as http:
            return http.post(
                "/api/hub/messages", json={"recipient": "hub", "type": "secret"}
            ).status_code

    assert send() == 200
    try:
        path.write_text(
            "permit (principal, action, resource);"
            ' forbid (principal, action == Action::"sendMessage", resource)'
            ' when { context.type == "secret" };'
        )
        wait_until(lambda: send() == 403)
        path.write_text("permit (principal, action, resource")
        wait_until(lambda: "policy.cedar is not used" in hub.gateway.log.read_text())
        assert send() == 403, "the rules before the mistake stay"
    finally:
        path.unlink()
    wait_until(lambda: send() == 200)


def test_a_session_is_told_that_its_result_does_not_fit(hub: HubClient) -> None:
    hub.define_python(
        "breaker",
        """
        import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
        status, answer = report(event="task.completed", result="x")
        print(status, answer["code"])
        time.sleep(1000)
        """,
    )
    contract = {"output": {"type": "integer"}}
    skill = {"ref": "skills/ask", "version": "1"}
    body = {
        "capability_id": "break", "name": "Break", "version": "1", "owner_agent_id": "breaker",
        "delegation_skill": skill, "executor_skill": skill, "default_eta_seconds": 60,
        "contract": contract,
    }  # fmt: skip
    with hub.http() as http:
        http.put("/v1/capabilities/break", json=body).raise_for_status()
    id = hub.create("breaker", required_capabilities=["break"])
    task = hub.wait_for_end(id)
    assert (task["error_code"], task["error"]) == (
        "contract_mismatch", 'result: "x" is not of type "integer"'
    )  # fmt: skip
    hub.wait_for_session_end(id)
    assert "400 contract_mismatch" in hub.log(id)
    with hub.http() as http:
        http.delete("/v1/capabilities/break").raise_for_status()
