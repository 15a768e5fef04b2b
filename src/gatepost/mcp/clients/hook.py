"""`gatepost mcp hook EVENT`: run by a client when a session starts, is prompted, or stops.

An error here never stops the client: a hook that fails prints nothing.
"""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from gatepost.mcp.clients.gateway_socket import GatewayAway, open_gateway

EVENTS = ("start", "prompt", "stop", "wait", "end")
# If it is set, a hook says what is wrong, as `gatepost doctor` wants it.
CHECK_VARIABLE = "GATEPOST_HOOK_CHECK"
_ANSWER_SECS = 25.0
_RETRY_SECS = 2.0
_MAX_ANCESTORS = 6
_MAX_INPUT = 4 * 1024 * 1024
# The client shows the text to its model, and begins a turn.
_WAKE = 2


def run_hook(event: str, agent: str, client: str, state_dir: str | None) -> int:
    """Run one hook, and return its exit status."""
    given = _read_input()
    session = str(given.get("session_id") or "")[:128]
    notice = {"event": event, "session": session, "is_repeated": _is_repeated(given)}
    greeting: dict[str, object] = {"agent": agent, "notice": notice}
    if event == "wait":
        return _wait(greeting, client, session, state_dir)
    text = _ask(greeting, state_dir)
    if text:
        sys.stdout.write(_format(event, client, text))
    return 0


def _read_input() -> dict[str, Any]:
    if os.isatty(0):
        return {}
    try:
        given = json.loads(sys.stdin.buffer.read(_MAX_INPUT) or b"{}")
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def _is_repeated(given: dict[str, Any]) -> bool:
    return given.get("stop_hook_active") is True


def _ask(greeting: dict[str, object], state_dir: str | None) -> str:
    try:
        with open_gateway(state_dir, greeting) as connection:
            connection.settimeout(_ANSWER_SECS)
            return _read_text(connection)
    except (GatewayAway, OSError, ValueError) as error:
        if CHECK_VARIABLE in os.environ:
            sys.exit(f"gatepost: {error}")
        return ""


def _read_text(connection: socket.socket) -> str:
    """The text of the gateway's answer; ValueError if there is none."""
    with connection.makefile("rb") as lines:
        answer = json.loads(lines.readline(_MAX_INPUT))
    return str(answer.get("text", ""))


def _format(event: str, client: str, text: str) -> str:
    if event == "stop":
        decision = "deny" if client == "gemini" else "block"
        return json.dumps({"decision": decision, "reason": text})
    if client == "gemini":
        return json.dumps({"hookSpecificOutput": {"additionalContext": text}})
    return text + "\n"


# -- waiting


def _wait(greeting: dict[str, object], client: str, session: str, state_dir: str | None) -> int:
    """Wait for news, for as long as the client lives."""
    if os.environ.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk"):
        # `claude -p` waits for its hooks and has no user to wake.
        return 0
    if client == "codex":
        return _wait_apart(greeting, session, state_dir)
    text = _wait_for_news(greeting, state_dir, list(_ancestors()))
    if not text:
        return 0
    sys.stderr.write(text + "\n")
    return _WAKE


def _wait_apart(greeting: dict[str, object], session: str, state_dir: str | None) -> int:
    """Start a separate waiter: Codex waits for its hooks, and idle sessions take its messages."""
    ancestors = list(_ancestors())
    if not session or os.fork():
        return 0
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    text = _wait_for_news(greeting, state_dir, ancestors)
    if text:
        command = ["codex", "queue", "--thread", session, "--message", text]
        os.execvp(command[0], command)
    return 0


def _wait_for_news(greeting: dict[str, object], state_dir: str | None, ancestors: list[int]) -> str:
    """The text of the next notice; empty if another waiter came, or the client is gone."""
    watched = [opened for pid in ancestors if (opened := _open_process(pid)) is not None]
    while True:
        try:
            with open_gateway(state_dir, greeting) as connection:
                if _select((connection, *watched)) - {connection}:
                    return ""
                return _read_text(connection)
        except (GatewayAway, OSError, ValueError):
            # The gateway is restarting: try again.
            if _select(watched, _RETRY_SECS) or not _is_alive(ancestors):
                return ""


def _select(sources: Any, secs: float | None = None) -> set[Any]:
    if not sources:
        time.sleep(secs or 0)
        return set()
    return set(select.select(sources, (), (), secs)[0])


def _open_process(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended, where the system has such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _is_alive(pids: list[int]) -> bool:
    if not os.path.isdir("/proc"):
        return os.getppid() > 1
    return all(os.path.exists(f"/proc/{pid}") for pid in pids)


def _ancestors() -> Iterator[int]:
    """This process's parent, its parent, and so on: the client is one of them."""
    pid = os.getppid()
    for _ in range(_MAX_ANCESTORS):
        if pid <= 1:
            return
        yield pid
        pid = _parent_of(pid)


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
