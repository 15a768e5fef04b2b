"""Attacks at the door for A2A: strangers, hostile clients, web pages, and where pushes go."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError, InternalError, InvalidParamsError, TaskNotFoundError

from gatepost.a2a.push_targets import check_push_url, find_address, post_push
from gatepost.client import AgentTask, Client
from gatepost.errors import InvalidRequest
from gatepost.testing import GatewayProcess
from tests.a2a.conftest import message, opened, send_one, serving
from tests.a2a.push_target import open_target
from tests.gateway.tools import client as http_client
from tests.security.test_mcp import open_session

pytestmark = pytest.mark.anyio

_STREAMS = 3
_SCOPES = ("message.read", "message.send", "task.read")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    settings = {
        "limits__wrong_tokens_per_min": 1_000_000,
        "a2a__agents": "worker lazy",
        "a2a__max_streams_per_caller": _STREAMS,
        "a2a__max_push_per_caller": 2,
    }
    with GatewayProcess(tmp_path_factory.mktemp("a2a") / "state", **settings) as running:
        yield running


def post(gateway: GatewayProcess, body: Any = None, path: str = "rpc", **headers: str) -> Any:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    call = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    url = f"{gateway.url}/a2a/agents/worker/{path}"
    data = json.dumps(call if body is None else body) if not isinstance(body, bytes) else body
    return httpx.post(url, content=data, headers={"a2a-version": "1.0", **given}, timeout=60)


def bearer(gateway: GatewayProcess) -> dict[str, str]:
    return {"authorization": f"Bearer {gateway.token}", "gatepost_agent": "visitor"}


def test_strangers_are_refused(gateway: GatewayProcess) -> None:
    assert post(gateway).status_code == 401
    assert post(gateway, authorization="Bearer wrong").status_code == 401
    assert post(gateway, path="rest/message:send").status_code == 401
    assert post(gateway, **bearer(gateway)).status_code == 200


def test_pages_and_foreign_names_are_refused_before_the_token_is_read(
    gateway: GatewayProcess,
) -> None:
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
        assert post(gateway, **bearer(gateway), **headers).status_code == 403


def test_the_token_alone_says_who_calls(gateway: GatewayProcess) -> None:
    token = open_session(gateway, "limited", *_SCOPES)
    named = {"authorization": f"Bearer {token}", "gatepost_agent": "visitor"}
    assert post(gateway, **named).status_code == 403
    nobody = {"authorization": f"Bearer {gateway.token}"}
    assert post(gateway, **nobody).status_code == 403


async def test_scopes_hold_and_tasks_of_others_do_not_exist(gateway: GatewayProcess) -> None:
    async def echo(task: AgentTask) -> str:
        return task.requester

    without = open_session(gateway, "reader", "message.read", "task.read")
    token = open_session(gateway, "owner", *_SCOPES)
    async with (
        serving(gateway, "worker", echo),
        opened(gateway, "worker", token=token, streaming=False) as owner,
        opened(gateway, "worker", caller="thief", streaming=False) as thief,
        opened(gateway, "worker", token=without, streaming=False) as reader,
    ):
        task = await send_one(owner, message("mine"))
        assert task.artifacts[0].parts[0].text == "owner"
        for request, ask in (
            (pb.GetTaskRequest(id=task.id), thief.get_task),
            (pb.CancelTaskRequest(id=task.id), thief.cancel_task),
            (
                pb.ListTaskPushNotificationConfigsRequest(task_id=task.id),
                thief.list_task_push_notification_configs,
            ),
        ):
            with pytest.raises(TaskNotFoundError):
                await ask(request)
        with pytest.raises(TaskNotFoundError):
            await send_one(thief, message("stolen", task_id=task.id))
        assert not (await thief.list_tasks(pb.ListTasksRequest())).tasks
        with pytest.raises(InvalidParamsError, match="insufficient_scope"):
            await send_one(reader, message("no right"))


async def test_agents_that_are_not_published_cannot_be_reached(gateway: GatewayProcess) -> None:
    async with opened(gateway, "worker", streaming=False) as client:
        # The card of this one is never served, so its door is tried directly.
        said = {"messageId": "x", "role": "ROLE_USER", "parts": [{"text": "x"}]}
        call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}}
        headers = {"authorization": f"Bearer {gateway.token}", "gatepost-agent": "visitor"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as http:
            url = f"{gateway.url}/a2a/agents/private/rpc"
            answer = await http.post(url, json=call, headers={"a2a-version": "1.0"})
        assert "unknown_agent" in answer.json()["error"]["message"]
        assert (await client.list_tasks(pb.ListTasksRequest(context_id="none"))).total_size == 0


async def test_anonymous_callers_are_served_only_by_a_setting_and_never_deduplicated(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"a2a__agents": "worker", "a2a__anonymous_agent": "public"}
    said = {"messageId": "same", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    params = {"message": said, "configuration": {"returnImmediately": True}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}

    async def echo(task: AgentTask) -> str:
        return task.requester

    with GatewayProcess(tmp_path_factory.mktemp("open") / "state", **settings) as gateway:
        async with serving(gateway, "worker", echo):
            answers = [await asyncio.to_thread(post, gateway, call) for _ in range(2)]
        ids = {each.json()["result"]["task"]["id"] for each in answers}
        assert len(ids) == 2
        # They see no list, and set up no push.
        assert "forbidden" in post(gateway).json()["error"]["message"]
        push = {"url": "https://push.example/x"}
        params["configuration"] = {"taskPushNotificationConfig": push}
        assert "forbidden" in post(gateway, call).json()["error"]["message"]


async def test_streams_and_pushes_of_one_caller_are_bounded(gateway: GatewayProcess) -> None:
    async with Client("lazy", state_dir=gateway.state_dir) as away:
        await away.register("lazy")
    async with (
        opened(gateway, "lazy", caller="greedy") as client,
        opened(gateway, "lazy", caller="modest") as other,
    ):
        streams: list[Any] = []
        for number in range(_STREAMS):
            streams.append(client.send_message(message(f"s{number}")))
            await anext(streams[-1])
        with pytest.raises(InternalError, match="rate_limited"):
            await anext(client.send_message(message("one too many")))
        # Others are not concerned.
        await anext(other.send_message(message("mine")))
        for stream in streams:
            await stream.aclose()
        # A place that was left is free again.
        async with asyncio.timeout(60):
            while True:
                try:
                    await anext(client.send_message(message("after")))
                    break
                except InternalError:
                    await asyncio.sleep(0.05)


def test_bodies_that_are_too_large_or_garbage_are_refused(gateway: GatewayProcess) -> None:
    headers = bearer(gateway)
    assert post(gateway, b"x" * (1024 * 1024 + 1), **headers).status_code == 413
    nested = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":' + b"[" * 100_000
    for body in (b"", b"\xff", b"[]", b"null", nested, b'{"jsonrpc":"2.0","id":{},"method":"x"}'):
        answer = post(gateway, body, **headers)
        assert answer.status_code == 200
        assert "error" in answer.json()
        assert "Traceback" not in answer.text
    for path in ("rpc/../../v1/status", "rest/tasks/%00", "rest/%2e%2e/x", "nothing"):
        assert post(gateway, path=path, **headers).status_code in (400, 401, 404, 405)
    assert post(gateway, **headers).status_code == 200


# -- where pushes go


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fd00::1]",
        "224.0.0.1",
        "2130706433",
        "0x7f.1",
    ],
)
async def test_no_push_goes_to_this_machine_or_a_private_network(host: str) -> None:
    parts = check_push_url(f"https://{host}/x", allow_private=False)
    with pytest.raises(InvalidRequest):
        await find_address(parts, allow_private=False)


async def test_a_push_needs_tls_and_goes_to_the_address_that_was_checked(
    gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match="https"):
        check_push_url("http://push.example/x", allow_private=False)
    async with opened(gateway, "worker", streaming=False, polling=True) as client:
        request = message("to myself")
        request.configuration.task_push_notification_config.url = f"{gateway.url}/v1/status"
        with pytest.raises(A2AError, match="https"):
            await send_one(client, request)
    # The name is looked up once: the connection goes to the address, and says the name.
    seen: list[httpx.Request] = []

    def take(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(302, headers={"location": "http://127.0.0.1/"})

    async def look_up(*_: object, **__: object) -> Any:
        return [(0, 0, 0, "", ("93.184.215.14", 443))]

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", look_up, raising=False)
    async with httpx.AsyncClient(transport=httpx.MockTransport(take)) as http:
        url = "https://push.example/x?y=1"
        assert await post_push(http, url, b"{}", {}, allow_private=False) == 302
    (sent,) = seen
    assert sent.url.host == "93.184.215.14"
    assert sent.headers["host"] == "push.example"
    assert sent.extensions["sni_hostname"] == "push.example"


async def test_a_push_ends_with_the_session_that_set_it_up(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    go_on = asyncio.Event()

    async def work(task: AgentTask) -> str:
        await asyncio.wait_for(go_on.wait(), 60)
        return "secret"

    settings = {"a2a__agents": "worker", "a2a__allow_private_push": "true"}
    with GatewayProcess(tmp_path_factory.mktemp("revoked") / "state", **settings) as gateway:
        token = open_session(gateway, "leaver", *_SCOPES)
        async with (
            open_target() as target,
            serving(gateway, "worker", work),
            opened(gateway, "worker", token=token, streaming=False, polling=True) as client,
        ):
            request = message("push")
            request.configuration.task_push_notification_config.url = target.url
            await send_one(client, request)
            await target.wait_for_state("TASK_STATE_WORKING")

            def revoke() -> None:
                with http_client(gateway) as http:
                    http.post("/v1/external-agents/leaver/revoke").raise_for_status()

            await asyncio.to_thread(revoke)
            go_on.set()
            async with asyncio.timeout(60):
                while "the session that set it up has ended" not in gateway.log.read_text():
                    await asyncio.sleep(0.05)
            assert "TASK_STATE_COMPLETED" not in target.states
