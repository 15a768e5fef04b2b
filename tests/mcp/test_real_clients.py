"""The real Claude Code and Codex, against a stand-in for their model's API on loopback.

Only full runs fetch the clients, which are several hundred megabytes.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from gatepost.testing import GatewayProcess
from tests.gateway.tools import client
from tests.mcp.conftest import call, open_over_stdio
from tests.mcp.fetched_clients import fetch_client
from tests.mcp.model_stand_in import ModelStandIn, answer_as_claude, answer_as_codex
from tests.mcp.terminal import TerminalProgram
from tests.waiting import wait_until

pytestmark = pytest.mark.full

_BIN = Path(sys.executable).parent
_WAKES = 20


class World:
    """A gateway, a home folder with a connected client, and the stand-in for its model."""

    def __init__(self, folder: Path, name: str, stand_in: ModelStandIn) -> None:
        self.api = stand_in
        self.home, self.project = folder / "home", folder / "project"
        self.home.mkdir()
        self.project.mkdir()
        self.name, self.agent = name, f"{name}-agent"
        # The gateway imports the SDK at its start if a client was ever installed.
        (folder / "state" / "mcp").mkdir(mode=0o700, parents=True)
        (folder / "state").chmod(0o700)
        self.gateway = GatewayProcess(folder / "state")

    def env(self, **more: str) -> dict[str, str]:
        foreign = ("CLAUDE", "ANTHROPIC", "CODEX", "OPENAI", "GATEPOST")
        kept = {name: v for name, v in os.environ.items() if not name.startswith(foreign)}
        return {**kept, "HOME": str(self.home), **more}

    def gatepost(self, *words: str) -> str:
        command = [str(_BIN / "gatepost"), *words, "--state-dir", str(self.gateway.state_dir)]
        return subprocess.run(
            command,
            env=self.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    def install(self) -> None:
        self.gatepost("mcp", "install", self.name, "--agent", self.agent, "--wake")

    def send(self) -> str:
        with client(self.gateway) as http:
            http.put("/v1/agents/bob").raise_for_status()
            new = {"from_agent": "bob", "to_agent": self.agent, "payload": "secret-body"}
            return str(http.post("/v1/messages", json=new).raise_for_status().json()["event_id"])

    def measure_wakes(self, count: int) -> list[float]:
        """The seconds from a message to the turn of the idle session that it begins."""
        taken = []
        for _ in range(count):
            known, begun = len(self.api.requests), time.monotonic()
            self.wait_for_request(self.send(), known)
            taken.append(time.monotonic() - begun)
            self.wait_for_idle()
        return taken

    def wait_for_request(self, words: str, start: int) -> None:
        wait_until(lambda: self.api.find(words, start) is not None, 60)

    def wait_for_idle(self) -> None:
        """Wait until no request has come for a while: the turn is over, and its waiter waits."""
        seen, since = len(self.api.requests), time.monotonic()
        while time.monotonic() - since < 2.0:
            time.sleep(0.1)
            if len(self.api.requests) != seen:
                seen, since = len(self.api.requests), time.monotonic()

    def end_a_send(self) -> str:
        """A message of the client's agent that another agent has processed."""

        async def send_and_settle() -> str:
            async with (
                open_over_stdio(self.gateway, "worker") as worker,
                open_over_stdio(self.gateway, self.agent) as own,
            ):
                await call(worker, "whoami")
                sent = await call(own, "request", to="worker", body="?", wait_seconds=0)
                (mail,) = (await call(worker, "inbox", wait_seconds=20))["messages"]
                await call(worker, "reply", handle=mail["handle"], body="the-answer")
                return str(sent["event_id"])

        return asyncio.run(send_and_settle())


Prepared = tuple[World, list[str], dict[str, str]]


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[Prepared]:
    command = fetch_client("claude")
    with ExitStack() as running:
        api = running.enter_context(ModelStandIn(answer_as_claude, "/v1/messages"))
        world = World(tmp_path, "claude-code", api)
        accepted = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        settings = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": ["dummy"], "rejected": []},
            "projects": {str(world.project): accepted},
        }
        (world.home / ".claude.json").write_text(json.dumps(settings, indent=2))
        running.enter_context(world.gateway)
        env = world.env(
            ANTHROPIC_BASE_URL=api.url,
            ANTHROPIC_API_KEY="dummy",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
        )
        yield world, [str(command)], env


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[Prepared]:
    command = fetch_client("codex")
    with ExitStack() as running:
        api = running.enter_context(ModelStandIn(answer_as_codex, "/responses"))
        world = World(tmp_path, "codex", api)
        (world.home / ".codex").mkdir()
        (world.home / ".codex" / "config.toml").write_text(
            f'model = "fake"\nmodel_provider = "fake"\n\n[model_providers.fake]\nname = "fake"\n'
            f'base_url = "{api.url}/v1"\nwire_api = "responses"\n\n'
            f'[projects."{world.project}"]\ntrust_level = "trusted"\n'
        )
        running.enter_context(world.gateway)
        # Codex takes its queue from the command of that name.
        env = world.env(PATH=f"{command.parent}:{os.environ['PATH']}")
        yield world, [str(command), "--dangerously-bypass-hook-trust"], env


