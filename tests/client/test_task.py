"""Tasks through the client: created, executed by an agent of its own, awaited, cancelled."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gatepost.client import Agent, AgentTask, Client, Reject
from gatepost.errors import (
    DeadlineExceeded,
    GatepostError,
    IdempotencyConflict,
    InvalidTargets,
    TaskFailed,
    WrongState,
)
from gatepost.testing import GatewayProcess
from gatepost.wire.tasks import TaskReport
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio


def worker(gateway: GatewayProcess, name: str, **options: Any) -> Agent:
    return Agent(name, state_dir=gateway.state_dir, **options)


def client(gateway: GatewayProcess, name: str = "al") -> Client:
    return Client(name, state_dir=gateway.state_dir)


async def test_an_agent_executes_a_task_and_its_result_comes_back(gateway: GatewayProcess) -> None:
    agent = worker(gateway, "adder")

    @agent.on_task(eta_secs=60)
    async def add(task: AgentTask) -> int:
        assert (task.requester, task.description, task.task_type) == ("al", "add these", "sum")
        await task.update(0.5, "half")
        return sum(task.input)

    async with agent, client(gateway) as al:
        created = await al.create_task("add these", to="adder", input=[1, 2, 3], task_type="sum")
        assert created.status == "pending"
        task = await al.await_task(created.id)
        assert (await al.show_task(created.id)).state == "completed"
        assert (task.state, task.note, await al.load_result(task)) == ("completed", "half", 6)
        assert task.eta_at is not None and task.eta_at > task.created_at
        assert await al.run_task("add these", to="adder", input=[4], task_type="sum") == 4


async def test_a_plain_function_is_a_handler_too_and_messages_go_elsewhere(
    gateway: GatewayProcess,
) -> None:
    agent = worker(gateway, "both")
    agent.on_task(lambda task: task.input * 2)
    agent.on_message(lambda message: "a message")
    async with agent, client(gateway) as al:
        assert await al.run_task("double", to="both", input="ab") == "abab"
        assert await al.request("both", 1) == "a message"


async def test_a_handler_that_raises_fails_its_task(gateway: GatewayProcess) -> None:
    agent = worker(gateway, "clumsy")

    @agent.on_task
    async def stumble(task: AgentTask) -> None:
        raise Reject("not me") if task.input else ValueError("oops")

    async with agent, client(gateway) as al:
        for given, code, text in ((0, "failed", "oops"), (1, "rejected", "not me")):
            with pytest.raises(TaskFailed, match=text) as caught:
                await al.run_task("x", to="clumsy", input=given)
            assert caught.value.failure == code


async def test_a_task_waits_for_an_agent_that_is_away(gateway: GatewayProcess) -> None:
    async with client(gateway) as al:
        await al.register("late")
        created = await al.create_task("x", to="late")
        with pytest.raises(DeadlineExceeded, match="it is pending"):
            await al.await_task(created.id, timeout=0.1)
        agent = worker(gateway, "late")
        agent.on_task(lambda task: "here now")
        async with agent:
            assert await al.load_result(await al.await_task(created.id)) == "here now"


async def test_a_cancelled_task_ends_its_handler(
    gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatepost.client._agents.task_heartbeat.HEARTBEAT_SECS", 0.05)
    agent = worker(gateway, "slow", concurrency=1)
    began, ended = asyncio.Event(), asyncio.Event()

    @agent.on_task
    async def work(task: AgentTask) -> str:
        began.set()
        try:
            await asyncio.sleep(1000 if task.description == "x" else 0)
        finally:
            ended.set()
        return "done"

    async with agent, client(gateway) as al:
        created = await al.create_task("x", to="slow")
        await began.wait()
        assert (await al.cancel_task(created.id, reason="enough")).state == "cancelled"
        await asyncio.wait_for(ended.wait(), 30)
        with pytest.raises(WrongState):
            await al.cancel_task(created.id)
        # The worker that ran the handler goes on.
        assert await al.run_task("y", to="slow") == "done"


async def test_large_inputs_and_results_travel_as_blobs(gateway: GatewayProcess) -> None:
    agent = worker(gateway, "big")
    agent.on_task(lambda task: task.input)
    async with agent, client(gateway) as al:
        for size in (100_000, 2_000_000):
            assert await al.run_task("echo", to="big", input="x" * size) == "x" * size


async def test_one_bad_task_of_a_tick_fails_alone(gateway: GatewayProcess) -> None:
    agent = worker(gateway, "good")
    agent.on_task(lambda task: task.input)
    async with agent, client(gateway) as al:
        calls = [al.run_task("x", to="good" if n % 2 else "nobody", input=n) for n in range(6)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [each for each in results if not isinstance(each, GatepostError)] == [1, 3, 5]
        assert [type(each) for each in results[::2]] == [InvalidTargets] * 3


async def test_an_idempotency_key_makes_one_task(gateway: GatewayProcess) -> None:
    async with client(gateway) as al:
        await al.register("keyed")
        first = await al.create_task("x", to="keyed", idempotency_key="k")
        assert (await al.create_task("x", to="keyed", idempotency_key="k")).id == first.id
        with pytest.raises(IdempotencyConflict):
            await al.create_task("y", to="keyed", idempotency_key="k")


async def test_a_report_about_the_task_of_another_is_refused(gateway: GatewayProcess) -> None:
    async with client(gateway) as al:
        await al.register("owner")
        created = await al.create_task("x", to="owner")
        with pytest.raises(GatepostError, match="not a task of thief"):
            await al.report_task(TaskReport(created.id, "thief", "accept"))


async def test_an_agent_that_vanishes_loses_its_task(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "g", hub__agent_silence_secs=0.1) as gateway:
        async with client(gateway) as al:
            await al.register("ghost")
            created = await al.create_task("x", to="ghost")
            await al.report_task(TaskReport(created.id, "ghost", "accept"))
            task = await al.await_task(created.id, timeout=30)
            assert (task.state, task.error_code) == ("failed", "executor_lost")


async def test_tasks_survive_a_restart_of_the_gateway(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "g")
    with gateway:
        agent, release = worker(gateway, "steady"), asyncio.Event()

        @agent.on_task
        async def work(task: AgentTask) -> str:
            await release.wait()
            return "done"

        async with agent, client(gateway) as al:
            created = await al.create_task("x", to="steady")
            await async_wait_until(lambda: _is_running(al, created.id))
            await asyncio.to_thread(gateway.restart)
            release.set()
            task = await al.await_task(created.id, timeout=60)
            assert task.state == "completed"


async def _is_running(al: Client, id: str) -> bool:
    return (await al._poll_task(id, al._loop.time())).state == "running"
