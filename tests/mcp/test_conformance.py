"""The conformance suite of MCP, through the gateway's own endpoint.

Most of its scenarios ask for tools and resources that only a server made for the suite has. The
others pass, but for two capabilities that the gateway does not claim to have.
"""

import re
import subprocess
from pathlib import Path

import pytest

from gatepost.testing import GatewayProcess
from tests.mcp.bearer_proxy import BearerProxy
from tests.mcp.fetched_clients import fetch_client, fetch_node

_SCENARIOS = (
    "server-initialize",
    "ping",
    "tools-list",
    "resources-list",
    "prompts-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
)
# What these need: fixtures by their names, or a capability that the gateway does not offer.
_NEED_FIXTURES = ("tools-call-", "elicitation-", "prompts-get-", "resources-read-")
_NEED_A_FIXTURE = (
    "json-schema-2020-12",
    "resources-subscribe",
    "resources-templates-read",
    "resources-unsubscribe",
    "server-sse-polling",
)
_NOT_OFFERED = ("completion-complete", "logging-set-level")


@pytest.mark.full
def test_every_scenario_of_the_suite_is_known() -> None:
    suite, node = fetch_client("conformance"), fetch_node()
    command = [str(node), str(suite), "list", "--server"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^  - (\S+)", listed, re.MULTILINE)
    left = {name for name in found if not name.startswith(_NEED_FIXTURES)}
    assert left == {*_SCENARIOS, *_NEED_A_FIXTURE, *_NOT_OFFERED}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_scenario_that_needs_no_fixture_passes(tmp_path: Path) -> None:
    suite, node = fetch_client("conformance"), fetch_node()
    with GatewayProcess(tmp_path / "state") as gateway, BearerProxy(gateway, "tester") as proxy:
        for scenario in _SCENARIOS:
            command = [str(node), str(suite), "server", "--url", proxy.url, "--scenario", scenario]
            ran = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
            )
            assert ran.returncode == 0, f"{scenario}: {ran.stdout[-2000:]}"
