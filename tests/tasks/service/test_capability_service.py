"""Capabilities end to end: on one gateway, and from one gateway to another."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatepost.client import Agent, AgentTask, Client
from gatepost.errors import CapabilityUnavailable, ContractMismatch, NoRoute, TaskFailed
from gatepost.testing import GatewayProcess
from gatepost.wire.tasks import TaskReport
from tests.gateway.tools import client
from tests.live_mesh.tools import Gateway
from tests.waiting import async_wait_until, wait_until

pytestmark = pytest.mark.anyio

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def capability(id: str, owner: str, **fields: Any) -> dict[str, Any]:
    return {
        "capability_id": id,
        "name": "Doubling",
        "version": "1.0",
        "owner_agent_id": owner,
        "delegation_skill": {"ref": "skills/ask", "version": "1.1"},
        "executor_skill": {"ref": "skills/do", "version": "1.2"},
        "default_eta_seconds": 60,
        "contract": {"input": NUMBER, "output": {"type": "integer"}},
        **fields,
    }


def publish(gateway: GatewayProcess, id: str, owner: str, **fields: Any) -> httpx.Response:
    with client(gateway) as http:
        return http.put(f"/v1/capabilities/{id}", json=capability(id, owner, **fields))


def health(gateway: GatewayProcess, id: str) -> Any:
    return gateway.get(f"/v1/capabilities/{id}/health")


def installs(gateway: GatewayProcess, id: str) -> dict[str, str]:
    return {each["agent"]: each["status"] for each in health(gateway, id)["installs"]}


def reviews(gateway: GatewayProcess, id: str) -> set[str]:
    found = gateway.get("/v1/reviews")
    return {each["failure_class"] for each in found if each["capability_id"] == id}


def doubling_agent(gateway: GatewayProcess, name: str) -> Agent:
    agent = Agent(name, state_dir=gateway.state_dir)

    @agent.on_task
    async def double(task: AgentTask) -> Any:
        n = task.input["n"]
        if n < 0:
            raise ValueError("too small")
        return "broken" if n == 13 else 2 * n

    return agent


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, ...]]:
    """Two gateways in one room."""
    folder = tmp_path_factory.mktemp("pair")
    ann = GatewayProcess(folder / "ann", node__id="ann", room__profile="development")
    bob = GatewayProcess(folder / "bob", node__id="bob", room__profile="development")
    with ann, bob:
        with client(ann) as http:
            body = {"tier": "backbone", "node": "bob"}
            invite = http.post("/v1/room/invites", json=body).raise_for_status().json()
        with client(bob) as http:
            body = {"token": invite["token"], "seed": ann.url}
            http.post("/v1/room/join", json=body, timeout=60).raise_for_status()
        wait_until(lambda: len(ann.get("/v1/status")["peers"]) == 1)
        yield ann, bob


async def test_a_capability_is_published_distributed_delegated_and_reviewed(
    pair: tuple[GatewayProcess, ...],
) -> None:
    ann, bob = pair
    worker = doubling_agent(bob, "doubler")
    asker = Agent("asker", state_dir=ann.state_dir)
    asker.on_message(lambda message: None)
    async with worker, asker, Client("al", state_dir=ann.state_dir) as al:
        assert publish(bob, "double", "doubler").status_code == 200
        await async_wait_until(lambda: "double" in _published(ann))
        # The agent behind the other gateway installs the delegation skill by itself.
        await async_wait_until(lambda: installs(bob, "double").get("asker") == "installed", 60)
        assert asker.skills["double"]["delegation_skill"]["version"] == "1.1"
        assert await al.run_task("x", capabilities=["double"], input={"n": 21}, timeout=60) == 42
        with pytest.raises(ContractMismatch, match="is not of type"):
            await al.run_task("x", capabilities=["double"], input={"n": "x"})
        for n, code in ((13, "contract_mismatch"), (-1, "failed")):
            with pytest.raises(TaskFailed) as caught:
                await al.run_task("x", capabilities=["double"], input={"n": n}, timeout=60)
            assert caught.value.failure == code
        await async_wait_until(
            lambda: {"contract_mismatch", "terminal_error"} <= reviews(ann, "double"), 30
        )
        assert health(ann, "double")["tasks"] == {"completed": 1, "failed": 2}
        with client(bob) as http:
            assert http.delete("/v1/capabilities/double").status_code == 200
        await async_wait_until(lambda: "double" not in _published(ann))
        with pytest.raises(NoRoute):
            await al.run_task("x", capabilities=["double"], input={"n": 1})
    with client(ann) as http:
        # An agent that is away would keep its gateway from answering the next distribution at once.
        http.delete("/v1/agents/asker").raise_for_status()


async def test_large_inputs_and_results_have_contracts_too_and_failures_are_escalated(
    pair: tuple[GatewayProcess, ...],
) -> None:
    ann, bob = pair
    worker = Agent("grower", state_dir=bob.state_dir)
    told: list[Any] = []
    lead = Agent("lead", state_dir=ann.state_dir)
    lead.on_message(lambda message: told.append(message.payload))

    @worker.on_task
    async def grow(task: AgentTask) -> Any:
        return [task.input["text"]] if task.input["text"].startswith("bad") else task.input["text"]

    contract = {"input": {"type": "object", "required": ["text"]}, "output": {"type": "string"}}
    text = "x" * 200_000
    async with worker, lead, Client("al", state_dir=ann.state_dir) as al:
        escalation = {"notify": "lead"}
        answer = publish(bob, "grow", "grower", contract=contract, escalation=escalation)
        assert answer.status_code == 200
        await async_wait_until(lambda: installs(bob, "grow").get("lead") == "installed", 60)
        assert lead.skills["grow"]["escalation"]["notify"] == "lead"
        run = partial(al.run_task, "x", capabilities=["grow"], timeout=60)
        assert await run(input={"text": text}) == text
        with pytest.raises(ContractMismatch):
            await run(input={"no text": text})
        with pytest.raises(TaskFailed) as caught:
            await run(input={"text": "bad" + text})
        assert caught.value.failure == "contract_mismatch"
        await async_wait_until(lambda: bool(told))
        assert told[0]["event"] == "task.escalated"
        assert told[0]["failure_class"] == "contract_mismatch"


def _published(gateway: GatewayProcess) -> list[str]:
    return [each["capability_id"] for each in gateway.get("/v1/capabilities")]


async def test_gates_name_what_failed(pair: tuple[GatewayProcess, ...]) -> None:
    ann, _ = pair
    nobody = publish(ann, "fly", "nobody")
    assert nobody.status_code == 400 and "does not live behind" in nobody.json()["message"]
    async with Client("pilot", state_dir=ann.state_dir) as pilot:
        await pilot.register("pilot")
    broken = publish(ann, "fly", "pilot", contract={"input": {"type": "bird"}})
    assert (broken.status_code, broken.json()["code"]) == (400, "invalid_contract")
    assert "the input schema cannot be used" in broken.json()["message"]
    huge = publish(ann, "fly", "pilot", contract={"input": {"description": "x" * 70_000}})
    assert (huge.status_code, huge.json()["code"]) == (400, "invalid_contract")
    assert "at most 65536 bytes" in huge.json()["message"]
    assert "fly" not in _published(ann)
    with client(ann) as http:
        assert http.delete("/v1/capabilities/fly").json()["code"] == "unknown_capability"


def _is_published(gateway: GatewayProcess, id: str) -> bool:
    return id in _published(gateway)


def _has_index(gateway: GatewayProcess, id: str, agents: list[str], version: int) -> bool:
    return eligible_agents(gateway, id) == (agents, version)


def eligible_agents(gateway: GatewayProcess, id: str) -> tuple[list[str], int]:
    """As the room's index has them, and its version."""
    shown = gateway.get(f"/v1/capabilities/{id}")
    return shown.get("eligible_agent_ids", []), shown["policy_version"]


