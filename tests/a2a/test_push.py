"""Push notifications: credentials, retries, and who may set them up."""

import asyncio

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InternalError, InvalidParamsError

from gatepost.client import AgentTask
from gatepost.testing import GatewayProcess
from tests.a2a.conftest import message, opened, send_one, serving
from tests.a2a.push_target import open_target

pytestmark = pytest.mark.anyio

Pair = tuple[GatewayProcess, ...]


async def test_a_push_has_its_credentials_and_is_tried_again(pair: Pair, worker: str) -> None:
    lap, vps = pair
    go_on = asyncio.Event()

    async def work(task: AgentTask) -> str:
        await asyncio.wait_for(go_on.wait(), 60)
        return "done"

    async with (
        open_target(failures=2) as target,
        serving(vps, worker, work),
        opened(lap, worker, streaming=False, polling=True) as client,
    ):
        request = message("push")
        config = request.configuration.task_push_notification_config
        config.url, config.token = target.url, "note"
        config.authentication.scheme, config.authentication.credentials = "Bearer", "secret"
        task = await send_one(client, request)
        wanted = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
        (listed,) = (await client.list_task_push_notification_configs(wanted)).configs
        assert listed.url == target.url
        go_on.set()
        await target.wait_for_state("TASK_STATE_COMPLETED")
        artifacts = [each.body for each in target.taken if "artifactUpdate" in each.body]
        assert artifacts[0]["artifactUpdate"]["artifact"]["parts"][0]["text"] == "done"
        for push in target.taken:
            assert push.headers["x-a2a-notification-token"] == "note"
            assert push.headers["authorization"] == "Bearer secret"
        # It ends with its task.
        async with asyncio.timeout(60):
            while (await client.list_task_push_notification_configs(wanted)).configs:
                await asyncio.sleep(0.05)


async def test_a_push_can_be_set_up_and_removed_later(pair: Pair, worker: str) -> None:
    lap, _ = pair
    async with (
        open_target() as target,
        opened(lap, worker, streaming=False, polling=True) as client,
        serving(lap, worker, _wait_for_ever),
    ):
        task = await send_one(client, message("later"))
        config = pb.TaskPushNotificationConfig(task_id=task.id, id="mine", url=target.url)
        made = await client.create_task_push_notification_config(config)
        assert made.id == "mine"
        get = pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        assert (await client.get_task_push_notification_config(get)).url == target.url
        await target.wait_for_state("TASK_STATE_WORKING")
        gone = pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        await client.delete_task_push_notification_config(gone)
        with pytest.raises(Exception, match="no such push"):
            await client.get_task_push_notification_config(get)


async def test_a_task_has_five_pushes_at_most(pair: Pair, worker: str) -> None:
    lap, _ = pair
    async with (
        open_target() as target,
        opened(lap, worker, streaming=False, polling=True) as client,
        serving(lap, worker, _wait_for_ever),
    ):
        task = await send_one(client, message("five"))
        for number in range(5):
            config = pb.TaskPushNotificationConfig(task_id=task.id, id=f"p{number}", url=target.url)
            await client.create_task_push_notification_config(config)
        config.id = "p5"
        with pytest.raises(InternalError, match="rate_limited"):
            await client.create_task_push_notification_config(config)
        # The same one again is no other.
        config.id = "p4"
        await client.create_task_push_notification_config(config)
        await client.cancel_task(pb.CancelTaskRequest(id=task.id))


async def _wait_for_ever(task: AgentTask) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "http://", "http://user:word@host/", "https://no.such.name.invalid/"]
)
async def test_an_address_that_cannot_be_one_is_refused(pair: Pair, worker: str, url: str) -> None:
    lap, _ = pair
    async with opened(lap, worker, streaming=False, polling=True) as client:
        request = message(f"bad {url}")
        request.configuration.task_push_notification_config.url = url
        with pytest.raises(InvalidParamsError):
            await send_one(client, request)
