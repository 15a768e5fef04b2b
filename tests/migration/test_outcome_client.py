"""Asking a real gateway what became of a message."""

import asyncio

import pytest

from gatepost.client import Target
from gatepost.errors import Unauthorized, Unavailable
from gatepost.migration import OutcomeClient
from gatepost.testing import GatewayProcess
from tests.migration.tools import client_of, drain, lookup_of, register

UNKNOWN = "0192f000-0000-7000-8000-000000000000"


def test_it_tells_waiting_from_ended_from_unknown(gateway: GatewayProcess) -> None:
    async def test() -> None:
        await register(gateway, "bob")
        async with client_of(gateway) as client, lookup_of(gateway) as lookup:
            sent = await client.send("bob", 1, from_="ann")
            assert await lookup.message_outcome(sent.event_id) == "waiting"
            await drain(gateway, "bob")
            assert await lookup.message_outcome(sent.event_id) == "ok"
            assert await lookup.message_outcome(UNKNOWN) is None

    asyncio.run(test())


def test_what_says_nothing_about_a_message_is_raised(gateway: GatewayProcess) -> None:
    async def ask(url: str, token: str) -> None:
        async with OutcomeClient(Target(url, token)) as lookup:
            await lookup.message_outcome(UNKNOWN)

    with pytest.raises(Unauthorized):
        asyncio.run(ask(gateway.url, "wrong"))
    with pytest.raises(Unavailable):
        asyncio.run(ask("http://127.0.0.1:9", "any"))
