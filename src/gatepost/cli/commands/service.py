"""`gatepost service`: installs the gateway as a service of systemd or launchd."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from msgspec import Struct

from gatepost import config
from gatepost.cli import output
from gatepost.cli.gateway_process import answering_endpoint
from gatepost.cli.options import DEFAULT_OUTPUT, Flag, OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.cli.service_units import LAUNCHD_LABEL, SERVICE_NAME, ServicePlan
from gatepost.core.state_dir import StateDir
from gatepost.files import write_file_atomically

_MANAGER_SECS = 90
_SYSTEM_STATE = Path("/var/lib/gatepost")
_SYSTEM_UNITS = Path("/etc/systemd/system")
# systemd makes this folder when it runs the machine.
_SYSTEMD_RUNS = Path("/run/systemd/system")

ManagerName = Literal["systemd", "systemd --user", "launchd"]


class ServiceState(Struct):
    """The service as its manager sees it, and whether the gateway answers."""

    manager: ManagerName
    file: str
    is_installed: bool
    state: str
    is_answering: bool


def install_service(
    *,
    system: Flag = False,
    user: str = SERVICE_NAME,
    agents: Flag = False,
    state_dir: Path | None = None,
    print_only: Annotated[Flag, Parameter(name="--print")] = False,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Run the gateway as a service, now and whenever the machine starts.

    Without --system it is a service of this user (systemd; launchd on macOS). With it, the
    service has a user of its own and may write nothing but its state directory.

    For example:

      gatepost service install
      gatepost service install --print
      sudo gatepost service install --system --agents

    Parameters
    ----------
    system
        Install it for the machine; needs root.
    user
        User of the service with --system; it is created if there is none.
    agents
        Leave out the locks of --system that keep sandboxes of agents from working.
    state_dir
        State directory. Default: $GATEPOST_HOME, else ~/.gatepost; /var/lib/gatepost with --system.
    print_only
        Print the file, and change nothing.
    """
    if agents and not system:
        raise usage_problem("--agents is about the locks of --system: add --system")
    home = _choose_home(state_dir, system=system)
    plan = ServicePlan(find_program(), home, user if system else None, agents)
    text = _service_text(plan, system=system)
    if system and Path(plan.program).is_relative_to("/home"):
        raise usage_problem(
            f"the service could not read {plan.program}: install Gatepost outside of /home, such as"
            " python3 -m venv /opt/gatepost && /opt/gatepost/bin/pip install gatepost"
        )
    if print_only:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return
    _require_manager(system=system)
    if system:
        _create_user(user, home)
    else:
        StateDir(home).create_folder()
    file = _service_file(system=system)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file_atomically(file, text, 0o644)
    for command in _start_commands(file, system=system):
        _run_manager(command)
    output.print_result(
        options,
        {"file": str(file), "state_dir": str(home)},
        lambda: output.print_line(f"installed and started; {file}, state in {home}"),
    )


def uninstall_service(*, system: Flag = False, options: OutputOptions = DEFAULT_OUTPUT) -> None:
    """Stop the service and remove its file. The state directory stays.

    For example:

      gatepost service uninstall

    Parameters
    ----------
    system
        The service of the machine; needs root.
    """
    _require_manager(system=system)
    file = _service_file(system=system)
    if not file.exists():
        raise CommandProblem("not_found", f"no service is installed: {file} does not exist")
    for command in _stop_commands(system=system):
        _run_manager(command)
    file.unlink()
    if sys.platform != "darwin":
        _run_manager([*_systemctl(system=system), "daemon-reload"])
    output.print_result(
        options, {"removed": str(file)}, lambda: output.print_line(f"removed {file}")
    )


def show_service(
    *, system: Flag = False, state_dir: Path | None = None, options: OutputOptions = DEFAULT_OUTPUT
) -> int:
    """Show whether the service is installed and runs, and whether its gateway answers.

    Exits with 1 unless it runs and answers.

    For example:

      gatepost service status

    Parameters
    ----------
    system
        The service of the machine.
    state_dir
        State directory. Default: as for `gatepost service install`.
    """
    file = _service_file(system=system)
    answers = answering_endpoint(_choose_home(state_dir, system=system)) is not None
    state = _ask_state(system=system) if file.exists() else "not installed"
    found = ServiceState(_manager_name(system=system), str(file), file.exists(), state, answers)
    said = "the gateway answers" if answers else "the gateway does not answer"
    output.print_result(
        options, found, lambda: output.print_line(f"{found.manager}: {state}; {said} ({file})")
    )
    return ExitCode.OK if found.is_installed and answers else ExitCode.FAILED


