"""A light sandbox for the process runtime: bubblewrap, where it is installed and works."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

from gatepost.hub.runtimes.runtime import SessionSpec
from gatepost.hub.runtimes.session_supervisor import SECRETS_FOLDER, WORK_FOLDER

_PROBE_SECS = 10.0
_NAMESPACES = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
_BASE = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp")
# Services take orders at sockets in /run, and a read-only mount does not keep anybody from those:
# systemd or Docker would start a command outside of the sandbox.
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
def find_bubblewrap() -> str | None:
    """The path of bubblewrap; None if it is missing or cannot make a sandbox here."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    probe = [path, *_NAMESPACES, "--unshare-net", *_BASE, *_hide_services()]
    probe += ["--cap-drop", "ALL", "true"]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=_PROBE_SECS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return path if done.returncode == 0 else None


def sandbox_command(bubblewrap: str, spec: SessionSpec, *, has_network: bool) -> list[str]:
    """The command of a session inside a sandbox.

    The sandbox shows the machine's files read-only, and hides the state of the gateway and of other
    sessions, and the sockets of services in /run. The session may write to its work folder and to a
    /tmp of its own.
    """
    work, secrets = spec.folder / WORK_FOLDER, spec.folder / SECRETS_FOLDER
    command = [bubblewrap, "--die-with-parent", "--cap-drop", "ALL", *_NAMESPACES, *_BASE]
    command += _hide_services()
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