async def test_the_index_names_only_agents_that_can_be_routed_to(
    pair: tuple[GatewayProcess, ...],
) -> None:
    ann, bob = pair
    with client(ann) as at_ann, client(bob) as at_bob:
        for agent in ("digger", "helper"):
            at_ann.put(f"/v1/agents/{agent}").raise_for_status()
        named = {"eligible_agent_ids": ["helper", "stranger"]}
        assert publish(ann, "dig", "digger", **named).status_code == 200
        for gateway in pair:
            await async_wait_until(partial(_is_published, gateway, "dig"))
            assert eligible_agents(gateway, "dig") == (["digger", "helper"], 1)
        at_ann.delete("/v1/agents/helper").raise_for_status()
        for gateway in pair:
            await async_wait_until(partial(_has_index, gateway, "dig", ["digger"], 2))
        at_bob.put("/v1/agents/stranger").raise_for_status()
        for gateway in pair:
            await async_wait_until(
                partial(_has_index, gateway, "dig", ["digger", "stranger"], 3), 30
            )
        at_ann.delete("/v1/capabilities/dig").raise_for_status()


async def test_a_client_of_the_documents_publishes_with_their_names(
    pair: tuple[GatewayProcess, ...],
) -> None:
    """The owner states its executor skill: one of another version is refused, and named."""
    ann, _ = pair
    skill = {"ref": "skills/lift", "version": "2.0"}
    body = {
        "capabilityId": "lift",
        "name": "Lifting",
        "version": "1.0",
        "ownerAgentId": "crane",
        "delegationSkillRef": {"ref": "skills/ask", "version": "1.0"},
        "executorSkillRef": skill,
        "contractSchemaRef": {"input": NUMBER},
        "defaultEtaSeconds": 60,
    }
    agent = Agent("crane", state_dir=ann.state_dir, executor_skills={"skills/lift": "2.0"})
    agent.on_message(lambda message: None)
    async with agent:
        with client(ann) as http:
            shown = http.put("/v1/capabilities/lift", json=body).raise_for_status().json()
            assert (shown["executor_skill"], "note" in shown) == ("skills/lift 2.0", False)
            other = body | {"executorSkillRef": skill | {"version": "2.1"}}
            refused = http.put("/v1/capabilities/lift", json=other)
            assert refused.status_code == 400
            assert "'skills/lift' 2.1: it has version 2.0" in refused.json()["message"]
            http.delete("/v1/capabilities/lift").raise_for_status()


