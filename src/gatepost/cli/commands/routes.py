"""`gatepost route`: lists, sets and removes fallback routes."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.gateway_api import quote_segment
from gatepost.cli.options import DEFAULT_OPTIONS, GatewayOptions
from gatepost.wire.room_views import RouteView

NamesOption = Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=True)]


def list_routes(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """List the routes of the room.

    For example:

      gatepost route list
    """
    with options.find_gateway() as gateway:
        found = gateway.get("/v1/room/routes", list[RouteView])
    output.print_result(options, found, lambda: _print_routes(found))


def _print_routes(found: Sequence[RouteView]) -> None:
    if not found:
        output.print_line("no routes: every agent is reached where it lives")
        return
    output.print_table(
        ("Target", "Owner", "Fallbacks", "Requires", "Priority", "Set by"),
        [
            (r.target, r.owner, " ".join(r.fallbacks), " ".join(r.requires), r.priority, r.set_by)
            for r in found
        ],
    )


def set_route(
    target: str,
    /,
    *,
    owner: str | None = None,
    fallback: NamesOption = (),
    requires: NamesOption = (),
    priority: int = 0,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Set the route to an agent, or to every agent of a node.

    A fallback takes mail while the owner is away, if it hosts the agent as a
    standby and has the required capabilities. A route for an agent wins over a
    route for its node.

    For example:

      gatepost route set bob --fallback lab-2 --fallback lab-3
      gatepost route set lab-1 --fallback lab-2 --requires gpu
      gatepost route set bob --priority 30

    Parameters
    ----------
    target
        An agent, or a node.
    owner
        The node the agent lives behind. Default: its owner in the room.
    fallback
        Nodes that take the mail while the owner is away, in this order. Each must host the agent
        as a standby.
    requires
        Capabilities a node needs to take the mail.
    priority
        Seconds of precedence over other mail: mail that arrived up to this much earlier waits.
    """
    body = {"owner": owner, "fallbacks": fallback, "requires": requires, "priority": priority}
    with options.find_gateway() as gateway:
        route = gateway.put(f"/v1/room/routes/{quote_segment(target)}", RouteView, body)
    output.print_result(
        options,
        route,
        lambda: output.print_line(f"{route.target} is reached by {_route_text(route)}"),
    )


def _route_text(route: RouteView) -> str:
    return ", then ".join((route.owner, *route.fallbacks))


def remove_route(target: str, /, *, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Remove a route that this gateway set.

    For example:

      gatepost route remove bob

    Parameters
    ----------
    target
        The target of the route; `gatepost route list` shows all.
    """
    with options.find_gateway() as gateway:
        removed = gateway.delete(f"/v1/room/routes/{quote_segment(target)}", RouteView)
    output.print_result(
        options, removed, lambda: output.print_line(f"the route for {removed.target} is removed")
    )
