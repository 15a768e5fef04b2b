"""The recipes of docs/a2a.md are executed as they stand there."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client.client import ClientConfig
from a2a.client.client_factory import create_client
from a2a.types.a2a_pb2 import Message, Part, SendMessageRequest

from gatepost.client import AgentTask
from gatepost.testing import GatewayProcess
from tests.a2a.conftest import serving
from tests.a2a.test_outside import open_session

pytestmark = pytest.mark.anyio

_PAGE = (Path(__file__).parents[2] / "docs" / "a2a.md").read_text()


def recipe(name: str) -> str:
    (found,) = re.findall(rf"<!-- runs: {name} -->\n```\w+\n(.*?)```", _PAGE, re.DOTALL)
    assert len(str(found).splitlines()) <= 6
    return str(found)


async def _run(script: str, folder: Path, **variables: str) -> str:
    commands = Path(sys.executable).parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEPOST")}
    ran = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**kept, **variables, "PATH": f"{commands}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


async def _review(task: AgentTask) -> str:
    return f"seen: {task.description}"


async def test_the_recipes_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        GatewayProcess(tmp_path / "there", a2a__agents="reviewer") as there,
        GatewayProcess(tmp_path / "here") as here,
    ):
        async with serving(there, "reviewer", _review):
            file = open_session(there, "caller", tmp_path).rename(tmp_path / "planner.token")
            token = file.read_text()
            shown = await _run(recipe("curl"), tmp_path, GATEPOST_URL=there.url, TOKEN=token)
            assert "seen: look at this" in shown
            await _run_python(recipe("python"), URL=there.url, TOKEN=token)
            assert "seen: look at this" in capsys.readouterr().out
            planner = f"{there.url}/a2a/agents/reviewer"
            home = str(here.state_dir)
            shown = await _run(recipe("outside"), tmp_path, GATEPOST_HOME=home, PLANNER_URL=planner)
    assert "seen: plan a trip" in shown
    assert "seen: plan another" in shown


async def _run_python(block: str, **names: Any) -> None:
    lines = "".join(f"    {line}\n" for line in block.splitlines())
    shared = [httpx, create_client, ClientConfig, Message, Part, SendMessageRequest]
    scope = {each.__name__: each for each in shared} | names  # type: ignore[attr-defined]
    exec(f"async def run():\n{lines}    await http.aclose()\n", scope)
    await scope["run"]()
