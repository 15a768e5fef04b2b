"""Checks of the gateway itself: whether it runs, answers, and accepts messages."""

import os
from pathlib import Path

from gatepost import __version__
from gatepost.cli.doctor.finding import Finding, Findings
from gatepost.connect.gateway_endpoint import GatewayEndpoint
from gatepost.wire.gateway_views import Status


def check_silent_gateway(endpoint: GatewayEndpoint, start: str) -> Findings:
    """A gateway that announced itself and does not answer now. `start` is the command."""
    if is_alive(endpoint.pid):
        yield Finding(
            "gateway",
            f"the gateway (process {endpoint.pid}) is announced at {endpoint.url} and does not"
            " answer",
            f"see its log, then end it (kill {endpoint.pid}) and start it: {start}",
        )
    else:
        yield Finding(
            "gateway",
            f"the gateway (process {endpoint.pid}) ended without stopping in order",
            f"start it: {start}. What it had answered is on disk; its log says why it ended",
        )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether it has ended, and its parent has not asked for its status yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")


def check_status(status: Status) -> Findings:
    if not status.accepting:
        yield Finding(
            "gateway",
            f"the gateway accepts no messages: {status.problem}",
            "mend the cause, which its log names too; `gatepost up` afterwards if it has stopped",
        )
    for problem in status.health_problems:
        yield Finding(
            "gateway",
            f"the gateway is degraded: {problem}",
            "see `gatepost status` and `gatepost incidents`",
            is_advice=True,
        )
    for problem in status.mesh_problems:
        yield Finding("clock" if "clock" in problem else "peers", problem, "see `gatepost nodes`")
    if status.version != __version__:
        yield Finding(
            "versions",
            f"the gateway runs version {status.version}, and {__version__} is installed",
            "restart the gateway: gatepost down, then gatepost up --detach",
        )