async def test_late_tasks_and_repeated_misses_are_reviewed(
    pair: tuple[GatewayProcess, ...],
) -> None:
    ann, _ = pair
    async with Client("al", state_dir=ann.state_dir) as al:
        await al.register("snail")
        assert publish(ann, "crawl", "snail", contract={}, progress_seconds=1).status_code == 200
        agent = Agent("snail", state_dir=ann.state_dir)

        arrived = asyncio.Event()

        @agent.on_task(eta_secs=0.0)
        async def crawl(task: AgentTask) -> None:
            await arrived.wait()

        async with agent:
            task = await al.create_task("x", capabilities=["crawl"])
            await async_wait_until(lambda: "eta_breach" in reviews(ann, "crawl"), 60)
            await async_wait_until(lambda: _has_missed_progress(ann, task.id), 60)
            await al.cancel_task(task.id)
            await al.await_task(task.id)
            arrived.set()
        with client(ann) as http:
            http.delete("/v1/agents/snail").raise_for_status()
        await async_wait_until(lambda: _is_unavailable(al, "crawl"))
        for _ in range(3):
            with pytest.raises((CapabilityUnavailable, NoRoute)):
                await al.create_task("x", capabilities=["crawl"])
        await async_wait_until(lambda: "routing_miss" in reviews(ann, "crawl"))


def _has_missed_progress(gateway: GatewayProcess, task: str) -> bool:
    incidents = gateway.get("/v1/incidents?class=progress_missed")["incidents"]
    return [each["subject"] for each in incidents] == [task]


async def _is_unavailable(al: Client, capability: str) -> bool:
    try:
        await al.create_task("x", capabilities=[capability])
    except (CapabilityUnavailable, NoRoute):
        return True
    return False


def test_a_capability_of_a_gateway_that_is_offline_is_unavailable_unless_the_task_may_wait(
    tmp_path: Path,
) -> None:
    settings: dict[str, object] = {"room__profile": "development", "delivery__offline_secs": 1}
    ann, bob = (Gateway(tmp_path, name, **settings) for name in ("ann", "bob"))
    with ann, bob:
        bob.join(ann)
        bob.call("PUT", "/agents/digger")
        assert publish(bob, "dig", "digger").status_code == 200
        wait_until(lambda: _is_published(ann, "dig"))
        body = {"description": "x", "required_capabilities": ["dig"], "input": {"n": 1}}
        with client(ann) as http:

            def post(**more: object) -> tuple[int, str]:
                answer = http.post("/api/hub/tasks", json=body | more)
                return answer.status_code, answer.json().get("code", "")

            wait_until(lambda: post() == (201, ""))
            bob.kill9()
            wait_until(lambda: post() == (409, "capability_unavailable"))
            assert post(may_wait=True) == (201, "")
            assert post(mayWait=True) == (201, "")


def test_a_published_capability_survives_a_restart(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "g")
    with gateway:
        with client(gateway) as http:
            http.put("/v1/agents/bo").raise_for_status()
        assert publish(gateway, "keep", "bo").status_code == 200
        gateway.restart()
        assert _published(gateway) == ["keep"]
        with client(gateway) as http:
            body = {"description": "x", "required_capabilities": ["keep"], "input": {"n": 1}}
            answer = http.post("/api/hub/tasks", json=body)
        assert answer.json()["tasks"][0]["agent_name"] == "bo"


async def test_an_agent_sees_the_id_that_its_requester_knows_at_the_second_attempt(
    tmp_path: Path,
) -> None:
    gateway = GatewayProcess(tmp_path / "state", hub__agent_silence_secs=0.5)
    agent = Agent("fixer", state_dir=gateway.state_dir)
    seen: list[Any] = []

    @agent.on_task
    async def fix(task: AgentTask) -> int:
        seen.append((task.id, task.attempt_id != task.id))
        return 1

    with gateway:
        async with (
            Client("fixer", state_dir=gateway.state_dir) as first,
            Client("al", state_dir=gateway.state_dir) as al,
        ):
            await first.register("fixer")
            assert publish(gateway, "fix", "fixer", max_attempts=2).status_code == 200
            created = await al.create_task("x", capabilities=["fix"], input={"n": 1})
            while not seen:
                for mail in await first.dequeue("fixer", wait_secs=10):
                    if mail.msg_id == created.id:
                        seen.append(mail.msg_id)
                        report = TaskReport(mail.msg_id, "fixer", "accept", mail.receipt)
                        await first.report_task(report)
                    else:
                        first.ack("fixer", mail.receipt)
        # The first executor says nothing more.
        async with agent, Client("al", state_dir=gateway.state_dir) as al:
            ended = await al.await_task(created.id, timeout=30)
    assert (ended.state, seen) == ("completed", [created.id, (created.id, True)])
