"""`gatepost mcp`: connects Claude Code, Codex and other clients of MCP to a gateway."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, Flag, GatewayOptions, YesOption
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.config import default_settings_path
from gatepost.connect.gateway_endpoint import ENDPOINT_FILE_NAME, read_endpoint
from gatepost.errors import GatepostError
from gatepost.events import check_agent_id
from gatepost.mcp.clients.client_entries import (
    ClientName,
    ServerCommand,
    can_wake,
    list_entries,
)
from gatepost.mcp.clients.config_edits import FileEdit, keep_record, plan_install, plan_uninstall
from gatepost.mcp.clients.round_trip import RoundTrip, prove_server
from gatepost.wire.gateway_views import AgentInfo

_CLAUDE_TRUST = "Start a new session of the client to load it."
_CODEX_TRUST = "Start Codex and run /hooks once: it runs hooks only after you have reviewed them."


class InstallResult(Struct, omit_defaults=True):
    """The files that were changed, and what the round trip has shown."""

    client: str
    files: list[str]
    proof: RoundTrip | None = None


def install_client(
    client: ClientName,
    /,
    *,
    agent: AgentName | None = None,
    wake: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    print_only: Annotated[bool, Parameter(name="--print", negative=(), show_default=False)] = False,
    uninstall: Flag = False,
    yes: YesOption = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Connect a client of MCP on this machine to the gateway, as an agent.

    Writes into the client's configuration of this user what the client's own command
    would write, and hooks that tell its sessions about mail, where the client has
    hooks. It shows the difference first, registers the agent, and then sends a
    message through the new server. No file gets a token.

    For example:

      gatepost mcp install claude-code --wake
      gatepost mcp install codex --agent reviewer --print
      gatepost mcp install codex --uninstall

    Parameters
    ----------
    client
        The client.
    agent
        The agent that it is. Default: the client and this node, such as claude-code-lap.
    wake
        Let new mail wake an idle session: it begins a turn. Claude Code and Codex can do so.
    print_only
        Print the difference, and change nothing.
    uninstall
        Take out what was written; files that have not changed since get back their old content.
    """
    if wake and not can_wake(client):
        raise usage_problem(f"no session of {client} can be woken: leave out --wake")
    if uninstall:
        return _uninstall_client(client, print_only, yes, options)
    home = _find_state_dir(options)
    command = _server_command(client, agent, home)
    with _explain_errors():
        entries = list_entries(client, command, Path.home(), os.environ, wake=wake)
        edits = plan_install(entries, command)
    if not _confirm_edits(edits, print_only, yes, options):
        return ExitCode.OK if print_only else ExitCode.FAILED
    with options.find_gateway() as gateway:
        registered = gateway.put(f"/v1/agents/{check_agent_id(command.agent)}", AgentInfo)
    if registered.problem:
        output.print_warning(f"{registered.id}: {registered.problem}")
    with _explain_errors():
        keep_record(_record_file(home, client), edits)
        _write_edits(edits)
        proof = prove_server(command)
    _report(InstallResult(client, _names(edits), proof), options)
    output.print_hint(_CODEX_TRUST if client == "codex" else _CLAUDE_TRUST)
    return ExitCode.OK


def _uninstall_client(
    client: ClientName, print_only: bool, yes: bool, options: GatewayOptions
) -> int:
    """Uninstall without the gateway, which may be gone for good."""
    home = options.state_dir or default_settings_path(os.environ).parent
    command = ServerCommand(_find_program(), client)
    with _explain_errors():
        entries = list_entries(client, command, Path.home(), os.environ, wake=can_wake(client))
        edits = plan_uninstall(entries, command, _record_file(home, client))
    if not _confirm_edits(edits, print_only, yes, options):
        return ExitCode.OK if print_only else ExitCode.FAILED
    _write_edits(edits)
    _record_file(home, client).unlink(missing_ok=True)
    _report(InstallResult(client, _names(edits)), options)
    return ExitCode.OK


def _record_file(home: Path, client: ClientName) -> Path:
    return home / "mcp" / f"{client}.json"


def _confirm_edits(
    edits: list[FileEdit], print_only: bool, yes: bool, options: GatewayOptions
) -> bool:
    """Show the edits; returns whether to write them."""
    _show_edits(edits, options)
    if print_only:
        return False
    is_agreed = yes or not edits or not sys.stdin.isatty()
    return output.confirm_action("Write this?", is_agreed, options)


def _find_state_dir(options: GatewayOptions) -> Path:
    """The state directory of the gateway, which has to run: clients use its Unix socket."""
    if options.url is not None:
        raise usage_problem("a client reaches the gateway of its own machine: leave out --url")
    target = CliGateway.find(options).target
    home = target.token_file.parent
    if not (home / ENDPOINT_FILE_NAME).exists():
        raise usage_problem("name the gateway's state directory with --state-dir")
    return home


def _server_command(client: ClientName, agent: str | None, home: Path) -> ServerCommand:
    endpoint = read_endpoint(home)
    if endpoint.socket is None:
        raise usage_problem("this gateway has no Unix socket: set listen.unix_socket = true")
    name = check_agent_id(agent or f"{client}-{endpoint.node_id}")
    is_default = home == default_settings_path({}).parent
    return ServerCommand(_find_program(), name, None if is_default else str(home))


def _find_program() -> str:
    """The command as clients start it: they do not know this shell's PATH."""
    beside = Path(sys.executable).with_name("gatepost")
    return str(beside) if beside.exists() else shutil.which("gatepost") or "gatepost"


@contextlib.contextmanager
def _explain_errors() -> Iterator[None]:
    try:
        yield
    except GatepostError as error:
        raise CommandProblem(error.code, error.message) from None


def _show_edits(edits: list[FileEdit], options: GatewayOptions) -> None:
    if options.json:
        return
    for edit in edits:
        for line in edit.describe().splitlines():
            output.print_line(line)
    if not edits:
        output.print_line("the configuration is as it should be")


def _write_edits(edits: list[FileEdit]) -> None:
    for edit in edits:
        edit.write()


def _names(edits: list[FileEdit]) -> list[str]:
    return [str(edit.file) for edit in edits]


def _report(result: InstallResult, options: GatewayOptions) -> None:
    output.print_result(options, result, lambda: output.print_line(_describe(result)))


def _describe(result: InstallResult) -> str:
    if result.proof is None:
        return f"{result.client} is no longer connected; its agent and the agent's mail stay"
    proof = result.proof
    return (
        f"{result.client} is connected as {proof.agent}: {proof.tools} tools, and a round trip"
        f" through the gateway took {proof.milliseconds:g} ms"
    )