def _tool_names(request: Any) -> list[str]:
    return [str(tool.get("name") or tool.get("type")) for tool in request.get("tools", [])]


def _report(world: World, what: str, taken: list[float]) -> None:
    print(
        f"{world.name}, {what}: p50 {median(taken):.2f} s, worst {max(taken):.2f} s of {len(taken)}"
    )


def _start_session(
    world: World, terminal: TerminalProgram, prepare: Callable[[], None] = lambda: None
) -> None:
    terminal.wait_until_quiet()
    prepare()
    terminal.type("hello")
    terminal.wait_until_quiet(1.0)
    terminal.type("\r")
    wait_until(lambda: world.api.requests, 60)
    world.wait_for_idle()


@pytest.mark.timeout(600)
def test_claude_code_has_tools_and_notices_and_is_woken(claude: Prepared) -> None:
    world, command, env = claude
    before = json.loads((world.home / ".claude.json").read_text())
    world.install()
    id = world.send()
    with TerminalProgram(command, env, world.project) as terminal:
        _start_session(world, terminal)
        first = world.api.requests[world.api.find("hello") or 0]
        assert "mcp__gatepost__inbox" in json.dumps(first)
        assert id in json.dumps(first)
        assert "secret-body" not in json.dumps(world.api.requests)
        wakes = world.measure_wakes(_WAKES)
        _report(world, "idle wake", wakes)
        assert median(wakes) < 2
        # The answer to a request wakes the session, or the end of a turn tells of it.
        known = len(world.api.requests)
        sent = world.end_a_send()
        wait_until(lambda: world.api.find(f"{sent}: processed by worker", known) is not None, 60)
        assert "the-answer" not in json.dumps(world.api.requests)
    world.gatepost("mcp", "install", "claude-code", "--uninstall")
    after = json.loads((world.home / ".claude.json").read_text())
    assert after.get("mcpServers", {}) == before.get("mcpServers", {})
    assert not (world.home / ".claude" / "settings.json").exists()


@pytest.mark.timeout(300)
def test_claude_code_runs_one_prompt_with_the_plugin(claude: Prepared) -> None:
    world, command, env = claude
    plugin = Path(__file__).parents[2] / "src" / "gatepost" / "mcp" / "plugin"
    checked = subprocess.run([*command, "plugin", "validate", str(plugin)], env=env, check=False)
    assert checked.returncode == 0
    with client(world.gateway) as http:
        http.put(f"/v1/agents/{world.agent}").raise_for_status()
    id = world.send()
    more = {
        "GATEPOST_AGENT": world.agent,
        "GATEPOST_HOME": str(world.gateway.state_dir),
        "PATH": f"{_BIN}:{os.environ['PATH']}",
    }
    ran = subprocess.run(
        [*command, "--plugin-dir", str(plugin), "-p", "hello"],
        env=env | more,
        cwd=world.project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "answer" in ran.stdout
    first = json.dumps(world.api.requests[0])
    assert "mcp__plugin_gatepost_gatepost__inbox" in first
    assert id in first


@pytest.mark.timeout(900)
def test_codex_has_tools_and_notices_and_is_woken(codex: Prepared) -> None:
    world, command, env = codex
    before = (world.home / ".codex" / "config.toml").read_text()
    world.install()
    id = world.send()
    with TerminalProgram([*command, "--sandbox", "read-only"], env, world.project) as terminal:
        _start_session(world, terminal, lambda: terminal.type("\r"))
        first = world.api.requests[world.api.find("hello") or 0]
        assert "mcp__gatepost" in _tool_names(first)
        assert id in json.dumps(first)
        assert "secret-body" not in json.dumps(world.api.requests)
        wakes = world.measure_wakes(_WAKES)
        _report(world, "idle wake", wakes)
        assert median(wakes) < 15
        known = len(world.api.requests)
        sent = world.end_a_send()
        wait_until(lambda: world.api.find(f"{sent}: processed by worker", known) is not None, 90)
        assert "the-answer" not in json.dumps(world.api.requests)
    world.gatepost("mcp", "install", "codex", "--uninstall")
    after = (world.home / ".codex" / "config.toml").read_text()
    assert "gatepost" not in after
    assert before.strip() in after
    assert not (world.home / ".codex" / "hooks.json").exists()


@pytest.mark.timeout(300)
def test_codex_holds_a_turn_for_a_receipt(codex: Prepared) -> None:
    """A turn that ends goes on with what became of the agent's sends."""
    world, command, env = codex
    world.install()
    sent = world.end_a_send()
    subprocess.run(
        [command[0], "exec", *command[1:], "--skip-git-repo-check", "hello"],
        env=env,
        cwd=world.project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert world.api.find(f"{sent}: processed by worker") is not None
