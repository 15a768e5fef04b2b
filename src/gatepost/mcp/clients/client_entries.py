"""The entries for each client's configuration: the server and the hooks.

Each entry is what the client's own command writes for the user (`claude mcp add --scope user`,
`codex mcp add`, `gemini mcp add --scope user`, `code --add-mcp`). None holds a token: the gateway
is reached through its Unix socket, which only the user's own programs can open.
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct

ClientName = Literal["claude-code", "codex", "gemini", "cursor", "vscode"]
CLIENTS: tuple[ClientName, ...] = get_args(ClientName)
SERVER_NAME = "gatepost"

_HOOK_SECS = 30
_END_SECS = 3
_WAIT_SECS = 86_400
# The clients whose idle sessions can be woken.
_WAKEABLE = ("claude-code", "codex")
# Which of our hooks runs at which of the client's events.
_EVENTS: Mapping[str, Mapping[str, str]] = {
    "claude-code": {
        "SessionStart": "start",
        "UserPromptSubmit": "prompt",
        "Stop": "stop",
        "SessionEnd": "end",
    },
    "codex": {
        "SessionStart": "start",
        "UserPromptSubmit": "prompt",
        "Stop": "stop",
        "SessionEnd": "end",
    },
    "gemini": {
        "SessionStart": "start",
        "BeforeAgent": "prompt",
        "AfterAgent": "stop",
        "SessionEnd": "end",
    },
}


class ServerCommand(Struct, frozen=True):
    """How a client starts `gatepost mcp`. Without `state_dir`, the gateway is the default one."""

    program: str
    agent: str
    state_dir: str | None = None

    @property
    def arguments(self) -> list[str]:
        return ["mcp", "--agent", self.agent, *self._where]

    @property
    def _where(self) -> list[str]:
        return [] if self.state_dir is None else ["--state-dir", self.state_dir]

    def hook_command(self, event: str, client: str) -> str:
        words = [self.program, "mcp", "hook", event, "--agent", self.agent, "--client", client]
        return shlex.join([*words, *self._where])

    def is_hook(self, command: object) -> bool:
        """Whether a hook in a configuration is one of ours, for any agent."""
        words = shlex.split(command) if isinstance(command, str) else []
        return words[1:3] == ["mcp", "hook"] and Path(words[0]).name == "gatepost"


class ConfigEntry(Struct, frozen=True):
    """The wanted entries of one file: `servers` by the path to their table, and hooks by event."""

    file: Path
    form: Literal["json", "toml"]
    table: str | None = None
    server: dict[str, Any] | None = None
    hooks: dict[str, list[Any]] | None = None


def list_entries(
    client: ClientName, command: ServerCommand, home: Path, env: Mapping[str, str], *, wake: bool
) -> list[ConfigEntry]:
    """The entries for a client in the configuration of the user with this home."""
    server: dict[str, Any] = {"command": command.program, "args": command.arguments}
    hooks = _list_hooks(client, command, wake=wake)
    if client == "claude-code":
        folder = Path(env.get("CLAUDE_CONFIG_DIR") or home / ".claude")
        main = folder / ".claude.json" if "CLAUDE_CONFIG_DIR" in env else home / ".claude.json"
        stated = {"type": "stdio", **server, "env": {}}
        return [
            ConfigEntry(main, "json", "mcpServers", stated),
            ConfigEntry(folder / "settings.json", "json", hooks=hooks),
        ]
    if client == "codex":
        folder = Path(env.get("CODEX_HOME") or home / ".codex")
        return [
            ConfigEntry(folder / "config.toml", "toml", "mcp_servers", server),
            ConfigEntry(folder / "hooks.json", "json", hooks=hooks),
        ]
    if client == "gemini":
        file = home / ".gemini" / "settings.json"
        return [ConfigEntry(file, "json", "mcpServers", server, hooks)]
    if client == "cursor":
        return [ConfigEntry(home / ".cursor" / "mcp.json", "json", "mcpServers", server)]
    return [ConfigEntry(_vscode_file(home), "json", "servers", {"type": "stdio", **server})]


def _list_hooks(client: ClientName, command: ServerCommand, *, wake: bool) -> dict[str, list[Any]]:
    # Gemini counts milliseconds.
    unit = 1000 if client == "gemini" else 1
    found: dict[str, list[Any]] = {}
    for name, event in _EVENTS.get(client, {}).items():
        secs = _END_SECS if event == "end" else _HOOK_SECS
        hooks = [_hook(command.hook_command(event, client), secs * unit)]
        if wake and client in _WAKEABLE and event in ("start", "stop"):
            waiting = command.hook_command("wait", client)
            # Claude Code runs it beside the session. Codex waits for it: there it returns at once.
            is_beside = client == "claude-code"
            hooks.append(
                _hook(waiting, _WAIT_SECS, asyncRewake=True)
                if is_beside
                else _hook(waiting, _HOOK_SECS)
            )
        found[name] = [{"hooks": hooks}]
    return found


def _hook(command: str, timeout: int, **more: Any) -> dict[str, Any]:
    return {"type": "command", "command": command, "timeout": timeout, **more}


def _vscode_file(home: Path) -> Path:
    mac = home / "Library" / "Application Support"
    return (mac if sys.platform == "darwin" else home / ".config") / "Code" / "User" / "mcp.json"


def can_wake(client: ClientName) -> bool:
    return client in _WAKEABLE
