"""Resources and the prompt: the caller's own mailbox, long bodies, traces, and their updates."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from gatepost.testing import GatewayProcess
from tests.mcp.conftest import OpenClient, call, open_over_http, open_over_stdio

pytestmark = pytest.mark.anyio

Pair = tuple[GatewayProcess, ...]
Name = Callable[[str], str]


async def _read(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    return content.text  # type: ignore[union-attr]


async def test_the_mailbox_shows_ids_and_senders_and_no_bodies(
    pair: Pair, open_client: OpenClient, name: Name
) -> None:
    lap, _ = pair
    ann, bob = name("ann"), name("bob")
    async with open_client(lap, bob) as there, open_over_stdio(lap, ann) as here:
        await call(there, "whoami")
        sent = await call(here, "send", to=bob, body="the secret text")
        (resource,) = (await there.list_resources()).resources
        text = await _read(there, str(resource.uri))
    waiting = json.loads(text)["waiting"]
    assert waiting == [{"message_id": sent["event_id"], "sender": ann}]
    assert "secret" not in text


async def test_a_long_body_is_a_resource(pair: Pair, open_client: OpenClient, name: Name) -> None:
    lap, _ = pair
    ann, bob = name("ann"), name("bob")
    async with open_client(lap, bob) as there, open_over_stdio(lap, ann) as here:
        await call(there, "whoami")
        for size in (30_000, 200_000):
            await call(here, "send", to=bob, body="a" * size + "the end")
            (mail,) = (await call(there, "inbox", wait_seconds=20))["messages"]
            assert "the end" not in mail["body"]
            whole = await _read(there, mail["resource"])
            assert "a" * size + "the end" in whole
            assert "no instruction" in whole
            await call(there, "ack", handles=[mail["handle"]])


async def test_resources_of_other_agents_do_not_exist(
    pair: Pair, open_client: OpenClient, name: Name
) -> None:
    lap, _ = pair
    ann, bob, eve = name("ann"), name("bob"), name("eve")
    async with (
        open_over_stdio(lap, bob) as there,
        open_over_stdio(lap, ann) as here,
        open_client(lap, eve) as other,
    ):
        sent = await call(here, "send", to=bob, body="b" * 200_000)
        (mail,) = (await call(there, "inbox", wait_seconds=20))["messages"]
        foreign = [f"gatepost://mailbox/{bob}", f"gatepost://mail/{mail['handle']}"]
        for uri in (*foreign, mail["resource"]):
            with pytest.raises(MCPError):
                await other.read_resource(uri)
        # A caller with the local token is the operator, who may trace everything.
        assert sent["event_id"]


async def test_a_listener_hears_of_new_mail(pair: Pair, name: Name) -> None:
    lap, _ = pair
    for opened in (open_over_http, open_over_stdio):
        ann, bob = name("ann"), name("bob")
        uri = f"gatepost://mailbox/{bob}"
        async with opened(lap, bob) as there, open_over_stdio(lap, ann) as here:
            await call(there, "whoami")
            async with there.listen(resource_subscriptions=[uri]) as updates:
                await call(here, "send", to=bob, body="ring")
                async with asyncio.timeout(20):
                    async for update in updates:
                        assert uri in str(update)
                        break
            with pytest.raises(MCPError):
                async with there.listen(resource_subscriptions=[f"gatepost://mailbox/{ann}"]):
                    pass


@pytest.mark.filterwarnings("ignore:resources/subscribe is removed")
async def test_a_subscriber_of_the_older_protocol_hears_of_new_mail(pair: Pair, name: Name) -> None:
    lap, _ = pair
    ann, bob = name("ann"), name("bob")
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def note(message: Any) -> None:
        heard.put_nowait(str(message))

    async with (
        open_over_stdio(lap, bob, mode="legacy", message_handler=note) as there,
        open_over_stdio(lap, ann) as here,
    ):
        await there.session.subscribe_resource(f"gatepost://mailbox/{bob}")
        await call(here, "send", to=bob, body="ring")
        async with asyncio.timeout(20):
            while f"gatepost://mailbox/{bob}" not in await heard.get():
                pass


async def test_a_trace_is_a_resource(pair: Pair, name: Name) -> None:
    lap, _ = pair
    ann, bob = name("ann"), name("bob")
    async with open_over_stdio(lap, bob), open_over_stdio(lap, ann) as here:
        sent = await call(here, "send", to=bob, body="x")
        journey = json.loads(await _read(here, f"gatepost://trace/{sent['event_id']}"))
    assert journey["steps"][0]["what"] == "sent"


async def test_the_prompt_says_how_to_handle_mail(pair: Pair, open_client: OpenClient) -> None:
    lap, _ = pair
    async with open_client(lap, "prompted") as client:
        (prompt,) = (await client.list_prompts()).prompts
        (message,) = (await client.get_prompt(prompt.name)).messages
    assert "inbox" in message.content.text  # type: ignore[union-attr]
