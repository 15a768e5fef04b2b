"""Aliases over plain HTTP: for messages, mail and tasks."""

from pathlib import Path
from typing import Any

from gatepost.testing import GatewayProcess
from tests.gateway.tools import client


def mail(msg_id: str, to: str) -> dict[str, Any]:
    return {"msg_id": msg_id, "from": "al", "to": to, "payload": msg_id}


def test_what_is_sent_to_an_alias_reaches_its_agent_in_order(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "g") as gateway, client(gateway) as http:
        http.put("/v1/agents/bob").raise_for_status()
        http.put("/v1/agents/bob/aliases/bobby").raise_for_status()
        assert http.put("/v1/agents/bob/aliases/hub").json()["code"] == "reserved_name"
        batch = [mail("al:1", "bobby"), mail("al:2", "bob"), mail("al:3", "bobby")]
        http.post("/v1/enqueue/batch", json={"messages": batch}).raise_for_status()
        sent = {"from_agent": "ann", "to_agent": "bobby", "payload": "sent"}
        http.post("/v1/messages", json=sent).raise_for_status()
        many = {"from_agent": "eve", "to_agents": ["bob", "bobby"], "payload": "once"}
        http.post("/v1/messages", json=many).raise_for_status()
        body = {"to_agents": ["bobby"], "description": "x"}
        (task,) = http.post("/api/hub/tasks", json=body).raise_for_status().json()["tasks"]
        assert task["agent_name"] == "bob"
        said = {"recipient": "bobby", "type": "note", "payload": {"n": 1}}
        http.post("/api/hub/messages", json=said).raise_for_status()
        (logged,) = http.get("/api/hub/message-log").json()["messages"]
        assert (logged["recipient"], logged["status"]) == ("bob", "delivered")
        gateway.restart()
        assert gateway.get("/v1/aliases") == {"bobby": "bob"}
        with client(gateway) as again:
            taken = again.post("/v1/mailboxes/bob/dequeue", json={"limit": 10}).json()["messages"]
        assert [each["msg_id"] for each in taken if each["from"] == "al"] == [
            "al:1", "al:2", "al:3"
        ]  # fmt: skip
        assert [each["payload"] for each in taken if each["from"] in ("ann", "eve")] == [
            "sent",
            "once",
        ]
        assert {each["to"] for each in taken} == {"bob"}
