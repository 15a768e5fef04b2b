"""`gatepost mesh status` and `mesh watch`: who is alive, and who leads."""

import sys

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.options import DEFAULT_OPTIONS, GatewayOptions
from gatepost.gateway.mesh.mesh_views import MeshPeerView, MeshStatusView

_WATCH_SECS = 30.0


def show_mesh(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Show which gateways of the mesh are alive, and which one leads.

    For example:

      gatepost mesh status
      gatepost mesh status --json
    """
    with options.find_gateway() as gateway:
        found = gateway.get("/v1/mesh", MeshStatusView)
    output.print_result(options, found, lambda: _print_status(found))


def watch_mesh(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Print the mesh whenever a gateway falls silent, returns or leads, until Ctrl-C.

    For example:

      gatepost mesh watch
      gatepost mesh watch --json
    """
    with options.find_gateway() as gateway:
        seen = -1
        while True:
            seen = _print_next(gateway, seen, options)


def _print_next(gateway: CliGateway, seen: int, options: GatewayOptions) -> int:
    """Wait for a change after the one that was seen last, and print it."""
    found = gateway.get("/v1/mesh", MeshStatusView, _WATCH_SECS, seen=seen, wait_secs=_WATCH_SECS)
    if found.changes != seen:
        output.print_result(options, found, lambda: _print_change(found))
        sys.stdout.flush()
    return found.changes


def _print_status(found: MeshStatusView) -> None:
    output.print_line(_describe_leader(found))
    if found.transport == "off":
        output.print_hint('this gateway is in no mesh: set transport = "udp" in [mesh]')
        return
    rows = [_peer_row(peer) for peer in found.peers]
    columns = ("Node", "State", "Role", "May lead", "Priority", "Silent", "Address")
    output.print_table(columns, [_own_row(found), *rows])
    refused = ", ".join(f"{count} {reason}" for reason, count in found.refused.items())
    output.print_hint(
        f"{found.received} datagrams came, {found.sent} were sent; refused: {refused or 'none'}"
    )


def _describe_leader(found: MeshStatusView) -> str:
    term = "" if found.term is None else f", term {found.term.counter} of {found.term.node}"
    leader = "nobody leads" if found.publisher is None else f"{found.publisher} leads"
    return f"{leader}{term}; this gateway, {found.node}, is {found.state}"


def _own_row(found: MeshStatusView) -> tuple[object, ...]:
    role = "publisher" if found.publisher == found.node else "standby"
    may_lead = "yes" if found.may_lead else "no"
    return found.node, "this one", role, may_lead, str(found.priority), "", found.address


def _peer_row(peer: MeshPeerView) -> tuple[object, ...]:
    return (
        peer.node,
        peer.state,
        peer.role,
        "yes" if peer.may_lead else "no",
        "" if peer.priority is None else str(peer.priority),
        f"{peer.silent_secs:.0f} s",
        peer.address,
    )


def _print_change(found: MeshStatusView) -> None:
    """One line: the leader, and the peers by state."""
    states: dict[str, list[str]] = {}
    for peer in found.peers:
        states.setdefault(peer.state, []).append(peer.node)
    peers = "; ".join(f"{state}: {', '.join(nodes)}" for state, nodes in sorted(states.items()))
    output.print_line(f"{_describe_leader(found)}{'; ' if peers else ''}{peers}")
