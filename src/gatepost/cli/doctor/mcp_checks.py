"""Checks of the clients that `gatepost mcp install` connected: a message through each server.

A client starts the server by the command in its configuration. The same is done here, so a program
that has moved, a gateway that is another one and a missing extra show as they do there.
"""

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from gatepost.cli.doctor.finding import Finding, Findings
from gatepost.errors import GatepostError
from gatepost.mcp.clients.client_entries import (
    SERVER_NAME,
    ClientName,
    ConfigEntry,
    ServerCommand,
    list_entries,
)
from gatepost.mcp.clients.hook import CHECK_VARIABLE
from gatepost.mcp.clients.round_trip import prove_server

_HOOK_SECS = 40.0
_DOCTOR_SESSION = "gatepost-doctor"


def check_clients(state_dir: Path, home: Path, env: Mapping[str, str]) -> Findings:
    for client in get_args(ClientName):
        if (state_dir / "mcp" / f"{client}.json").exists():
            yield from check_client(client, home, env)


def check_client(client: ClientName, home: Path, env: Mapping[str, str]) -> Findings:
    again = f"gatepost mcp install {client}"
    entries = list_entries(client, ServerCommand("gatepost", client), home, env, wake=True)
    servers = [found for entry in entries if (found := _find_server(entry)) is not None]
    if not servers:
        problem = f"the configuration of {client} names no gatepost server any more"
        yield Finding("mcp", problem, f"{again}, or {again} --uninstall")
    for command in servers:
        try:
            prove_server(command)
        except (GatepostError, OSError, ValueError) as error:
            yield Finding("mcp", f"{client} cannot use its server: {_describe(error)}", again)
    for hook in sorted({each for entry in entries for each in _find_hooks(entry)}):
        yield from _check_hook(client, hook, again)


def _find_server(entry: ConfigEntry) -> ServerCommand | None:
    """The server as the client's file has it; None if it has none of ours."""
    server = _read(entry).get(entry.table or "", {}).get(SERVER_NAME)
    if not isinstance(server, dict):
        return None
    given = dict(zip(server["args"], server["args"][1:], strict=False))
    return ServerCommand(server["command"], given.get("--agent", ""), given.get("--state-dir"))


def _find_hooks(entry: ConfigEntry) -> Iterator[str]:
    """Our hooks in the client's file that answer at once; the others wait for mail."""
    probe = ServerCommand("gatepost", "")
    for groups in _read(entry).get("hooks", {}).values():
        for group in groups:
            for each in group.get("hooks", []):
                command = each.get("command")
                if probe.is_hook(command) and " hook prompt " in command:
                    yield command


def _read(entry: ConfigEntry) -> dict[str, Any]:
    try:
        text = entry.file.read_text(encoding="utf-8")
        read = tomllib.loads(text) if entry.form == "toml" else json.loads(text)
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _check_hook(client: str, command: str, again: str) -> Findings:
    """Run the hook as the client does, with the failure shown that it hides from clients."""
    try:
        ran = subprocess.run(
            ["sh", "-c", command],
            input=json.dumps({"session_id": _DOCTOR_SESSION}).encode(),
            env={**os.environ, CHECK_VARIABLE: "1"},
            capture_output=True,
            timeout=_HOOK_SECS,
            check=False,
        )
        failed, said = ran.returncode != 0, ran.stderr.decode(errors="replace").strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        failed, said = True, _describe(error)
    if failed:
        yield Finding("hooks", f"a hook of {client} does not work: {said[-300:]}", again)


def _describe(error: Exception) -> str:
    if isinstance(error, GatepostError):
        return error.message
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
