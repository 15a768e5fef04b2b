"""`gatepost await`: waits for the outcome of a message, and fetches its reply."""

import time

from gatepost.cli import output
from gatepost.cli.message_outcome import (
    DEFAULT_WAIT_SECS,
    check_outcome,
    load_replies,
    print_sent,
    wait_until_reached,
)
from gatepost.cli.options import DEFAULT_OPTIONS, GatewayOptions
from gatepost.cli.problems import ExitCode
from gatepost.events import format_event_id, parse_event_id
from gatepost.wire.operations import Sent, WaitGoal


def await_message(
    event_id: str,
    /,
    *,
    until: WaitGoal = "processed",
    timeout: float = DEFAULT_WAIT_SECS,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Wait for the outcome of a message, and print its reply.

    This is how a sender without a mailbox gets its reply. The gateway keeps it at least until the
    message would have expired.

    For example:

      gatepost await EVENT_ID
      gatepost await EVENT_ID --until accepted --timeout 5

    Parameters
    ----------
    event_id
        The message's id, as `gatepost send` prints it.
    until
        Wait until the agent's gateway has accepted the message, or until its turn has ended.
    timeout
        Maximum seconds to wait.
    """
    id = format_event_id(parse_event_id(event_id))
    with options.find_gateway() as gateway:
        sent = wait_until_reached(gateway, Sent(id), until, time.monotonic() + timeout)
        load_replies(gateway, sent)
    output.print_result(options, sent, lambda: print_sent(sent))
    check_outcome(sent, until, timeout)
    return ExitCode.OK
