"""Attacks with delegation skills: nobody replaces one of another, and refusals cost little."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import httpx
import msgspec
import pytest

from gatepost.client import Agent
from gatepost.delivery.frames import EventsFrame
from gatepost.events import Envelope, Receipt, TaskInfo, decode_event
from simulation.hostile import HostileConnection, HostileNode
from tests.gateway.tools import client
from tests.live_mesh.tools import Gateway
from tests.security.siege import Siege, spy_of
from tests.waiting import async_wait_until, wait_until

pytestmark = pytest.mark.anyio

CLAIMED = 400
_numbers = count(1)


def capability(id: str, owner: str, **fields: Any) -> dict[str, Any]:
    return {
        "capability_id": id,
        "name": "Doubling",
        "version": "1.0",
        "owner_agent_id": owner,
        "delegation_skill": {"ref": "skills/ask", "version": "1.1"},
        "executor_skill": {"ref": "skills/do", "version": "1.2"},
        "default_eta_seconds": 60,
        "contract": {},
        **fields,
    }


def publish(gateway: Gateway, document: dict[str, Any]) -> None:
    with client(gateway) as http:
        path = f"/v1/capabilities/{document['capability_id']}"
        http.put(path, json=document).raise_for_status()


def withdraw(gateway: Gateway, id: str) -> None:
    with client(gateway) as http:
        http.delete(f"/v1/capabilities/{id}").raise_for_status()


def distribution(document: dict[str, Any], version: str) -> dict[str, Any]:
    """A request to install another version of the skill, as a gateway makes it."""
    names = ("capability_id", "owner_agent_id", "default_eta_seconds", "contract")
    skill = {"ref": "skills/evil", "version": version}
    return {name: document[name] for name in names} | {"delegation_skill": skill}


async def test_only_the_gateway_of_its_owner_replaces_the_skill_of_an_agent(
    siege: Siege, mallory: HostileNode
) -> None:
    id = f"double{next(_numbers)}"
    skilled = Agent(f"skilled-{id}", state_dir=siege.ann.state_dir)
    skilled.on_message(lambda message: None)
    document = capability(id, "bo")
    async with skilled:
        publish(siege.bob, document)
        await async_wait_until(lambda: id in skilled.skills, 60)
        await asyncio.to_thread(_attack_from_session, siege, skilled.name, document)
        await asyncio.to_thread(_attack_from_node, siege, mallory, skilled.name, document)
        await async_wait_until(lambda: bool(siege.naming(mallory.name)))
        assert skilled.skills[id]["delegation_skill"] == document["delegation_skill"]
    withdraw(siege.bob, id)


def _attack_from_session(siege: Siege, agent: str, document: dict[str, Any]) -> None:
    """An external agent that may send messages, and no more."""
    with client(siege.ann) as http:
        body = {"agentId": f"sender{next(_numbers)}", "scopes": ["ansible.message.send"]}
        invited = http.post("/ansible/agent/invites", json=body).raise_for_status().json()
        tokens = http.post(
            "/ansible/agent/auth/exchange", json={"inviteToken": invited["inviteToken"]}
        ).json()
    new = {
        "from_agent": body["agentId"],
        "to_agents": [agent],
        "description": "install",
        "task_type": "skill_distribution",
        "input": distribution(document, "6.6"),
    }
    mail = {
        "from_agent": body["agentId"],
        "to_agent": agent,
        "payload": {"taskType": "skill_distribution", "input": distribution(document, "6.6")},
    }
    for op in ({"op": "task_create", "tasks": [new]}, {"op": "send", "messages": [mail]}):
        answer = httpx.post(
            f"{siege.ann.url}/ansible/agent/invoke",
            json=op,
            headers={"authorization": f"Bearer {tokens['accessToken']}"},
        )
        assert answer.status_code == (403 if op["op"] == "task_create" else 200), answer.text


def _attack_from_node(
    siege: Siege, mallory: HostileNode, agent: str, document: dict[str, Any]
) -> None:
    """As the gateway, as an agent, and with a type that only the encrypted request has."""
    request = {
        "description": "install",
        "taskType": "skill_distribution",
        "input": distribution(document, "6.6"),
    }
    with siege.linked(mallory) as connection:
        for sender in ("gateway", spy_of(mallory)):
            for type in ("skill_distribution", "other"):
                mallory.outbox.add_message(
                    "ann",
                    mallory.host_key,
                    agent,
                    msgspec.json.encode(request),
                    kind="task_create",
                    source_agent_id=sender,
                    task=TaskInfo(task_type=type),
                )
        connection.deliver()


def test_a_node_that_claims_many_agents_and_refuses_skills_costs_little(
    siege: Siege, mallory: HostileNode
) -> None:
    id = f"big{next(_numbers)}"
    with mallory.connect() as connection:
        claims = [mallory.sign_agent(f"{mallory.name}-{n}") for n in range(CLAIMED)]
        connection.send_records(*claims)
        last = f"agents {mallory.name}-{CLAIMED - 1}@{mallory.name}"
        wait_until(lambda: last in siege.ann.records(), 60)
    with siege.linked(mallory) as connection:
        connection.subscribe(16 << 20)
        before = _journal_bytes(siege.ann)
        publish(siege.ann, capability(id, "al", contract={"input": {"description": "x" * 60_000}}))
        asked = _refuse(connection, mallory, at_least=3)
        grown = _journal_bytes(siege.ann) - before
    assert 3 <= len(asked) <= 6
    assert grown < 8 << 20, f"the publisher's journal has grown by {grown} bytes"
    raised = [each for each in siege.incidents() if each["class"] in ("sla_breach", "dead_letter")]
    assert not [each for each in raised if any(id in str(each) for id in (mallory.name, *asked))]
    withdraw(siege.ann, id)


def _refuse(connection: HostileConnection, node: HostileNode, at_least: int) -> list[str]:
    """Refuse all tasks that come, until so many were asked for; returns their ids."""
    asked: list[str] = []
    while len(asked) < at_least:
        for event in _requests(connection.receive_frame(EventsFrame, 60)):
            asked.append(event.event_id)
            node.outbox.add_receipt(
                "ann", event.event_id, Receipt(status="refused", reason="no_agent")
            )
        connection.send_events()
    return asked


def _requests(frame: EventsFrame) -> list[Envelope]:
    events = [decode_event(body) for body in frame.events]
    return [each for each in events if each.is_skill_distribution]


def _journal_bytes(gateway: Gateway) -> int:
    """The size of the journal's content: its log also holds pages that were written again."""
    path = str(Path(gateway.state_dir) / "journal.db")
    journal = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(journal.pragma("page_count")) * int(journal.pragma("page_size"))
    finally:
        journal.close()
