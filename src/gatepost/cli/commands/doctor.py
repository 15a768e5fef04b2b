"""`gatepost doctor`: what is wrong with this machine and its gateway, and what to do about it."""

import datetime
import os
from pathlib import Path

from gatepost import config
from gatepost.cli import output
from gatepost.cli.commands.init import up_command
from gatepost.cli.doctor import (
    disk_checks,
    gateway_checks,
    listener_checks,
    mcp_checks,
    peer_checks,
    pipeline_checks,
    session_checks,
    state_checks,
)
from gatepost.cli.doctor.finding import CheckName, Diagnosis, Finding, Findings
from gatepost.cli.gateway_api import CliGateway, CliTarget
from gatepost.cli.gateway_process import answering_endpoint
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode
from gatepost.connect.gateway_endpoint import (
    ENDPOINT_FILE_NAME,
    TOKEN_FILE_NAME,
    GatewayEndpoint,
    read_endpoint,
)
from gatepost.core.state_dir import StateDir
from gatepost.errors import ConfigError, GatepostError
from gatepost.wire.gateway_views import Status
from gatepost.wire.room_views import NodeList, PeerReach

_MOUNTS = Path("/proc/self/mounts")
# A peer visits this gateway before it answers.
_REACH_SECS = 15.0
_NOT_RUNNING = "no gateway runs here"


