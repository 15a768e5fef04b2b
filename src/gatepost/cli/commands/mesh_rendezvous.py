"""`gatepost mesh descriptor` and `mesh secret`: how new machines find the mesh and join it."""

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec import Raw

from gatepost.cli import output
from gatepost.cli.options import DEFAULT_OPTIONS, Flag, GatewayOptions
from gatepost.cli.problems import CommandProblem, ExitCode
from gatepost.files import write_file_atomically
from gatepost.gateway.mesh.mesh_views import MeshSecretView
from gatepost.mesh.rendezvous import VerifiedDescriptor, verify_document


def show_descriptor(
    *,
    file: Annotated[Path | None, Parameter(name="--file")] = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Show where the mesh can be reached, or write it to a file.

    The publisher of the mesh signs the descriptor, and every gateway serves it. With
    the file and the join secret a machine can join through any gateway in it. The file
    is no secret.

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

    Whoever has the join secret can join the mesh, until it is replaced. Revoking a
    node replaces it too. Members keep their place.

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
