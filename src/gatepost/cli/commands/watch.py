"""`gatepost watch`: every event of a gateway, as it happens."""

import sys
from urllib.parse import urlencode

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.live_stream import follow_stream
from gatepost.cli.options import DEFAULT_OPTIONS, AgentName, GatewayOptions
from gatepost.events import check_agent_id
from gatepost.wire.report_views import JourneyStep
from gatepost.wire.view_texts import describe_step


def watch_events(
    agent: AgentName | None = None, /, *, options: GatewayOptions = DEFAULT_OPTIONS
) -> None:
    """Print every event of an agent, or of the gateway, as it happens, until Ctrl-C.

    An event is printed once it is on disk: its time, the gateway that wrote it, the
    message it is about, and what happened, in the words of `gatepost trace`. Events of
    other gateways are those that this one takes: their mail for its agents, and their
    receipts. If the gateway goes away, the command waits for it.

    For example:

      gatepost watch
      gatepost watch bob --json | jq .what

    Parameters
    ----------
    agent
        Only events of this agent, as sender or as receiver.
    """
    path = "/v1/events"
    if agent is not None:
        path += f"?{urlencode({'agent': check_agent_id(agent)})}"

    def take(_: CliGateway, steps: list[JourneyStep]) -> None:
        if not steps:
            output.print_hint(f"watching {agent or 'all agents'}; Ctrl-C ends")
        for step in steps:
            _print_step(step, options)

    follow_stream(options, path, list[JourneyStep], take, output.print_warning)


def _print_step(step: JourneyStep, options: GatewayOptions) -> None:
    time = f"{output.format_time(step.at)}.{step.at % 1000:03d}"
    text = f"{time}  {step.node}  {step.event_id}  {describe_step(step)}"
    output.print_result(options, step, lambda: output.print_line(text))
    sys.stdout.flush()
