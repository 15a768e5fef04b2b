"""Checks of the state directory: who may read it, and whether what belongs together is there."""

import os
import stat
from pathlib import Path

from gatepost.cli.doctor.finding import Finding, Findings
from gatepost.connect.gateway_endpoint import read_token
from gatepost.core.state_dir import StateDir
from gatepost.errors import GatepostError

_OTHERS = 0o077
_KEY_BYTES = 32


def check_state_dir(state: StateDir) -> Findings:
    """A state directory that does not exist yet is made by `gatepost up`."""
    if not state.path.exists():
        return
    yield from _check_access(state.path)
    for secret in (state.key, state.token, state.tls_key):
        if secret.exists():
            yield from _check_secret(secret)
    if state.journal.exists():
        yield from _check_key(state)
    if state.token.exists():
        yield from _check_token(state.token)


def _check_access(folder: Path) -> Findings:
    mode, owner = stat.S_IMODE(folder.stat().st_mode), folder.stat().st_uid
    if mode & _OTHERS:
        yield Finding(
            "state directory",
            f"{folder} can be read by others (mode {mode:o}), and the gateway does not start on it",
            f"chmod 700 {folder}",
        )
    if not os.access(folder, os.W_OK):
        yield Finding(
            "state directory",
            f"this user (uid {os.geteuid()}) cannot write {folder}, which belongs to uid {owner}",
            f"run the gateway and this command as uid {owner}, or: chown -R $(id -u) {folder}",
        )


def _check_secret(file: Path) -> Findings:
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & _OTHERS:
        yield Finding(
            "state directory",
            f"{file} holds a secret and can be read by others (mode {mode:o})",
            f"chmod 600 {file}",
        )


def _check_key(state: StateDir) -> Findings:
    advice = (
        "put it back, or restore it with the journal: gatepost restore FILE. Without a backup move"
        f" {state.path} away and join under a new node.id"
    )
    if not state.key.exists():
        problem = f"{state.key} is missing, and the journal beside it belongs to that key"
        yield Finding("state directory", problem, advice)
    elif (size := state.key.stat().st_size) != _KEY_BYTES:
        problem = f"{state.key} is damaged: it has {size} bytes, not {_KEY_BYTES}"
        yield Finding("state directory", problem, advice)


def _check_token(file: Path) -> Findings:
    try:
        read_token(file, "")
    except GatepostError:
        yield Finding(
            "state directory",
            f"{file} holds no token that this user can read",
            f"stop the gateway, remove {file}, and start it: it makes a new one",
        )
