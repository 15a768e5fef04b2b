"""Follows a stream of a gateway until Ctrl-C, also over restarts of the gateway."""

import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.options import GatewayOptions
from gatepost.cli.problems import CommandProblem, ExitCode

T = TypeVar("T")

_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS = 0.5, 15.0


def follow_stream(
    options: GatewayOptions,
    path: str,
    kind: type[T],
    take: Callable[[CliGateway, T], None],
    tell_lost: Callable[[str], None],
) -> NoReturn:
    """Call `take` with everything that comes, and `tell_lost` with each new reason for a pause.

    A gateway that never answered ends the command: its address may be wrong.
    """
    was_heard, pause, told = False, _FIRST_PAUSE_SECS, ""
    while True:
        try:
            with options.find_gateway() as gateway, gateway.listen(path, kind) as events:
                for event in events:
                    was_heard, pause, told = True, _FIRST_PAUSE_SECS, ""
                    take(gateway, event)
            problem = "the gateway ended the stream"
        except CommandProblem as error:
            if not was_heard or error.exit is not ExitCode.UNREACHABLE:
                raise
            problem = error.message
        if problem != told:
            tell_lost(f"{problem}; trying again")
            told = problem
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE_SECS)
