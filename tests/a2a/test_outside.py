"""Agents of A2A elsewhere as agents here. The one elsewhere is an agent of another gateway."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as pb

from gatepost.a2a.outside.outside_client import bound_answer, del_foreign_interfaces
from gatepost.client import AgentTask, Client, Reject
from gatepost.errors import TaskFailed, TurnFailed
from gatepost.testing import GatewayProcess
from tests.a2a.conftest import EXPOSED, Handler, serving
from tests.mcp.conftest import call, open_over_http

pytestmark = pytest.mark.anyio

Name = Callable[[str], str]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two gateways that are not in one room: `here` and `there`."""
    folder = tmp_path_factory.mktemp("apart")
    here = GatewayProcess(folder / "here", node__id="here")
    there = GatewayProcess(folder / "there", node__id="there", a2a__agents=" ".join(EXPOSED))
    with here, there:
        yield here, there


def open_session(gateway: GatewayProcess, agent: str, folder: Path) -> Path:
    """A file with the token of an external agent."""
    headers = {"authorization": f"Bearer {gateway.token}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=60) as http:
        scopes = [f"ansible.{each}" for each in ("message.read", "message.send", "task.read")]
        invite = http.post(
            "/ansible/agent/invites", json={"agentId": agent, "scopes": scopes}
        ).json()["inviteToken"]
        answer = http.post("/ansible/agent/auth/exchange", json={"inviteToken": invite})
    path = folder / f"{agent}.token"
    path.write_text(answer.json()["accessToken"])
    return path


def add_outside(gateway: GatewayProcess, name: str, url: str, token_file: Path) -> None:
    answer = httpx.put(
        f"{gateway.url}/v1/a2a/agents/{name}",
        json={"url": url, "token_file": str(token_file)},
        headers={"authorization": f"Bearer {gateway.token}"},
        timeout=60,
    )
    assert answer.is_success, answer.text


@contextlib.asynccontextmanager
async def outside_agent(
    here: GatewayProcess, there: GatewayProcess, worker: str, handle: Handler, folder: Path
) -> AsyncIterator[str]:
    """The name `here` of an agent behind the other gateway."""
    name = f"out-{worker}"
    async with serving(there, worker, handle):
        token_file = open_session(there, f"from-{worker}", folder)
        url = f"{there.url}/a2a/agents/{worker}"
        await asyncio.to_thread(add_outside, here, name, url, token_file)
        yield name


async def test_a_message_by_mcp_reaches_an_agent_of_a2a_and_its_answer_comes_back(
    apart: tuple[GatewayProcess, ...], worker: str, tmp_path: Path
) -> None:
    here, there = apart

    async def answer(task: AgentTask) -> dict[str, Any]:
        return {"said": task.description, "by": task.requester}

    async with (
        outside_agent(here, there, worker, answer, tmp_path) as name,
        open_over_http(here, "ann") as client,
    ):
        got = await call(client, "request", to=name, body="2 + 2", wait_seconds=50)
    assert got["outcome"] == "ok"
    assert f'{{"by":"from-{worker}","said":"2 + 2"}}' in got["reply"]


async def test_a_question_is_answered_in_the_same_conversation(
    apart: tuple[GatewayProcess, ...], worker: str, tmp_path: Path
) -> None:
    here, there = apart

    async def ask(task: AgentTask) -> Any:
        if task.input is None:
            return {"input_required": "which?"}
        return f"{task.description} it is"

    async with (
        outside_agent(here, there, worker, ask, tmp_path) as name,
        Client("ann", state_dir=here.state_dir) as client,
    ):
        first = await client.request(name, "choose", corr_id=f"talk-{worker}", timeout=60)
        assert first == {"input_required": "which?"}
        second = await client.request(name, "red", corr_id=f"talk-{worker}", timeout=60)
    assert second == "red it is"


async def test_a_task_brings_progress_its_result_and_its_cancellation(
    apart: tuple[GatewayProcess, ...], worker: str, tmp_path: Path
) -> None:
    here, there = apart
    seen, cancelled = asyncio.Event(), asyncio.Event()

    async def work(task: AgentTask) -> Any:
        if task.description == "for ever":
            try:
                await task.update(note="begun")
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        await task.update(0.5, "halfway")
        await asyncio.wait_for(seen.wait(), 60)
        return task.input["n"] + 1

    async with (
        outside_agent(here, there, worker, work, tmp_path) as name,
        Client("ann", state_dir=here.state_dir) as client,
    ):
        task = await client.create_task("add", to=name, input={"n": 1})
        async for view in client.watch_task(task.id, timeout=60):
            if view.note == "halfway":
                seen.set()
        assert view.state == "completed"
        assert await client.load_result(view) == 2
        endless = await client.create_task("for ever", to=name)
        async for view in client.watch_task(endless.id, timeout=60):
            if view.note == "begun":
                break
        await client.cancel_task(endless.id)
        await asyncio.wait_for(cancelled.wait(), 60)


async def test_what_the_agent_refuses_is_a_dead_letter_or_a_failed_task(
    apart: tuple[GatewayProcess, ...], worker: str, tmp_path: Path
) -> None:
    here, there = apart

    async def refuse(task: AgentTask) -> None:
        raise Reject("never")

    async with (
        outside_agent(here, there, worker, refuse, tmp_path) as name,
        Client("ann", state_dir=here.state_dir) as client,
    ):
        with pytest.raises(TurnFailed, match="never"):
            await client.request(name, "please", timeout=60)
        (letter,) = await client.peek_dead_letter(name)
        assert "never" in letter.reason
        with pytest.raises(TaskFailed) as failed:
            await client.run_task("please", to=name, timeout=60)
        assert failed.value.failure == "rejected"


async def test_mail_survives_a_kill_of_the_gateway_while_the_agent_works(
    apart: tuple[GatewayProcess, ...], worker: str, tmp_path: Path
) -> None:
    _, there = apart
    begun, go_on, calls = asyncio.Event(), asyncio.Event(), []

    async def work(task: AgentTask) -> str:
        calls.append(task.description)
        if len(calls) == 2:
            begun.set()
        await asyncio.wait_for(go_on.wait(), 90)
        return f"{task.description} done"

    settings = {"mailbox__inflight_timeout_secs": 2}
    with GatewayProcess(tmp_path / "state", **settings) as here:
        async with (
            outside_agent(here, there, worker, work, tmp_path) as name,
            Client("ann", state_dir=here.state_dir) as client,
        ):
            asked = await client.send(name, "message")
            task = await client.create_task("task", to=name)
            await asyncio.wait_for(begun.wait(), 60)
            async for view in client.watch_task(task.id, timeout=60):
                if view.state == "running":
                    break
            await asyncio.to_thread(here.kill9)
            await asyncio.to_thread(here.start)
            go_on.set()
            answer = await client.await_outcome(asked.event_id, timeout=60)
            ended = await client.await_task(task.id, timeout=60)
            result = await client.load_result(ended)
    assert answer.outcome == "ok"
    assert result == "task done"
    # What the agent had taken was not sent to it again.
    assert sorted(calls) == ["message", "task"]


async def test_mail_waits_without_losing_attempts_while_the_agent_is_away(
    apart: tuple[GatewayProcess, ...], worker: str, tmp_path: Path
) -> None:
    here, _ = apart
    with GatewayProcess(tmp_path / "away", a2a__agents=worker) as away:
        url, token_file = f"{away.url}/a2a/agents/{worker}", tmp_path / "token"
        token_file.write_text(open_session(away, f"from-{worker}", tmp_path).read_text())
        await asyncio.to_thread(away.stop)
        name = f"away-{worker}"
        await asyncio.to_thread(add_outside, here, name, url, token_file)
        async with Client("ann", state_dir=here.state_dir) as client:
            asked = await client.send(name, "patience")
            (waiting,) = await client.peek(name)
            assert (waiting.state, waiting.attempt) == ("pending", 0)
            await asyncio.to_thread(away.start)

            async def answer(task: AgentTask) -> str:
                return "here again"

            async with serving(away, worker, answer):
                ended = await client.await_outcome(asked.event_id, timeout=90)
    assert ended.outcome == "ok"


async def test_a_turn_that_does_not_end_in_time_is_a_dead_letter(
    apart: tuple[GatewayProcess, ...], worker: str, tmp_path: Path
) -> None:
    _, there = apart
    cancelled = asyncio.Event()

    async def work(task: AgentTask) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with GatewayProcess(tmp_path / "state", a2a__outside_deadline_secs=2) as here:
        async with (
            outside_agent(here, there, worker, work, tmp_path) as name,
            Client("ann", state_dir=here.state_dir) as client,
        ):
            with pytest.raises(TurnFailed, match="did not end its task within 2 s"):
                await client.request(name, "slow", timeout=60)
            await asyncio.wait_for(cancelled.wait(), 60)


async def test_an_answer_without_end_is_cut_off() -> None:
    async def pour() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1024 * 1024

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=pour())

    transport, hooks = httpx.MockTransport(answer), {"response": [bound_answer]}
    async with httpx.AsyncClient(transport=transport, event_hooks=hooks) as http:
        with pytest.raises(httpx.ReadError, match="too large"):
            await http.get("http://agent.example/")


def test_the_card_of_an_agent_points_nowhere_else() -> None:
    card = pb.AgentCard()
    for url in (
        "http://169.254.169.254/rpc",
        "https://agent.example/rpc",
        "https://agent.example:8443/",
    ):
        card.supported_interfaces.add(url=url, protocol_binding="JSONRPC")
    del_foreign_interfaces(card, "https://agent.example/base")
    assert [each.url for each in card.supported_interfaces] == ["https://agent.example/rpc"]
    with pytest.raises(ValueError, match="own origin"):
        del_foreign_interfaces(card, "http://agent.example/base")
