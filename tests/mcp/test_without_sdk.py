"""A gateway without the extra works, and says what to install."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import httpx
import pytest

from gatepost.testing import GatewayProcess
from gatepost.testing.gateway import StartedProcess, launch_gateway

# As if the package were not there.
_PROGRAM = (
    "-c",
    "import sys; sys.modules['mcp'] = None; from gatepost.gateway.__main__ import main;"
    " main(sys.argv[1:])",
)


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayProcess:
    def launch(arguments: list[str], env: Mapping[str, str], log: IO[bytes]) -> StartedProcess:
        return launch_gateway(arguments, env, log, _PROGRAM)

    monkeypatch.setattr(GatewayProcess, "launch", staticmethod(launch))
    return GatewayProcess(tmp_path / "state")


def test_both_transports_name_the_line_to_run(gateway: GatewayProcess) -> None:
    with gateway:
        headers = {"authorization": f"Bearer {gateway.token}"}
        refused = httpx.post(f"{gateway.url}/mcp", json={}, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (503, "extra_missing")
        assert "pip install 'gatepost[mcp]'" in refused.json()["message"]

        command = [sys.executable, "-m", "gatepost", "mcp", "--agent", "ann"]
        ask = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {}}
        with subprocess.Popen(
            [*command, "--state-dir", str(gateway.state_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as bridge:
            assert bridge.stdin is not None and bridge.stdout is not None
            bridge.stdin.write(json.dumps(ask).encode() + b"\n")
            bridge.stdin.flush()
            answer = json.loads(bridge.stdout.readline())
            bridge.kill()
        assert answer["id"] == 7
        assert "pip install 'gatepost[mcp]'" in answer["error"]["message"]

        # Notices need no SDK.
        hook = [*command[:4], "hook", "start", *command[4:], "--state-dir", str(gateway.state_dir)]
        assert subprocess.run(hook, input=b"{}", check=True, capture_output=True).stdout == b""
        assert gateway.get("/v1/agents")[0]["id"] == "ann"
