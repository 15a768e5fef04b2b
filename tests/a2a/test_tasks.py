"""Tasks through both bindings and both versions of A2A, at agents of another gateway."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from gatepost.client import AgentTask, Client, Reject
from gatepost.testing import GatewayProcess
from tests.a2a.conftest import (
    S,
    message,
    opened,
    result_of,
    send,
    send_one,
    serving,
    states,
    wait_for_state,
)

pytestmark = pytest.mark.anyio

Pair = tuple[GatewayProcess, ...]
BINDINGS = pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])


async def shout(task: AgentTask) -> str:
    return task.description.upper()


async def ask_once(task: AgentTask) -> Any:
    """Needs another message, and then answers with what was said in both."""
    if task.input is None:
        return {"input_required": "which year?"}
    (before,) = task.input["before"]
    first = before["message"]["parts"][0]["text"]
    return f"{first}, {before['question']} {task.description}"


@BINDINGS
async def test_a_blocking_message_is_answered_by_an_agent_of_another_gateway(
    pair: Pair, worker: str, binding: str
) -> None:
    lap, vps = pair
    async with (
        serving(vps, worker, shout),
        opened(lap, worker, binding=binding, streaming=False) as client,
    ):
        task = await send_one(client, message(f"m-{binding}"))
    assert task.status.state == S.TASK_STATE_COMPLETED
    assert result_of(task) == "HELLO"
    assert [each.parts[0].text for each in task.history] == ["hello"]
    assert task.metadata["agent"] == worker


@BINDINGS
async def test_a_stream_brings_progress_and_the_result(
    pair: Pair, worker: str, binding: str
) -> None:
    lap, vps = pair
    halfway, seen = asyncio.Event(), asyncio.Event()

    async def work(task: AgentTask) -> dict[str, int]:
        await task.update(0.5, "halfway")
        halfway.set()
        await asyncio.wait_for(seen.wait(), 60)
        return {"sum": task.input["a"] + task.input["b"]}

    request = message(f"p-{binding}", "")
    request.message.parts[0].data.struct_value.update({"a": 3, "b": 4})
    events = []
    async with serving(vps, worker, work), opened(lap, worker, binding=binding) as client:
        async for event in client.send_message(request):
            events.append(event)
            if event.HasField("status_update") and event.status_update.status.message.parts:
                assert event.status_update.metadata["progress"] == 0.5
                seen.set()
    assert halfway.is_set()
    shown = states(events)
    assert shown[0] == S.TASK_STATE_SUBMITTED
    assert S.TASK_STATE_WORKING in shown
    assert shown[-1] == S.TASK_STATE_COMPLETED
    (artifact,) = [each for each in events if each.HasField("artifact_update")]
    assert artifact.artifact_update.artifact.parts[0].data.struct_value["sum"] == 7


async def test_the_same_message_of_the_same_caller_is_the_same_task(
    pair: Pair, worker: str
) -> None:
    lap, vps = pair
    calls = []

    async def count(task: AgentTask) -> str:
        calls.append(task.id)
        return "done"

    async with (
        serving(vps, worker, count),
        opened(lap, worker, streaming=False) as client,
        opened(lap, worker, caller="another", streaming=False) as other,
    ):
        first, again = await asyncio.gather(
            send_one(client, message("same")), send_one(client, message("same"))
        )
        assert again.id == first.id
        with pytest.raises(InvalidParamsError, match="idempotency_conflict"):
            await send(client, message("same", "something else"))
        # A messageId is unique for its sender only.
        foreign = await send_one(other, message("same"))
        assert foreign.id != first.id
        with pytest.raises(TaskNotFoundError):
            await other.get_task(pb.GetTaskRequest(id=first.id))
    assert sorted(calls) == sorted([first.id, foreign.id])


@BINDINGS
async def test_a_task_that_needs_input_goes_on_with_the_next_message(
    pair: Pair, worker: str, binding: str
) -> None:
    lap, vps = pair
    async with (
        serving(vps, worker, ask_once),
        opened(lap, worker, binding=binding, streaming=False) as client,
        opened(lap, worker, binding=binding) as watching,
    ):
        task = await send_one(client, message(f"i-{binding}", "sales"))
        assert task.status.state == S.TASK_STATE_INPUT_REQUIRED
        assert task.status.message.parts[0].text == "which year?"
        # A subscription goes on until the end, through the question.
        events: list[pb.StreamResponse] = []

        async def watch() -> None:
            async for event in watching.subscribe(pb.SubscribeToTaskRequest(id=task.id)):
                events.append(event)

        subscribed = asyncio.create_task(watch())
        async with asyncio.timeout(60):
            while not events:
                await asyncio.sleep(0.02)
        answer = message(f"j-{binding}", "2026", task_id=task.id, context_id=task.context_id)
        ended = await send_one(client, answer)
        # The same answer again changes nothing.
        assert (await send_one(client, answer)).id == task.id
        await asyncio.wait_for(subscribed, 60)
    assert ended.id == task.id
    assert result_of(ended) == "sales, which year? 2026"
    said = [each.parts[0].text for each in ended.history]
    assert said == ["sales", "which year?", "2026"]
    assert states(events)[0] == S.TASK_STATE_INPUT_REQUIRED
    assert states(events)[-1] == S.TASK_STATE_COMPLETED


async def test_a_task_is_cancelled_while_it_runs_or_waits_for_input(
    pair: Pair, worker: str
) -> None:
    lap, vps = pair
    running = asyncio.Event()

    async def run_for_ever(task: AgentTask) -> Any:
        if task.description == "ask":
            return {"input_required": "?"}
        running.set()
        await asyncio.Event().wait()

    async with (
        serving(vps, worker, run_for_ever),
        opened(lap, worker, streaming=False, polling=True) as client,
    ):
        task = await send_one(client, message("c1"))
        await asyncio.wait_for(running.wait(), 60)
        await client.cancel_task(pb.CancelTaskRequest(id=task.id))
        await wait_for_state(client, task.id, S.TASK_STATE_CANCELED)
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))
        asking = await send_one(client, message("c2", "ask"))
        await wait_for_state(client, asking.id, S.TASK_STATE_INPUT_REQUIRED)
        ended = await client.cancel_task(pb.CancelTaskRequest(id=asking.id))
        assert ended.status.state == S.TASK_STATE_CANCELED
        with pytest.raises(UnsupportedOperationError):
            await send(client, message("c3", task_id=asking.id))


async def test_tasks_are_listed_in_pages_by_context_and_state(pair: Pair, worker: str) -> None:
    lap, vps = pair

    async def decide(task: AgentTask) -> str:
        if task.description == "refuse":
            raise Reject("not today")
        return "yes"

    async with (
        serving(vps, worker, decide),
        opened(lap, worker, caller="lister", streaming=False) as client,
    ):
        done = [await send_one(client, message(f"l{n}", context_id="ctx")) for n in range(3)]
        refused = await send_one(client, message("l3", "refuse"))
        assert refused.status.state == S.TASK_STATE_REJECTED
        assert "not today" in refused.status.message.parts[0].text
        first = await client.list_tasks(pb.ListTasksRequest(page_size=2, context_id="ctx"))
        assert first.total_size == 3
        last = await client.list_tasks(
            pb.ListTasksRequest(page_size=2, context_id="ctx", page_token=first.next_page_token)
        )
        assert not last.next_page_token
        listed = [task.id for task in [*first.tasks, *last.tasks]]
        assert listed == [task.id for task in reversed(done)]
        wanted = pb.ListTasksRequest(status=S.TASK_STATE_REJECTED)
        (only,) = (await client.list_tasks(wanted)).tasks
        assert only.id == refused.id
        with pytest.raises(InvalidParamsError):
            await client.list_tasks(pb.ListTasksRequest(page_token="é"))


async def test_a_task_for_an_agent_that_is_away_is_submitted(pair: Pair, worker: str) -> None:
    lap, vps = pair
    async with Client(worker, state_dir=vps.state_dir) as away:
        await away.register(worker)
    async with opened(lap, worker, streaming=False, polling=True) as client:
        async with asyncio.timeout(60):
            while True:
                # Until the room has told the gateway of the agent, it is unknown there.
                try:
                    task = await send_one(client, message("away"))
                    break
                except InvalidParamsError:
                    await asyncio.sleep(0.05)
        assert task.status.state == S.TASK_STATE_SUBMITTED
        async with serving(vps, worker, shout):
            await wait_for_state(client, task.id, S.TASK_STATE_COMPLETED)


async def test_a_client_of_version_0_3_is_served(pair: Pair, worker: str) -> None:
    lap, _ = pair
    headers = {"authorization": f"Bearer {lap.token}", "gatepost-agent": "old"}
    async with (
        serving(lap, worker, shout),
        httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
    ):
        base = f"{lap.url}/a2a/agents/{worker}"
        card = (await http.get(f"{base}/.well-known/agent-card.json")).json()
        assert card["protocolVersion"].startswith("0.3")
        part = {"kind": "text", "text": "old"}
        said = {"kind": "message", "messageId": "o1", "role": "user", "parts": [part]}
        params = {"message": said, "configuration": {"blocking": True}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
        answer = (await http.post(card["url"], json=call)).json()["result"]
    assert answer["status"]["state"] == "completed"
    assert answer["artifacts"][0]["parts"][0]["text"] == "OLD"


async def test_the_door_of_the_gateway_routes_by_skill(
    pair: Pair, worker: str, publish: Callable[[GatewayProcess, str, str], None]
) -> None:
    lap, _ = pair
    async with (
        serving(lap, worker, shout),
        httpx.AsyncClient(timeout=60, trust_env=False) as http,
    ):
        publish(lap, worker, "shouting")
        card = (await http.get(f"{lap.url}/.well-known/agent-card.json")).json()
        assert "shouting" in [skill["id"] for skill in card["skills"]]
        async with opened(lap, None, streaming=False) as client:
            request = message("by-skill")
            request.message.metadata.update({"skill": "shouting"})
            task = await send_one(client, request)
            request = message("no-skill")
            request.message.metadata.update({"skill": "none"})
            with pytest.raises(InvalidParamsError, match="skill"):
                await send(client, request)
    assert result_of(task) == "HELLO"


async def test_data_of_the_same_message_is_the_same_in_whatever_order_it_comes(
    pair: Pair, worker: str
) -> None:
    lap, vps = pair

    async def total(task: AgentTask) -> int:
        return sum(task.input.values())

    def numbers(names: list[str]) -> pb.SendMessageRequest:
        request = message("ordered", "")
        data = request.message.parts[0].data.struct_value
        for name in names:
            data[name] = len(name)
        return request

    names = ["a" * length for length in range(1, 20)]
    async with serving(vps, worker, total), opened(lap, worker, streaming=False) as client:
        sent = [send_one(client, numbers(each)) for each in (names, names[::-1])]
        first, again = await asyncio.gather(*sent)
        assert first.id == again.id
        with pytest.raises(InvalidParamsError, match="idempotency_conflict"):
            await send_one(client, numbers(names[5:]))
    assert first.artifacts[0].parts[0].data.number_value == sum(range(1, 20))