def diagnose_gateway(
    *, state_dir: Path | None = None, options: OutputOptions = DEFAULT_OUTPUT
) -> int:
    """Look for what is wrong with this machine and its gateway, and say what to do.

    Works while the gateway runs and while it does not; what needs a running one is left out
    then. Asks linked gateways whether they reach this one, and sends a message through each
    client of MCP that was connected here. Exits with 1 if it finds a fault.

    For example:

      gatepost doctor
      gatepost doctor --json | jq -r '.findings[] | .problem, .remedy'

    Parameters
    ----------
    state_dir
        State directory of the gateway. Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    visit = _Visit(state_dir)
    visit.look()
    found = visit.summarize()
    output.print_result(options, found, lambda: _print_diagnosis(found))
    return ExitCode.FAILED if found.faults else ExitCode.OK


class _Visit:
    """One look at everything, in order; what is skipped is noted with the reason."""

    def __init__(self, state_dir: Path | None) -> None:
        self._chosen = state_dir
        self._home = (state_dir or config.default_settings_path(os.environ).parent).absolute()
        self._node: str | None = None
        self._endpoint: GatewayEndpoint | None = None
        self._checked: list[CheckName] = []
        self._skipped: dict[str, str] = {}
        self._findings: list[Finding] = []

    def look(self) -> None:
        settings = self._load_settings()
        if settings is None:
            self._look_at_state(StateDir(self._home))
            self._skip("the settings cannot be used", "gateway", "ports", "tls", "sessions")
            return
        self._home = settings.node.state_dir
        self._look_at_state(StateDir(self._home))
        self._look_at_disk()
        self._look_at_gateway(settings)
        self._note("tls", listener_checks.check_exposure(settings))
        now = datetime.datetime.now(datetime.UTC)
        self._note("tls", listener_checks.check_certificate(settings, now))
        self._note("ports", listener_checks.check_open_files(settings))
        self._note("sessions", session_checks.check_sessions(settings, os.environ))
        self._note("pipeline", pipeline_checks.check_pipeline(settings))
        if self._endpoint is not None:
            self._note("mcp", mcp_checks.check_clients(self._home, Path.home(), os.environ))
            self._note("hooks", iter(()))
        else:
            self._skip(_NOT_RUNNING, "peers", "clock", "versions", "mcp", "hooks")

    def summarize(self) -> Diagnosis:
        return Diagnosis(
            str(self._home),
            self._node,
            self._endpoint is not None,
            self._checked,
            self._skipped,
            self._findings,
        )

    def _note(self, check: CheckName, findings: Findings) -> None:
        self._findings += findings
        if check not in self._checked:
            self._checked.append(check)

    def _skip(self, why: str, *checks: CheckName) -> None:
        self._skipped |= dict.fromkeys(checks, why)

    def _load_settings(self) -> config.Settings | None:
        self._note("settings", iter(()))
        try:
            return config.load_settings(os.environ, self._chosen)
        except ConfigError as error:
            remedy = "correct it; `gatepost config check` says when it is right"
            self._findings.append(Finding("settings", error.message, remedy))
            return None

    def _look_at_state(self, state: StateDir) -> None:
        try:
            self._note("state directory", state_checks.check_state_dir(state))
        except PermissionError as error:
            self._findings.append(
                Finding(
                    "state directory",
                    f"this user (uid {os.geteuid()}) cannot look into {error.filename}",
                    "run this command as the user of the gateway",
                )
            )

    def _look_at_disk(self) -> None:
        folder = disk_checks.existing_folder(self._home)
        self._note("disk", disk_checks.check_space(folder, *disk_checks.free_space(folder)))
        if _MOUNTS.exists():
            mounts = _MOUNTS.read_text(errors="replace")
            self._note("disk", disk_checks.check_kind(folder.resolve(), mounts))
        if not os.access(folder, os.W_OK):
            return
        try:
            took = disk_checks.measure_sync(folder)
        except OSError as error:
            self._findings.append(
                Finding("disk", f"{folder} cannot be written: {error.strerror}", "make room there")
            )
        else:
            self._note("disk", disk_checks.check_sync(folder, took))

    def _look_at_gateway(self, settings: config.Settings) -> None:
        self._endpoint = answering_endpoint(self._home)
        if self._endpoint is not None:
            self._node = self._endpoint.node_id
            self._look_at_running(settings, self._endpoint)
            return
        listen, announced = settings.listen, self._read_announced()
        if announced is not None:
            start = f"{up_command(self._chosen)} --detach"
            self._note("gateway", gateway_checks.check_silent_gateway(announced, start))
            if gateway_checks.is_alive(announced.pid):
                return
        if listen.port:
            self._note("ports", listener_checks.check_port(listen.host, listen.port))

    def _read_announced(self) -> GatewayEndpoint | None:
        if not (self._home / ENDPOINT_FILE_NAME).exists():
            return None
        try:
            return read_endpoint(self._home)
        except GatepostError as error:
            self._findings.append(Finding("gateway", error.message, "restart the gateway"))
            return None

    def _look_at_running(self, settings: config.Settings, endpoint: GatewayEndpoint) -> None:
        target = CliTarget(endpoint.url, self._home / TOKEN_FILE_NAME, endpoint.tls_cert)
        if endpoint.tls_cert is not None:
            served = listener_checks.check_served_certificate(endpoint.url, Path(endpoint.tls_cert))
            self._note("tls", served)
        try:
            with CliGateway(target) as gateway:
                self._note(
                    "gateway", gateway_checks.check_status(gateway.get("/v1/status", Status))
                )
                self._look_at_peers(settings, gateway)
        except CommandProblem as problem:
            remedy = "see the log of the gateway, and restart it"
            self._findings.append(Finding("gateway", problem.message, remedy))

    def _look_at_peers(self, settings: config.Settings, gateway: CliGateway) -> None:
        try:
            nodes = gateway.get("/v1/room/nodes", NodeList)
        except CommandProblem as problem:
            # A gateway that has met no other one has no room.
            self._skip(problem.message, "peers", "clock", "versions")
            return
        own = next((node.endpoint for node in nodes.nodes if node.is_self), None)
        reaches = gateway.get("/v1/room/reach", list[PeerReach], wait=_REACH_SECS)
        busy = [each.node for each in reaches if each.is_busy]
        if busy:
            self._skip(f"{', '.join(busy)} was asked too often: try again soon", "peers")
        self._note("peers", peer_checks.check_members(nodes))
        self._note("peers", peer_checks.check_reach(reaches, own))
        self._note("clock", peer_checks.check_clocks(reaches, settings.mesh.clock_tolerance_secs))
        self._note("versions", peer_checks.check_versions(reaches))


def _print_diagnosis(found: Diagnosis) -> None:
    where = f"{found.node} on {found.state_dir}" if found.node else found.state_dir
    output.print_line(where if found.is_running else f"{where}: no gateway runs here", "bold")
    for finding in found.findings:
        output.print_line("")
        title = "advice" if finding.is_advice else "FAULT"
        output.print_line(
            f"{title} ({finding.check}): {finding.problem}",
            "yellow" if finding.is_advice else "bold red",
        )
        output.print_line(f"  remedy: {finding.remedy}")
    if found.findings:
        output.print_line("")
    counted = len(found.faults)
    verdict = f"{output.format_count(counted, 'fault')}" if counted else "nothing is wrong"
    output.print_line(f"{verdict}; looked at {', '.join(found.checked)}")
    for why in dict.fromkeys(found.skipped.values()):
        checks = [check for check, reason in found.skipped.items() if reason == why]
        output.print_line(f"not looked at: {', '.join(checks)} ({why})")
