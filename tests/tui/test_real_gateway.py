"""`gatepost top` over HTTP, against a real gateway."""

from pathlib import Path

import pytest

from gatepost.connect.agent_session_file import open_token_file
from gatepost.connect.gateway_endpoint import TOKEN_FILE_NAME, Target, read_endpoint
from gatepost.testing import GatewayProcess
from gatepost.tui.operator_api import HttpOperatorApi
from tests.gateway.tools import client
from tests.tui.running_top import FULL, running_top


def locate(state: Path) -> Target:
    url = read_endpoint(state).url
    return open_token_file(state / TOKEN_FILE_NAME, url, None, "")


@pytest.mark.anyio
async def test_top_follows_a_gateway_that_is_killed_and_starts_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    api = HttpOperatorApi(lambda: locate(state))
    with GatewayProcess(state) as gateway:
        async with running_top(api, FULL, first_view="agents") as top:
            await top.wait_for("● live", "0 sent = 0 processed", "no agents yet")
            await top.press("2")
            await top.wait_for("no nodes yet: this gateway is in no room")
            await top.press("3")
            with client(gateway) as http:
                http.put("/v1/agents/bob").raise_for_status()
                mail = {"from_agent": "alice", "to_agent": "bob", "payload": "hi"}
                http.post("/v1/operations", json={"op": "send", "messages": [mail]})
            await top.wait_for("1 sent = 0 processed + 1 in motion", " bob ")
            await top.press("enter")
            await top.wait_for("agents › mail of bob  1 of 1", "alice")
            await top.press("escape", "w", "p", "y")
            await top.wait_for("done: gatepost purge bob --yes", "1 dead letters")
            await top.press("6")
            await top.wait_for("dead  1 of 1", "purged")
            gateway.kill9()
            await top.wait_for("✗ not connected", "1 dead letters")
            gateway.start()
            await top.wait_for("● live", "✓ adds up over 1 gateway")
