"""Runs the terminal UI until the operator quits."""

from collections.abc import Callable

from gatepost.connect.gateway_endpoint import LocateGateway
from gatepost.errors import InvalidRequest
from gatepost.tui.app import TopApp
from gatepost.tui.jump_targets import JUMP_NAMES, find_target
from gatepost.tui.operator_api import HttpOperatorApi


def run_top(
    locate: LocateGateway,
    now_ms: Callable[[], int],
    scope: tuple[str, ...],
    first_view: str,
) -> None:
    if find_target(first_view) is None:
        raise InvalidRequest(f"there is no view {first_view!r}: {', '.join(JUMP_NAMES)}")
    TopApp(HttpOperatorApi(locate), now_ms, scope, first_view).run()
