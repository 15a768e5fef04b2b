"""`gatepost mcp install`, in a home folder of its own."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.mcp.clients.client_entries import CLIENTS
from gatepost.testing import GatewayProcess
from tests.gateway.tools import client

# What users have in these files already, in their own layout.
_EXISTING = {
    ".claude.json": '{\n    "numStartups": 3,\n    "mcpServers": {"other": {"command": "x"}}\n}\n',
    ".claude/settings.json": json.dumps(
        {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "beep"}]}]}}
    ),
    ".codex/config.toml": 'model = "x"\n\n[mcp_servers.other]\ncommand = "y"\n\n[tui]\na = 1\n',
    ".gemini/settings.json": '{\n\t"theme": "dark"\n}\n',
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("install") / "state", node__id="lap") as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, text in _EXISTING.items():
        file = tmp_path / "home" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "home"


def run(home: Path, gateway: GatewayProcess, *words: str, check: bool = True) -> str:
    foreign = ("GATEPOST", "CODEX", "CLAUDE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    where = ["--state-dir", str(gateway.state_dir)]
    ran = subprocess.run(
        [sys.executable, "-m", "gatepost", "mcp", "install", *words, *where],
        env={**kept, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode == 0) is check, ran.stderr
    return ran.stdout if check else ran.stderr


def files_of(home: Path) -> dict[str, str]:
    return {
        str(file.relative_to(home)): file.read_text()
        for file in sorted(home.rglob("*"))
        if file.is_file()
    }


@pytest.mark.parametrize("name", CLIENTS)
def test_install_and_uninstall_leave_the_configuration_as_it_was(
    gateway: GatewayProcess, home: Path, name: str
) -> None:
    before = files_of(home)
    wake = ["--wake"] if name in ("claude-code", "codex") else []
    shown = run(home, gateway, name, *wake, "--json")
    result = json.loads(shown)
    assert result["proof"]["tools"] == 14
    assert result["proof"]["agent"] == f"{name}-lap"
    changed = files_of(home)
    assert changed != before
    # Others' entries stay.
    text = "".join(changed.values())
    assert all(word in text for word in ("other", "beep", "dark", "numStartups"))
    assert gateway.token not in text
    run(home, gateway, name, "--uninstall")
    assert files_of(home) == before


def test_a_second_install_changes_nothing(gateway: GatewayProcess, home: Path) -> None:
    before = files_of(home)
    run(home, gateway, "claude-code", "--wake")
    once = files_of(home)
    assert "as it should be" in run(home, gateway, "claude-code", "--wake")
    assert files_of(home) == once
    # Another agent takes the place of the first.
    run(home, gateway, "claude-code", "--agent", "other-agent")
    text = files_of(home)[".claude/settings.json"]
    assert "claude-code-lap" not in text
    assert "asyncRewake" not in text
    run(home, gateway, "claude-code", "--uninstall")
    assert files_of(home) == before


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini"])
def test_uninstall_keeps_what_was_changed_since(
    gateway: GatewayProcess, home: Path, name: str
) -> None:
    run(home, gateway, name)
    for file in (home / ".claude.json", home / ".gemini/settings.json"):
        document = json.loads(file.read_text())
        file.write_text(json.dumps({**document, "later": True}, indent=4))
    config = home / ".codex/config.toml"
    config.write_text(config.read_text() + "[later]\nb = 2\n")
    run(home, gateway, name, "--uninstall")
    text = "".join(files_of(home).values())
    assert "gatepost" not in text
    assert "later" in text
    assert "beep" in text
    assert tomllib.loads(config.read_text())["later"] == {"b": 2}


def test_print_shows_the_difference_and_changes_nothing(
    gateway: GatewayProcess, home: Path
) -> None:
    before = files_of(home)
    shown = run(home, gateway, "codex", "--print", "--wake")
    assert "+[mcp_servers.gatepost]" in shown
    assert "mcp hook wait" in shown
    assert files_of(home) == before
    with client(gateway) as http:
        agents = {agent["id"] for agent in http.get("/v1/agents").json()}
    assert "print-agent" not in agents


def test_the_entries_are_those_of_the_clients_own_commands(
    gateway: GatewayProcess, home: Path
) -> None:
    for name in CLIENTS:
        run(home, gateway, name, "--agent", "me")
    where = ["--state-dir", str(gateway.state_dir)]
    arguments = ["mcp", "--agent", "me", *where]

    def server(file: str, table: str) -> Any:
        entry = json.loads((home / file).read_text())[table]["gatepost"]
        assert Path(entry.pop("command")).name == "gatepost"
        return entry

    claude = server(".claude.json", "mcpServers")
    assert claude == {"type": "stdio", "args": arguments, "env": {}}
    assert server(".gemini/settings.json", "mcpServers") == {"args": arguments}
    assert server(".cursor/mcp.json", "mcpServers") == {"args": arguments}
    vscode = server(".config/Code/User/mcp.json", "servers")
    assert vscode == {"type": "stdio", "args": arguments}
    codex = tomllib.loads((home / ".codex/config.toml").read_text())["mcp_servers"]
    assert codex["gatepost"]["args"] == arguments
    assert codex["other"] == {"command": "y"}


def test_a_file_that_is_not_plain_json_is_left_alone(gateway: GatewayProcess, home: Path) -> None:
    file = home / ".gemini/settings.json"
    file.write_text('{\n  // a comment\n  "theme": "dark"\n}\n')
    before = files_of(home)
    assert "nothing was changed" in run(home, gateway, "gemini", check=False)
    assert files_of(home) == before


def test_uninstall_needs_no_gateway(tmp_path: Path, home: Path) -> None:
    before = files_of(home)
    with GatewayProcess(tmp_path / "state") as gateway:
        run(home, gateway, "codex", "--wake")
        gateway.stop()
        run(home, gateway, "codex", "--uninstall")
        assert files_of(home) == before
        gateway.start()


def test_mail_that_waits_is_not_taken_for_the_proof(gateway: GatewayProcess, home: Path) -> None:
    with client(gateway) as http:
        for agent in ("sender", "busy"):
            http.put(f"/v1/agents/{agent}")
        new = {"from_agent": "sender", "to_agent": "busy", "payload": 1}
        id = http.post("/v1/messages", json=new).json()["event_id"]
        run(home, gateway, "cursor", "--agent", "busy")
        (waiting,) = http.get("/v1/mailboxes/busy").json()["messages"]
    assert waiting["msg_id"] == id
    assert waiting["state"] == "pending"
    assert waiting["attempt"] == 0


def test_no_session_of_cursor_can_be_woken(gateway: GatewayProcess, home: Path) -> None:
    assert "woken" in run(home, gateway, "cursor", "--wake", check=False)
