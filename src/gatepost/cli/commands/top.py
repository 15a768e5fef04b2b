"""`gatepost top`: the room in a terminal, live."""

import os
import sys

from gatepost.cli.gateway_api import CliGateway, CliTarget, locate_gateway
from gatepost.cli.options import DEFAULT_OPTIONS, GatewayOptions
from gatepost.cli.output import now_ms
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.connect.gateway_endpoint import LocateGateway, Target
from gatepost.errors import ExtraMissing, Unavailable

_ADVICE = "`gatepost top` needs Textual: run pip install 'gatepost[tui]'"


def show_top(view: str = "needs", /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> int:
    """Show the room in this terminal, live: ledger, gateways, agents, tasks, messages.

    It changes nothing until you press w; then every action asks first, and shows the
    command that does the same. ? shows the keys. Needs the extra: pip install 'gatepost[tui]'

    For example:

      gatepost top
      gatepost top tasks --context vps

    Parameters
    ----------
    view
        What to show first: needs, nodes, agents, tasks, messages, dead, undelivered or
        incidents; or a term of the ledger, such as waiting.
    """
    if options.json:
        raise usage_problem("`gatepost top` draws a screen: for JSON see `gatepost watch --json`")
    try:
        from gatepost.tui.program import run_top
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        raise CommandProblem(ExtraMissing.code, _ADVICE, ExitCode.USAGE) from None
    if not all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr)):
        raise usage_problem(
            "`gatepost top` needs a terminal, also for standard error: see `gatepost watch`"
        )
    target = locate_gateway(options, os.environ)
    with CliGateway(target) as gateway:
        if gateway.agent is not None:
            raise usage_problem(
                f"{target.token_file} holds the session of {gateway.agent}: `gatepost top` needs"
                " the token of the operator"
            )
    run_top(_locator(options), now_ms, _scope(options), view)
    return ExitCode.OK


def _locator(options: GatewayOptions) -> LocateGateway:
    """Finds the gateway anew at each call: its port may change on restart."""

    def locate() -> Target:
        try:
            found: CliTarget = locate_gateway(options, os.environ)
            return found.load_token()
        except CommandProblem as problem:
            raise Unavailable(problem.message) from None

    return locate


def _scope(options: GatewayOptions) -> tuple[str, ...]:
    """The options by which a command of this terminal reaches the same gateway."""
    named = {
        "--state-dir": options.state_dir,
        "--url": options.url,
        "--token-file": options.token_file,
        "--context": options.context,
    }
    return tuple(text for name, value in named.items() if value for text in (name, str(value)))
