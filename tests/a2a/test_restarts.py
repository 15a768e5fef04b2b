"""Tasks, streams and push notifications after the gateway was killed."""

import asyncio
from pathlib import Path

import pytest
from a2a.client.client import Client
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as pb

from gatepost.client import AgentTask
from gatepost.testing import GatewayProcess
from tests.a2a.conftest import S, message, opened, result_of, send, send_one, serving, states
from tests.a2a.push_target import open_target

pytestmark = pytest.mark.anyio


async def test_a_task_its_stream_and_its_push_survive_a_kill(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def work(task: AgentTask) -> str:
        await asyncio.wait_for(go_on.wait(), 90)
        return "survived"

    settings = {"a2a__agents": "worker", "a2a__allow_private_push": "true"}
    async with open_target() as target:
        with GatewayProcess(tmp_path / "state", **settings) as gateway:
            async with (
                serving(gateway, "worker", work),
                opened(gateway, "worker") as client,
                opened(gateway, "worker", streaming=False, polling=True) as asking,
            ):
                request = message("kill")
                request.configuration.task_push_notification_config.url = target.url
                task = await send_one(asking, request)
                streaming = asyncio.create_task(_read_stream(client, task.id))
                await target.wait_for_state("TASK_STATE_WORKING")
                await asyncio.to_thread(gateway.kill9)
                with pytest.raises(A2AClientError):
                    await asyncio.wait_for(streaming, 60)
                await asyncio.to_thread(gateway.start)
                # The client cannot know whether its message was taken: it sends it again.
                again = await send_one(asking, request)
                assert again.id == task.id
                events = client.subscribe(pb.SubscribeToTaskRequest(id=task.id))
                shown = [await anext(events)]
                go_on.set()
                shown += [event async for event in events]
                assert states(shown)[-1] == S.TASK_STATE_COMPLETED
                await target.wait_for_state("TASK_STATE_COMPLETED")
                ended = await asking.get_task(pb.GetTaskRequest(id=task.id))
    assert result_of(ended) == "survived"


async def _read_stream(client: Client, id: str) -> list[pb.StreamResponse]:
    events = client.subscribe(pb.SubscribeToTaskRequest(id=id))
    return [event async for event in events]


async def test_a_gateway_stops_while_clients_wait(tmp_path: Path) -> None:
    async def wait_for_ever(task: AgentTask) -> None:
        await asyncio.Event().wait()

    with GatewayProcess(tmp_path / "state", a2a__agents="worker") as gateway:
        async with (
            serving(gateway, "worker", wait_for_ever),
            opened(gateway, "worker") as client,
            opened(gateway, "worker", streaming=False) as asking,
        ):
            calls = [
                asyncio.create_task(send(client, message("s1"))),
                asyncio.create_task(send(asking, message("s2"))),
            ]
            async with opened(gateway, "worker", streaming=False) as looking:
                async with asyncio.timeout(60):
                    while (await looking.list_tasks(pb.ListTasksRequest())).total_size < 2:
                        await asyncio.sleep(0.05)
            begun = asyncio.get_running_loop().time()
            assert await asyncio.to_thread(gateway.stop) == 0
            assert asyncio.get_running_loop().time() - begun < 20
            await asyncio.gather(*calls, return_exceptions=True)
            gateway.start()
