"""The lines of docs/mcp.md that connect each client are executed as they stand there."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatepost.mcp.clients.client_entries import CLIENTS
from gatepost.testing import GatewayProcess

_PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"
_BLOCKS = re.findall(r"```bash\n(.*?)```", _PAGE.read_text(), re.S)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("home")
    with GatewayProcess(home / ".gatepost") as running:
        yield running


def test_every_client_has_its_lines() -> None:
    assert [client for client in CLIENTS if f"install {client}" in "".join(_BLOCKS)] == [*CLIENTS]
    assert all(len(block.splitlines()) == 5 for block in _BLOCKS)


@pytest.mark.parametrize("block", _BLOCKS, ids=CLIENTS)
def test_the_lines_of_a_client_work(gateway: GatewayProcess, block: str, tmp_path: Path) -> None:
    foreign = ("GATEPOST", "CODEX", "CLAUDE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    commands = Path(sys.executable).parent
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        env={
            **kept,
            "HOME": str(tmp_path),
            "PATH": f"{commands}:{os.environ['PATH']}",
            "GATEPOST_HOME": str(gateway.state_dir),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "14 tools" in ran.stdout
    assert "bob" in ran.stdout
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
