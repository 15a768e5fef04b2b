"""The command line of the MCP Inspector, over both transports."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gatepost.testing import GatewayProcess
from tests.mcp.fetched_clients import fetch_client, fetch_node

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("inspector") / "state") as running:
        yield running


@pytest.fixture(params=["http", "stdio"])
def server(request: pytest.FixtureRequest, gateway: GatewayProcess) -> list[str]:
    """The arguments that name the server."""
    if request.param == "http":
        headers = [f"Authorization: Bearer {gateway.token}", "Gatepost-Agent: inspector"]
        given = [part for header in headers for part in ("--header", header)]
        return [f"{gateway.url}/mcp", "--transport", "http", *given]
    where = ["--agent", "inspector", "--state-dir", str(gateway.state_dir)]
    return [sys.executable, "-m", "gatepost", "mcp", *where]


def _inspect(server: list[str], *arguments: str) -> Any:
    inspector, node = fetch_client("mcp-inspector"), fetch_node()
    command = [str(node), str(inspector), "--cli", *server, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


def test_tools_are_listed_and_called(server: list[str]) -> None:
    tools = {tool["name"]: tool for tool in _inspect(server, "--method", "tools/list")["tools"]}
    assert {"send", "inbox", "reply", "task_create"} <= set(tools)
    assert all(tool["inputSchema"]["type"] == "object" for tool in tools.values())
    called = _inspect(server, "--method", "tools/call", "--tool-name", "whoami")
    assert called["structuredContent"]["agent"] == "inspector"


def test_resources_and_the_prompt_are_listed(server: list[str]) -> None:
    (mailbox,) = _inspect(server, "--method", "resources/list")["resources"]
    assert mailbox["uri"] == "gatepost://mailbox/inspector"
    (prompt,) = _inspect(server, "--method", "prompts/list")["prompts"]
    assert prompt["name"] == "check_mail"
