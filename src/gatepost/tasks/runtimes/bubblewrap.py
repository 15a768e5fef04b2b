"""A light sandbox for the process runtime: bubblewrap, where it is installed and works."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from gatepost.tasks.runtimes.session_supervisor import SECRETS_FOLDER, WORK_FOLDER
from gatepost.tasks.runtimes.session_user import SessionUser
from gatepost.tasks.session_runtime import SessionSpec

_PROBE_SECS = 10.0
_MAX_LINKS = 40  # as many as the kernel follows
_NAMESPACES = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
)
_BASE = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
# Files that configure the kernel. Only root may write them, so hiding them is a second barrier.
_KERNEL_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
# Services take orders at sockets in /run, and a read-only mount does not block those: systemd or
# Docker would start a command outside of the sandbox.
_SERVICES = Path("/run")
# Programs need these: the addresses of name servers, and on NixOS all programs.
_SHOWN = (
    "systemd/resolve/stub-resolv.conf",
    "systemd/resolve/resolv.conf",
    "NetworkManager/resolv.conf",
    "resolvconf/resolv.conf",
    "current-system",
)


@cache
def find_bubblewrap(user: SessionUser) -> str | None:
    """The path of bubblewrap; None if it is missing or cannot make a sandbox for `user` here."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    probe = [path, *_NAMESPACES, "--unshare-net", *_BASE, *_protect_kernel(), *_hide_services()]
    probe += ["--cap-drop", "ALL", "true"]
    other: dict[str, Any] = {}
    if user.uid != os.geteuid():
        other = {"user": user.uid, "group": user.gid, "extra_groups": []}
    try:
        done = subprocess.run(
            probe, capture_output=True, timeout=_PROBE_SECS, check=False, cwd="/", **other
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if done.returncode == 0 else None


def sandbox_command(bubblewrap: str, spec: SessionSpec, *, has_network: bool) -> list[str]:
    """The command of a session inside a sandbox.

    The sandbox shows the machine's files read-only, and hides the state of the gateway and of other
    sessions, and the sockets of services in /run. The session may write to its work folder and to a
    private /tmp.
    """
    work, secrets = spec.folder / WORK_FOLDER, spec.folder / SECRETS_FOLDER
    command = [bubblewrap, "--die-with-parent", "--cap-drop", "ALL", *_NAMESPACES, *_BASE]
    command += [*_protect_kernel(), *_hide_services()]
    if not has_network:
        command.append("--unshare-net")
    for hidden in _outermost(spec.hidden):
        command += ["--tmpfs", str(hidden)]
    for file in spec.files:
        command += ["--ro-bind", str(spec.folder / file), str(spec.folder / file)]
    command += ["--bind", str(work), str(work), "--ro-bind", str(secrets), str(secrets)]
    if spec.socket_folder is not None:
        command += ["--ro-bind", str(spec.socket_folder), str(spec.socket_folder)]
    return [*command, "--chdir", str(work), "--", *spec.definition.command]


def _protect_kernel() -> list[str]:
    return [option for path in _KERNEL_SETTINGS for option in ("--ro-bind-try", path, path)]


def find_missing_program(spec: SessionSpec) -> str | None:
    """The program that a session's sandbox lacks; None if it has all that it needs.

    Bubblewrap would end like a failed command, so this is checked first.
    """
    name = spec.definition.command[0]
    path = _find_in_sandbox(spec, name)
    if path is None:
        return name
    interpreter = _read_interpreter(path)
    if interpreter is not None and _find_in_sandbox(spec, interpreter) is None:
        return interpreter
    return None


def _find_in_sandbox(spec: SessionSpec, name: str) -> Path | None:
    work = spec.folder / WORK_FOLDER
    folders = spec.environment.get("PATH", os.defpath).split(os.pathsep)
    candidates = [work / name] if "/" in name else [work / each / name for each in folders]
    for path in candidates:
        found = path.resolve()
        is_hidden = any(_is_hidden(spec, each) for each in (path, found, *_follow_links(path)))
        if found.is_file() and os.access(found, os.X_OK) and not is_hidden:
            return found
    return None


def _follow_links(path: Path) -> Iterator[Path]:
    """A link and the links that it leads to, all of which must be visible in the sandbox."""
    for _ in range(_MAX_LINKS):
        path = path.parent.resolve() / path.name
        yield path
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()


def _is_hidden(spec: SessionSpec, path: Path) -> bool:
    hidden = [_SERVICES, Path("/tmp"), *_outermost(spec.hidden)]
    shown = [spec.folder / WORK_FOLDER, *(_SERVICES / name for name in _SHOWN)]
    shown += [each.resolve() for each in shown]
    return any(path.is_relative_to(each) for each in hidden) and not any(
        path.is_relative_to(each) for each in shown
    )


def _read_interpreter(path: Path) -> str | None:
    """The interpreter of a script; None for another program."""
    try:
        with path.open("rb") as file:
            line = file.read(256).partition(b"\n")[0]
    except OSError:
        return None  # It can be executed without being read.
    words = line.removeprefix(b"#!").split() if line.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else None


def _hide_services() -> list[str]:
    if not _SERVICES.is_dir():
        return []
    options = ["--tmpfs", str(_SERVICES)]
    for path in (str(_SERVICES / name) for name in _SHOWN):
        options += ["--ro-bind-try", path, path]
    return options


def _outermost(paths: tuple[Path, ...]) -> list[Path]:
    """The folders that exist, without those inside another one."""
    resolved = sorted({path.resolve() for path in paths if path.is_dir()})
    return [path for path in resolved if not any(parent in path.parents for parent in resolved)]
