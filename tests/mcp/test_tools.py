"""Tools over both transports, in both eras of the protocol, between agents of two gateways."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from mcp.client.client import Client

from gatepost.testing import GatewayProcess
from tests.mcp.conftest import (
    OpenClient,
    call,
    open_over_http,
    open_over_stdio,
    refusal,
    wait_for_agent,
)

pytestmark = pytest.mark.anyio

Pair = tuple[GatewayProcess, ...]
Name = Callable[[str], str]


async def _take_one(client: Client) -> Any:
    (mail,) = (await call(client, "inbox", wait_seconds=20))["messages"]
    return mail


async def test_a_request_is_answered_by_an_agent_of_another_gateway(
    pair: Pair, open_client: OpenClient, name: Name
) -> None:
    lap, vps = pair
    ann, bob = name("ann"), name("bob")
    async with open_over_stdio(vps, bob) as there, open_client(lap, ann) as here:
        await wait_for_agent(here, bob)
        asking = asyncio.create_task(
            call(here, "request", to=bob, body={"question": "6 x 7"}, wait_seconds=40)
        )
        mail = await _take_one(there)
        assert mail["sender"] == f"{ann}@lap"
        assert '{"question":"6 x 7"}' in mail["body"]
        await call(there, "reply", handle=mail["handle"], body="42")
        answer = await asking
    assert answer["outcome"] == "ok"
    assert "\n42\n" in answer["reply"]
    assert f"{bob}@vps" in answer["reply"]


async def test_a_request_can_be_waited_for_again(pair: Pair, name: Name) -> None:
    lap, _ = pair
    ann, bob = name("ann"), name("bob")
    async with open_over_stdio(lap, bob) as there, open_over_stdio(lap, ann) as here:
        asked = await call(here, "request", to=bob, body="later?", wait_seconds=0)
        assert "event_id" in asked["next"]
        mail = await _take_one(there)
        await call(there, "reply", handle=mail["handle"], body="now")
        answer = await call(here, "request", event_id=asked["event_id"], wait_seconds=20)
    assert answer["event_id"] == asked["event_id"]
    assert "\nnow\n" in answer["reply"]


async def test_an_answer_to_a_plain_message_comes_as_mail(
    pair: Pair, open_client: OpenClient, name: Name
) -> None:
    lap, vps = pair
    ann, bob = name("ann"), name("bob")
    async with open_over_stdio(vps, bob) as there, open_client(lap, ann) as here:
        await wait_for_agent(here, bob)
        sent = await call(here, "send", to=bob, body="hello")
        mail = await _take_one(there)
        await call(there, "reply", handle=mail["handle"], body=["a", 1])
        answer = await _take_one(here)
        assert answer["kind"] == "reply"
        assert answer["in_reply_to"] == sent["event_id"]
        await call(here, "ack", handles=[answer["handle"]])
        assert (await call(here, "whoami")).get("in_hand", []) == []


async def test_a_task_is_accepted_reports_progress_and_completes(
    pair: Pair, open_client: OpenClient, name: Name
) -> None:
    lap, vps = pair
    ann, bob = name("ann"), name("bob")
    async with open_over_stdio(vps, bob) as there, open_client(lap, ann) as here:
        await wait_for_agent(here, bob)
        made = await call(here, "task_create", to=[bob], description="count", input={"to": 3})
        (task,) = made["tasks"]
        mail = await _take_one(there)
        assert mail["kind"] == "task_create"
        id = mail["task_id"]
        await call(there, "task_update", task_id=id, handle=mail["handle"], eta_seconds=60)
        await call(there, "task_update", task_id=id, progress=0.5, note="halfway")
        seen = await _until(here, task["task_id"], lambda t: t.get("progress") == 0.5)
        assert "halfway" in seen["note"]
        await call(there, "task_complete", task_id=id, result={"counted": [1, 2, 3]})
        ended = await call(here, "task_status", task_id=task["task_id"], wait_seconds=20)
    assert ended["state"] == "completed"
    assert '{"counted":[1,2,3]}' in ended["result"]


async def _until(client: Client, task: str, wanted: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(20):
        while not wanted(seen := await call(client, "task_status", task_id=task)):
            await asyncio.sleep(0.05)
    return seen


async def test_a_task_is_cancelled_by_its_requester_only(
    pair: Pair, open_client: OpenClient, name: Name
) -> None:
    lap, vps = pair
    ann, bob, eve = name("ann"), name("bob"), name("eve")
    async with (
        open_over_stdio(vps, bob),
        open_client(lap, ann) as here,
        open_over_stdio(lap, eve) as other,
    ):
        await wait_for_agent(here, bob)
        (task,) = (await call(here, "task_create", to=[bob], description="wait"))["tasks"]
        assert "forbidden" in await refusal(other, "task_cancel", task_id=task["task_id"])
        assert "forbidden" in await refusal(other, "task_status", task_id=task["task_id"])
        await call(here, "task_cancel", task_id=task["task_id"], reason="not needed")
        ended = await call(here, "task_status", task_id=task["task_id"], wait_seconds=20)
    assert ended["state"] == "cancelled"


async def test_a_failed_task_shows_the_error_of_its_executor(pair: Pair, name: Name) -> None:
    lap, _ = pair
    ann, bob = name("ann"), name("bob")
    async with open_over_stdio(lap, bob) as there, open_over_stdio(lap, ann) as here:
        (task,) = (await call(here, "task_create", to=[bob], description="x"))["tasks"]
        mail = await _take_one(there)
        await call(there, "task_update", task_id=mail["task_id"], handle=mail["handle"])
        await call(there, "task_complete", task_id=mail["task_id"], error="no disk")
        ended = await call(here, "task_status", task_id=task["task_id"], wait_seconds=20)
    assert ended["state"] == "failed"
    assert "no disk" in ended["error"]


async def test_nacked_mail_comes_again(pair: Pair, name: Name) -> None:
    lap, _ = pair
    ann, bob = name("ann"), name("bob")
    async with open_over_stdio(lap, bob) as there, open_over_stdio(lap, ann) as here:
        await call(here, "send", to=bob, body="again")
        mail = await _take_one(there)
        settled = await call(there, "nack", handles=[mail["handle"]], reason="busy")
        assert settled["settled"] == 1
        again = await _take_one(there)
    assert again["message_id"] == mail["message_id"]
    assert again["attempt"] == 2


async def test_the_same_key_sends_once(pair: Pair, name: Name) -> None:
    lap, _ = pair
    ann, bob = name("ann"), name("bob")
    async with open_over_stdio(lap, bob), open_over_stdio(lap, ann) as here:
        first = await call(here, "send", to=bob, body="once", idempotency_key=f"{ann}-1")
        second = await call(here, "send", to=bob, body="once", idempotency_key=f"{ann}-1")
    assert first["event_id"] == second["event_id"]


async def test_a_wait_reports_progress_and_ends_with_mail(
    pair: Pair, open_client: OpenClient, name: Name
) -> None:
    lap, _ = pair
    ann, bob = name("ann"), name("bob")
    reported: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reported.append(message)

    async with open_client(lap, bob) as there, open_over_stdio(lap, ann) as here:
        await call(there, "whoami")
        waiting = asyncio.create_task(
            there.call_tool("inbox", {"wait_seconds": 50}, progress_callback=note)
        )
        while not reported:
            await asyncio.sleep(0.1)
        await call(here, "send", to=bob, body="wake up")
        answer = await asyncio.wait_for(waiting, 20)
    assert "wake up" in answer.content[0].text  # type: ignore[union-attr]
    assert reported[0] == "waiting for mail"


async def test_find_shows_agents_of_the_room_with_their_gateways(pair: Pair, name: Name) -> None:
    lap, vps = pair
    ann, bob = name("ann"), name("bob")
    async with open_over_stdio(vps, bob), open_over_stdio(lap, ann) as here:
        found = await wait_for_agent(here, bob)
    assert found == [{"name": bob, "gateway": "vps"}]


async def test_a_trace_shows_the_journey_to_its_parties_only(pair: Pair, name: Name) -> None:
    lap, vps = pair
    ann, bob, eve = name("ann"), name("bob"), name("eve")
    async with (
        open_over_stdio(vps, bob) as there,
        open_over_stdio(lap, ann) as here,
        open_over_stdio(lap, eve) as other,
    ):
        await wait_for_agent(here, bob)
        sent = await call(here, "send", to=bob, body="follow me")
        await _take_one(there)
        traced = await call(here, "trace", ref=sent["event_id"])
        assert {"sent", "accepted"} <= {step["what"] for step in traced["steps"]}
        assert {"lap", "vps"} <= {step["gateway"] for step in traced["steps"]}
        assert "unknown_message" in await refusal(other, "trace", ref=sent["event_id"])


async def test_only_the_operator_gets_the_tools_of_the_operator(pair: Pair, name: Name) -> None:
    lap, _ = pair
    ann = name("ann")
    async with open_over_stdio(lap, ann) as agent:
        tools = {tool.name for tool in (await agent.list_tools()).tools}
        assert len(tools) == 14
        assert not tools & {"dlq_list", "dlq_replay", "incidents"}
    async with open_over_http(lap, ann) as both:
        assert len((await both.list_tools()).tools) == 17
    async with open_over_http(lap, None) as operator:
        tools = {tool.name for tool in (await operator.list_tools()).tools}
        assert tools == {"whoami", "find", "trace", "dlq_list", "dlq_replay", "incidents"}


async def test_the_operator_replays_a_dead_letter(pair: Pair, name: Name) -> None:
    lap, _ = pair
    ann, bob = name("ann"), name("bob")
    async with (
        open_over_stdio(lap, bob, "--operator") as there,
        open_over_stdio(lap, ann) as here,
    ):
        await call(here, "send", to=bob, body="fails at first")
        mail = await _take_one(there)
        await call(there, "nack", handles=[mail["handle"]], reason="broken", retry=False)
        counted = (await call(there, "dlq_list"))["mailboxes"]
        assert {"agent": bob, "dead_letters": 1} in counted
        (letter,) = (await call(there, "dlq_list", agent=bob))["letters"]
        assert letter["message_id"] == mail["message_id"]
        assert "broken" in letter["reason"]
        assert (await call(there, "dlq_replay", agent=bob))["replayed"] == 1
        assert "fails at first" in (await _take_one(there))["body"]
        assert "incidents" in await call(there, "incidents")


async def test_mail_in_hand_is_not_delivered_again_while_the_model_works(
    tmp_path: Any, name: Name
) -> None:
    ann, bob = name("ann"), name("bob")
    with GatewayProcess(tmp_path / "state", mailbox__inflight_timeout_secs=9) as gateway:
        async with open_over_stdio(gateway, bob) as there, open_over_stdio(gateway, ann) as here:
            await call(here, "send", to=bob, body="takes long")
            mail = await _take_one(there)
            assert (await call(there, "inbox", wait_seconds=10.5)).get("messages") == []
            settled = await call(there, "reply", handle=mail["handle"], body="done")
    assert settled["settled"] == 1


async def test_mail_in_hand_comes_again_after_the_connection_has_ended(
    tmp_path: Any, name: Name
) -> None:
    ann, bob = name("ann"), name("bob")
    with GatewayProcess(tmp_path / "state", mailbox__inflight_timeout_secs=2) as gateway:
        async with open_over_stdio(gateway, ann) as here:
            async with open_over_stdio(gateway, bob) as there:
                await call(there, "whoami")
                await call(here, "send", to=bob, body="not settled")
                mail = await _take_one(there)
            async with open_over_stdio(gateway, bob) as there:
                again = await _take_one(there)
    assert again["message_id"] == mail["message_id"]
