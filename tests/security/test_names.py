"""Attacks with names: nobody takes the name of a gateway, of its hub or of its operator."""

import itertools
from typing import Any

import httpx
import pytest

from gatepost.client import SyncClient
from simulation.hostile import HostileNode
from tests.gateway.tools import client, drop_and_wait, unix_socket, websocket
from tests.live_mesh.tools import Gateway
from tests.security.siege import Siege, spy_of
from tests.waiting import wait_until

RESERVED = ("operator", "cli", "hub", "gateway", "Operator")
_requests = itertools.count()


def test_a_claim_to_a_reserved_name_takes_nothing_from_anybody(
    siege: Siege, mallory: HostileNode
) -> None:
    """The record stays in the room, as in one from before the rule, and does not count."""
    with mallory.connect() as connection:
        connection.send_records(*(mallory.sign_agent(name) for name in RESERVED))
        wait_until(lambda: f"agents operator@{mallory.name}" in siege.bob.records())
        siege.expect_named(mallory.name)
        owners = {each["id"] for each in siege.bob.call("GET", "/room/agents")}
        assert not owners & set(RESERVED)
        assert _send(siege.ann, "cli", "bo") == "processed"
        assert _run_task(siege.ann, "bo")["state"] == "pending"
        assert siege.naming("ann") == siege.naming("bob") == []


def test_an_operator_is_read_as_the_operator_of_its_gateway(
    siege: Siege, mallory: HostileNode
) -> None:
    # Other tests send to the same agent, in their operator's name too.
    _empty_mailbox(siege.ann)
    with siege.expect_no_harm(mallory, named=False), siege.linked(mallory) as connection:
        for name in ("operator", "Operator", "hub", "cli"):
            mallory.outbox.add_message("ann", mallory.host_key, "al", source_agent_id=name)
        connection.deliver()
    seen = {sender for sender, _ in _empty_mailbox(siege.ann)}
    assert {f"{name}@{mallory.name}" for name in ("operator", "Operator", "hub", "cli")} <= seen
    assert not seen & set(RESERVED)


def test_nobody_passes_on_what_the_operator_of_another_gateway_did_not_say(
    siege: Siege, mallory: HostileNode
) -> None:
    with siege.linked(mallory) as connection:
        for origin in ("ann", "bob"):
            mallory.outbox.add_message(
                "ann",
                mallory.host_key,
                "al",
                source_agent_id="operator",
                origin_event_id=mallory.outbox.next_id(),
                origin_node_id=origin,
            )
        _empty_mailbox(siege.ann)
        honest = mallory.outbox.add_message(
            "ann", mallory.host_key, "al", source_agent_id=spy_of(mallory)
        )
        connection.deliver()
        siege.expect_named(mallory.name)
    found = _empty_mailbox(siege.ann)
    assert (spy_of(mallory), honest.event_id) in found
    assert not [sender for sender, _ in found if sender.startswith("operator")]


def test_mail_for_a_reserved_name_is_refused(siege: Siege, mallory: HostileNode) -> None:
    with siege.linked(mallory) as connection:
        for name in RESERVED:
            mallory.outbox.add_message(
                "ann", mallory.host_key, name, source_agent_id=spy_of(mallory)
            )
        connection.deliver()
    with client(siege.ann) as http:
        for name in RESERVED:
            assert not http.post(f"/v1/mailboxes/{name}/dequeue", json={}).json()["messages"]


@pytest.mark.parametrize("name", RESERVED)
def test_no_door_of_a_gateway_gives_a_reserved_name_away(siege: Siege, name: str) -> None:
    """Registration, invite, claim and route, and the senders of every transport."""
    with client(siege.ann) as http:
        route = {"owner": "ann"}
        invite = {"agentId": name, "scopes": ["ansible.message.send"]}
        for answer in (
            http.put(f"/v1/agents/{name}"),
            http.post("/ansible/agent/invites", json=invite),
            http.put(f"/v1/room/routes/{name}", json=route),
        ):
            assert _refusal(answer) == (400, "reserved_name"), answer.text
        assert http.post(f"/v1/room/agents/{name}/claim", json={}).status_code == 404
        is_operator = name in ("operator", "cli")
        for op, fields in _sends(name).items():
            assert _answers(siege.ann, http, op, fields) == {not is_operator}, op


def test_a_session_that_invites_agents_invites_no_operator(siege: Siege) -> None:
    with client(siege.ann) as http:
        scopes = ["ansible.admin.access", "ansible.message.send"]
        body = {"agentId": f"inviter{next(_requests)}", "scopes": scopes}
        invited = http.post("/ansible/agent/invites", json=body).raise_for_status().json()
        exchanged = http.post(
            "/ansible/agent/auth/exchange", json={"inviteToken": invited["inviteToken"]}
        )
    token = exchanged.raise_for_status().json()["accessToken"]
    answer = httpx.post(
        f"{siege.ann.url}/ansible/agent/invites",
        json={"agentId": "operator", "scopes": ["ansible.message.send"]},
        headers={"authorization": f"Bearer {token}"},
    )
    assert _refusal(answer) == (400, "reserved_name")


def _refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def _sends(name: str) -> dict[str, dict[str, Any]]:
    """An operation of each kind that has a sender."""
    mail = {"msg_id": f"m:{next(_requests)}", "from": name, "to": "al", "payload": 1}
    return {
        "enqueue": {"messages": [mail]},
        "send": {"messages": [{"from_agent": name, "to_agent": "al", "payload": 1}]},
        "task_create": {
            "tasks": [{"from_agent": name, "description": "x", "to_agents": ["al"], "input": 1}]
        },
    }


def _answers(gateway: Gateway, http: httpx.Client, op: str, fields: dict[str, Any]) -> set[bool]:
    """Whether each transport refuses an operation because of its sender."""
    frame = {"op": op, **fields}
    with websocket(gateway) as over_websocket, unix_socket(gateway) as over_unix:
        found = [over_websocket.ask(**frame), over_unix.ask(**frame)]
    found.append(drop_and_wait(gateway, f"names-{next(_requests)}", frame))
    if op == "send":
        found.append(http.post("/v1/messages", json=fields["messages"][0]).json())
    return {"reserved_name" in str(each) for each in found}


def _send(gateway: Gateway, sender: str, to: str) -> str:
    with SyncClient(sender, state_dir=gateway.state_dir) as client:
        sent = client.send(to, "hello", wait="processed", timeout=60)
    assert sent.state is not None
    return sent.state


def _run_task(gateway: Gateway, agent: str) -> Any:
    with client(gateway) as http:
        body = {"description": "x", "to_agents": [agent], "input": 1}
        answer = http.post("/api/hub/tasks", json=body).raise_for_status().json()
        task = answer["tasks"][0]
        http.post(f"/api/hub/tasks/{task['id']}/cancel", json={}).raise_for_status()
    return task


def _empty_mailbox(gateway: Gateway) -> list[tuple[str, str]]:
    """(Sender, event id) of everything that `al` gets."""
    found = []
    with client(gateway) as http:
        while messages := http.post("/v1/mailboxes/al/dequeue", json={"limit": 100}).json()[
            "messages"
        ]:
            found += [(each["from"], each["msg_id"]) for each in messages]
            receipts = [each["receipt"] for each in messages]
            http.post("/v1/mailboxes/al/ack", json={"receipts": receipts}).raise_for_status()
    return found
