"""`gatepost proof` and `gatepost verify`: proofs of messages, for people without a gateway."""

import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from msgspec import Raw, Struct

from gatepost.cli import output
from gatepost.cli.gateway_api import quote_segment
from gatepost.cli.options import (
    DEFAULT_OPTIONS,
    DEFAULT_OUTPUT,
    Flag,
    GatewayOptions,
    OutputOptions,
)
from gatepost.cli.problems import CommandProblem, usage_problem
from gatepost.errors import GatepostError
from gatepost.files import write_file_atomically

if TYPE_CHECKING:
    from gatepost.proof.evidence import ProofFindings

# A proof waits for other gateways, and for their archives.
_WAIT_SECS = 30.0


class WrittenProof(Struct, frozen=True):
    file: str
    bytes: int
    genesis: str
    genesis_key: str


def write_proof(
    id: str,
    /,
    *,
    output_file: Annotated[Path, Parameter(name="--output", alias="-o")],
    with_payload: Annotated[
        Flag, Parameter(help="Let the file show the payloads of the message and its replies.")
    ] = False,
    earlier: Annotated[
        Path | None, Parameter(help="An earlier proof, whose evidence may be gone elsewhere.")
    ] = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Write the proof of a message: a file that can be verified without a gateway.

    It has what gateways signed about the message: the send, the receipts, and the heads that others
    saw. Without --with-payload it does not reveal what the message says.

    For example:

      gatepost proof ID -o proof.json

    Parameters
    ----------
    id
        A message id, as `gatepost send` prints it.
    output_file
        The file to write.
    """
    from gatepost.proof.proof_file import decode_proof

    order = {"with_payload": with_payload, "earlier": None if earlier is None else _read(earlier)}
    with options.find_gateway() as gateway:
        raw = gateway.post(f"/v1/proofs/{quote_segment(id)}", order, Raw, wait=_WAIT_SECS)
    data = bytes(raw)
    genesis = decode_proof(data).genesis
    write_file_atomically(output_file, data)
    written = WrittenProof(str(output_file), len(data), genesis.node, genesis.key.hex())
    output.print_result(options, written, lambda: _print_written(written))


def _print_written(written: WrittenProof) -> None:
    output.print_line(f"{written.file} ({output.format_size(written.bytes)})", "bold")
    output.print_line(f"gatepost verify {written.file} --genesis {written.genesis_key}")
    output.print_hint("Whoever verifies it must get the genesis key of the room from elsewhere.")


def verify_file(
    file: Path,
    /,
    *,
    genesis: Annotated[
        str, Parameter(help="The genesis key of the room, as `gatepost room show` prints it.")
    ],
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Verify the proof of a message, and say what it proves and what it does not.

    Needs no gateway. Exits with 1 if any byte of the file was changed.

    For example:

      gatepost verify proof.json --genesis 64-HEX-DIGITS

    Parameters
    ----------
    file
        A file of `gatepost proof`.
    """
    from gatepost.proof.evidence import report_proof

    try:
        report = report_proof(_read(file), _parse_key(genesis))
    except GatepostError as error:
        raise CommandProblem(error.code, error.message) from None
    output.print_result(options, report, lambda: _print_report(report))


def _parse_key(text: str) -> bytes:
    try:
        key = binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != 32:
        raise usage_problem("--genesis is a key of 64 hexadecimal digits")
    return key


def _read(file: Path) -> bytes:
    from gatepost.proof.proof_file import MAX_PROOF_BYTES

    try:
        with file.open("rb") as opened:
            return opened.read(MAX_PROOF_BYTES + 1)
    except OSError as error:
        raise usage_problem(f"{file} cannot be read: {error.strerror}") from None


def _print_report(report: "ProofFindings") -> None:
    output.print_line(f"{report.event_id}: the proof verifies", "bold green")
    output.print_line(
        f"made by {report.made_by} on {output.format_time(report.made_at)},"
        f" in the room of {report.genesis}"
    )
    output.print_line("Proven:", "bold")
    for sentence in report.proven:
        output.print_line(f"  {sentence}")
    output.print_line("Not proven:", "bold")
    for sentence in report.not_proven:
        output.print_line(f"  {sentence}")
    for event_id, payload in report.payloads.items():
        output.print_line(f"Payload of {event_id}:", "bold")
        # The mark keeps the payload from passing for sentences of this report.
        for line in output.payload_text(payload).splitlines():
            output.print_line(f"  | {line}")
