"""`gatepost route`: lists, sets and removes fallback routes."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from gatepost.cli import output
from gatepost.cli.connect import segment
from gatepost.cli.options import OPTIONS, Options
from gatepost.gateway.api.room_views import RouteView

Several = Annotated[tuple[str, ...], Parameter(negative=(), consume_multiple=True)]


def list_(*, options: Options = OPTIONS) -> None:
    """List the routes of the room."""
    with options.gateway() as gateway:
        found = gateway.get("/v1/room/routes", list[RouteView])
    output.show(options, found, lambda: _say(found))


def _say(found: Sequence[RouteView]) -> None:
    if not found:
        output.say("no routes: every agent is reached where it lives")
        return
    output.table(
        ("Target", "Owner", "Fallbacks", "Requires", "Priority", "Set by"),
        [
            (r.target, r.owner, " ".join(r.fallbacks), " ".join(r.requires), r.priority, r.set_by)
            for r in found
        ],
    )


def set_(
    target: str,
    /,
    *,
    owner: str | None = None,
    fallback: Several = (),
    requires: Several = (),
    priority: int = 0,
    options: Options = OPTIONS,
) -> None:
    """Set the route to an agent, or to every agent of a node.

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
    with options.gateway() as gateway:
        route = gateway.put(f"/v1/room/routes/{segment(target)}", RouteView, body)
    output.show(options, route, lambda: output.say(f"{route.target} is reached by {_way(route)}"))


def _way(route: RouteView) -> str:
    return ", then ".join((route.owner, *route.fallbacks))


def remove(target: str, /, *, options: Options = OPTIONS) -> None:
    """Remove a route that this gateway set.

    Parameters
    ----------
    target
        The target of the route; `gatepost route list` shows all.
    """
    with options.gateway() as gateway:
        removed = gateway.delete(f"/v1/room/routes/{segment(target)}", RouteView)
    output.show(options, removed, lambda: output.say(f"the route for {removed.target} is removed"))