def find_program() -> str:
    """The command as a service starts it: by its whole path."""
    beside = Path(sys.executable).with_name("gatepost")
    found = str(beside) if beside.exists() else shutil.which("gatepost")
    if found is None:
        raise CommandProblem("not_found", "the command `gatepost` is not installed on PATH")
    return str(Path(found).absolute())


def _choose_home(state_dir: Path | None, *, system: bool) -> Path:
    if state_dir is not None:
        return state_dir.absolute()
    return _SYSTEM_STATE if system else config.default_settings_path(os.environ).parent


def _service_text(plan: ServicePlan, *, system: bool) -> bytes:
    if sys.platform == "darwin":
        return plan.launchd_plist()
    return (plan.system_unit() if system else plan.user_unit()).encode()


def _service_file(*, system: bool) -> Path:
    if sys.platform == "darwin":
        folder = Path("/Library/LaunchDaemons") if system else _home("Library/LaunchAgents")
        return folder / f"{LAUNCHD_LABEL}.plist"
    base = Path(os.environ.get("XDG_CONFIG_HOME") or _home(".config"))
    folder = _SYSTEM_UNITS if system else base / "systemd" / "user"
    return folder / f"{SERVICE_NAME}.service"


def _home(name: str) -> Path:
    return Path.home() / name


def _manager_name(*, system: bool) -> ManagerName:
    if sys.platform == "darwin":
        return "launchd"
    return "systemd" if system else "systemd --user"


def _require_manager(*, system: bool) -> None:
    if sys.platform != "darwin" and not _SYSTEMD_RUNS.is_dir():
        raise CommandProblem(
            "unavailable",
            "systemd does not run this machine: --print shows the unit; elsewhere let your own"
            " supervisor run `gatepost up`, or use `gatepost up --detach`",
        )
    if system and os.geteuid() != 0:
        raise usage_problem("--system needs root: sudo gatepost service install --system")


def _create_user(user: str, home: Path) -> None:
    """The user of the service, and its state directory."""
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        command = ["useradd", "--system", "--home-dir", str(home), "--shell", "/usr/sbin/nologin"]
        _run_manager([*command, user])
        found = pwd.getpwnam(user)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chown(home, found.pw_uid, found.pw_gid)


def _systemctl(*, system: bool) -> list[str]:
    return ["systemctl"] if system else ["systemctl", "--user"]


def _start_commands(file: Path, *, system: bool) -> list[list[str]]:
    if sys.platform == "darwin":
        return [["launchctl", "bootstrap", _launchd_domain(system=system), str(file)]]
    control = _systemctl(system=system)
    return [[*control, "daemon-reload"], [*control, "enable", "--now", SERVICE_NAME]]


def _stop_commands(*, system: bool) -> list[list[str]]:
    if sys.platform == "darwin":
        return [["launchctl", "bootout", f"{_launchd_domain(system=system)}/{LAUNCHD_LABEL}"]]
    return [[*_systemctl(system=system), "disable", "--now", SERVICE_NAME]]


def _launchd_domain(*, system: bool) -> str:
    return "system" if system else f"gui/{os.getuid()}"


def _ask_state(*, system: bool) -> str:
    command = (
        ["launchctl", "print", f"{_launchd_domain(system=system)}/{LAUNCHD_LABEL}"]
        if sys.platform == "darwin"
        else [*_systemctl(system=system), "is-active", SERVICE_NAME]
    )
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_MANAGER_SECS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "its manager does not answer"
    if sys.platform == "darwin":
        return "loaded" if ran.returncode == 0 else "not loaded"
    return ran.stdout.strip() or "its manager does not answer"


def _run_manager(command: Sequence[str]) -> None:
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_MANAGER_SECS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandProblem("unavailable", f"{command[0]} failed: {error}") from None
    if ran.returncode:
        said = ran.stderr.strip() or ran.stdout.strip()
        raise CommandProblem("unavailable", f"`{' '.join(command)}` failed: {said[-1000:]}")
