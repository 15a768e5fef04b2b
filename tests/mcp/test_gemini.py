"""The real Gemini CLI reads the entry that `gatepost mcp install gemini` writes, and connects."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from gatepost.testing import GatewayProcess
from tests.mcp.fetched_clients import fetch_client
from tests.mcp.test_install import run


@pytest.mark.full
@pytest.mark.timeout(600)
def test_gemini_connects_to_the_installed_server(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()
    with GatewayProcess(tmp_path / "state", node__id="lap") as gateway:
        run(home, gateway, "gemini", "--agent", "gil", "--json")
        # It uses no server in a folder that its user has not trusted.
        trusted = {str(folder): "TRUST_FOLDER"}
        (home / ".gemini" / "trustedFolders.json").write_text(json.dumps(trusted))
        listed = subprocess.run(
            [str(fetch_client("gemini")), "mcp", "list"],
            cwd=folder,
            env={**os.environ, "HOME": str(home), "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    shown = listed.stdout + listed.stderr
    (line,) = [each for each in shown.splitlines() if "mcp --agent gil" in each]
    assert "Connected" in line, shown
    assert "Disconnected" not in line
