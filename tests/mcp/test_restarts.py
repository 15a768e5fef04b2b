"""Clients keep their sessions when the gateway is killed and started again."""

import asyncio
import time
from pathlib import Path

import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from gatepost.testing import GatewayProcess
from tests.mcp.conftest import call, open_over_http, open_over_stdio

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_stdio_session_outlives_its_gateway(tmp_path: Path, mode: str) -> None:
    with GatewayProcess(tmp_path / "state", mailbox__inflight_timeout_secs=2) as gateway:
        async with (
            open_over_stdio(gateway, "bob", mode=mode) as there,
            open_over_stdio(gateway, "ann", mode=mode) as here,
        ):
            asked = await call(here, "request", to="bob", body="survive", wait_seconds=0)
            (mail,) = (await call(there, "inbox", wait_seconds=20))["messages"]
            waiting = asyncio.create_task(there.call_tool("inbox", {"wait_seconds": 50}))
            await asyncio.sleep(0.3)
            gateway.kill9()
            # The client hears at once that its open call is lost.
            with pytest.raises(MCPError, match="outcome is unknown"):
                await asyncio.wait_for(waiting, 10)
            gateway.start()
            # The lease of before has run out, or will; the mail is not lost.
            (again,) = (await call(there, "inbox", wait_seconds=20))["messages"]
            assert again["message_id"] == mail["message_id"]
            await call(there, "reply", handle=again["handle"], body="alive")
            answer = await call(here, "request", event_id=asked["event_id"], wait_seconds=20)
    assert "alive" in answer["reply"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_http_client_goes_on_after_a_restart(tmp_path: Path, mode: str) -> None:
    with GatewayProcess(tmp_path / "state") as gateway:
        async with open_over_http(gateway, "ann", mode=mode) as client:
            sent = await call(client, "send", to="ann", body="to myself")
            gateway.restart()
            (mail,) = (await call(client, "inbox", wait_seconds=20))["messages"]
    assert mail["message_id"] == sent["event_id"]


async def test_calls_wait_for_a_gateway_that_starts_soon(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "state")
    with gateway:
        async with open_over_stdio(gateway, "ann") as client:
            gateway.kill9()
            asking = asyncio.create_task(call(client, "whoami"))
            await asyncio.sleep(0.5)
            gateway.start()
            assert (await asyncio.wait_for(asking, 20))["agent"] == "ann"


def _stop(gateway: GatewayProcess) -> tuple[int, float]:
    begun = time.monotonic()
    return gateway.stop(), time.monotonic() - begun


async def test_a_gateway_stops_while_clients_wait(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "state") as gateway:
        stopping = None
        try:
            async with (
                open_over_http(gateway, "ann") as client,
                open_over_stdio(gateway, "bob") as other,
            ):
                waits = [
                    asyncio.create_task(each.call_tool("inbox", {"wait_seconds": 50}))
                    for each in (client, other)
                ]
                async with client.listen(resource_subscriptions=["gatepost://mailbox/ann"]):
                    await asyncio.sleep(0.3)
                    stopping = asyncio.create_task(asyncio.to_thread(_stop, gateway))
                    await asyncio.shield(stopping)
                await asyncio.gather(*waits, return_exceptions=True)
        except* httpx2.ConnectError:
            pass  # the client asked again, and its gateway was gone
        assert stopping is not None
        status, secs = await stopping
        assert status == 0
        assert secs < 5
        gateway.start()
