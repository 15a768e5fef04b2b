"""`gatepost mesh`: who is alive and who leads, where the mesh is reached, and its join secret."""

import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import Raw

from gatepost.cli import output
from gatepost.cli.gateway_api import CliGateway
from gatepost.cli.options import DEFAULT_OPTIONS, Flag, GatewayOptions
from gatepost.cli.problems import CommandProblem, ExitCode
from gatepost.files import write_file_atomically
from gatepost.mesh.election_states import describe_leader
from gatepost.mesh.rendezvous import VerifiedDescriptor, verify_document
from gatepost.wire.mesh_views import MeshPeerView, MeshSecretView, MeshStatusView

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


def release_lease(*, options: GatewayOptions = DEFAULT_OPTIONS) -> None:
    """Hand the lease of the mesh over to the next gateway, without suspicion and grace.

    For the gateway that leads now, for example before its machine is maintained. It
    does not claim the lease again for `mesh.suspect_secs`, and not while another leads.

    For example:

      gatepost mesh release
    """
    with options.find_gateway() as gateway:
        found = gateway.post("/v1/mesh/release", {}, MeshStatusView)
    output.print_result(options, found, lambda: output.print_line(_describe_leader(found)))


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
    output.print_problems(found.problems)
    output.print_line(_describe_leader(found))
    if found.transport == "off":
        output.print_hint('set transport = "udp" in [mesh] to take part in a mesh')
        return
    rows = [_peer_row(peer) for peer in found.peers]
    columns = ("Node", "State", "Role", "May lead", "Priority", "Silent", "Address")
    output.print_table(columns, [_own_row(found), *rows])
    refused = ", ".join(f"{count} {reason}" for reason, count in found.refused.items())
    output.print_hint(
        f"{found.received} datagrams came, {found.sent} were sent; refused: {refused or 'none'}"
    )


def _describe_leader(found: MeshStatusView) -> str:
    if found.transport == "off":
        leader = f"{found.publisher} leads, as the genesis of the room" if found.publisher else ""
        return f"{leader or 'there is no room yet'}; {found.node}, this gateway, is in no mesh"
    counter = None if found.term is None else found.term.counter
    return describe_leader(found.node, found.publisher, found.state, counter)


def _own_row(found: MeshStatusView) -> tuple[object, ...]:
    role = "publisher" if found.publisher == found.node else "standby"
    may_lead = ("not now" if found.is_barred else "yes") if found.may_lead else "no"
    return found.node, "this one", role, may_lead, str(found.priority), "", found.address


def _peer_row(peer: MeshPeerView) -> tuple[object, ...]:
    return (
        peer.node,
        peer.state_text,
        peer.role,
        ("not now" if peer.is_barred else "yes") if peer.may_lead else "no",
        "" if peer.priority is None else str(peer.priority),
        f"{peer.silent_secs:.0f} s",
        peer.address,
    )


def _print_change(found: MeshStatusView) -> None:
    """The problems, and one line with the leader and the state of each peer."""
    output.print_problems(found.problems)
    peers = [f"{peer.node} {peer.state_text}" for peer in found.peers]
    output.print_line("; ".join([_describe_leader(found), *peers]))


def show_descriptor(
    *,
    file: Annotated[Path | None, Parameter(name="--file")] = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Show where the mesh can be reached, or write it to a file.

    The publisher of the mesh signs the descriptor, and every gateway serves it. With the file and
    the join secret a machine can join through any gateway in it. The file is not secret.

    For example:

      gatepost mesh descriptor
      gatepost mesh descriptor --file descriptor.json

    Parameters
    ----------
    file
        Write the descriptor here, for `gatepost join --via FILE`.
    """
    with options.find_gateway() as gateway:
        document = bytes(gateway.get("/v1/mesh/descriptor", Raw))
    verified = verify_document(document, time.time_ns() // 1_000_000)
    if file is not None:
        _write_file(file, document, mode=0o644)
    output.print_result(options, Raw(document), lambda: _print_descriptor(verified, file))


def _print_descriptor(descriptor: VerifiedDescriptor, file: Path | None) -> None:
    rows = [
        (point.node, point.tier, point.endpoint_ws or "", point.onion or "")
        for point in descriptor.data.points
    ]
    output.print_table(("Node", "Tier", "Address", "Onion service"), rows)
    until = output.format_time(descriptor.data.expires_at)
    output.print_hint(
        f"version {descriptor.version}, published by {descriptor.publisher}, valid until {until}"
    )
    if file is not None:
        output.print_hint(f"written to {file}; use it with `gatepost join --via {file}`")


def show_join_secret(
    *,
    file: Annotated[Path | None, Parameter(name="--file")] = None,
    rotate: Flag = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Write the secret by which machines join without an invite, or replace it.

    Anyone with the join secret can join the mesh, until it is replaced. Revoking a node replaces it
    too. Members keep their place.

    For example:

      gatepost mesh secret --file join-secret
      gatepost mesh secret --rotate

    Parameters
    ----------
    file
        Write the join secret to this file, readable by you alone. Default: print it.
    rotate
        Replace the secrets of the mesh first. All members get the new ones.
    """
    with options.find_gateway() as gateway:
        if rotate:
            found = gateway.post("/v1/mesh/secrets/rotate", {}, MeshSecretView)
        else:
            found = gateway.get("/v1/mesh/secrets", MeshSecretView)
    if file is not None:
        _write_file(file, f"{found.join_secret}\n".encode(), mode=0o600)
        note = f"version {found.version} is in {file}; hand it over like a password"
        shown = {"version": found.version, "file": str(file)}
        output.print_result(options, shown, lambda: output.print_line(note))
    else:
        output.print_result(options, found, lambda: output.print_line(found.join_secret))


def _write_file(file: Path, content: bytes, *, mode: int) -> None:
    try:
        write_file_atomically(file, content, mode)
    except OSError as error:
        problem = f"{file} cannot be written: {error.strerror}"
        raise CommandProblem("usage", problem, ExitCode.USAGE) from None
