"""`gatepost archive`: shows the archive and verifies that it is intact."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.extras import install_line
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.cli.progress_bar import ProgressBar
from gatepost.cli.settings import load_settings
from gatepost.config import FILE_NAME, default_settings_path
from gatepost.errors import GatepostError

if TYPE_CHECKING:
    from gatepost.archive.archive_store import ArchiveStore
    from gatepost.archive.manifest import ArchiveManifest
    from gatepost.archive.room_facts import RoomFacts
    from gatepost.archive.verification import ArchiveFinding
    from gatepost.archive.witnessed_heads import WitnessedReach

# The most nodes whose end `archive verify` shows.
_MOST_SHOWN = 20

ArchiveUri = Annotated[str | None, Parameter(show_default=False)]


class NodeArchive(Struct):
    """The archived events of one node."""

    node: str
    events: int
    segments: int
    bytes: int
    archived_through: int
    incarnations: int
    first_at: int | None
    last_at: int | None
    archived_at: int | None


class ArchiveStatus(Struct):
    uri: str
    nodes: list[NodeArchive]


class ArchiveVerification(Struct):
    uri: str
    events: int
    findings: "list[ArchiveFinding]"
    reaches: "list[WitnessedReach]"


def show_archive_status(
    uri: ArchiveUri = None,
    /,
    *,
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Show the archived events of each node.

    For example:

      gatepost archive status
      gatepost archive status /srv/archive --json

    Parameters
    ----------
    uri
        The archive. Default: archive.uri of the settings.
    state_dir
        State directory with the settings. Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    store, manifests = _open_archive(uri, state_dir)
    found = ArchiveStatus(store.root, [_summarize_node(manifest) for manifest in manifests])
    output.print_result(options, found, lambda: _print_status(found))


def verify_archive(
    uri: ArchiveUri = None,
    /,
    *,
    heads: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    state_dir: Path | None = None,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Check every signature, file and chain link.

    Exits with 1 if it finds a problem. An archive cannot prove that it is the newest: of each node
    it shows the highest head that other gateways have seen.

    For example:

      gatepost archive verify
      gatepost archive verify /srv/archive --heads vps-jane.json
      gatepost archive verify s3://bucket/archive --json

    Parameters
    ----------
    uri
        The archive. Default: archive.uri of the settings.
    heads
        Room facts of another gateway (`room/NODE.json` of its archive), with the heads it saw.
    state_dir
        State directory with the settings. Default: $GATEPOST_HOME, else ~/.gatepost.
    """
    from gatepost.archive import verification as checking

    store, manifests = _open_archive(uri, state_dir, lenient=True)
    events = sum(manifest.rows for manifest in manifests)
    try:
        with ProgressBar("verifying", events, options, "messages") as progress:
            told = [_read_heads(file) for file in heads]
            findings = list(checking.verify_archive(store, progress.advance, told))
            reaches = checking.verified_reaches(store, told)
    except GatepostError as error:
        raise CommandProblem(error.code, error.message) from None
    verified = ArchiveVerification(store.root, events, findings, reaches)
    output.print_result(options, verified, lambda: _print_verification(verified))
    return ExitCode.FAILED if findings else ExitCode.OK


def _read_heads(file: Path) -> "RoomFacts":
    from gatepost.archive.room_facts import decode_facts

    try:
        return decode_facts(file.read_bytes(), str(file))
    except OSError as error:
        raise usage_problem(f"{file} cannot be read: {error.strerror}") from None


def _open_archive(
    uri: str | None, state_dir: Path | None, *, lenient: bool = False
) -> "tuple[ArchiveStore, list[ArchiveManifest]]":
    """Open the archive and read its manifests; `lenient` skips unreadable manifests."""
    archive_uri = uri or _configured_uri(state_dir)
    try:
        from gatepost.archive import manifest
        from gatepost.archive.archive_store import ArchiveStore
    except ModuleNotFoundError:
        raise CommandProblem(
            "extra_missing", f"archives need pyarrow: {install_line('archive')}", ExitCode.USAGE
        ) from None
    try:
        store = ArchiveStore.open(archive_uri)
        nodes = manifest.archived_nodes(store)
    except GatepostError as error:
        raise CommandProblem(error.code, error.message, ExitCode.USAGE) from None
    if not nodes:
        raise CommandProblem(
            "not_found", f"{store.root} holds no archive: no segment was archived there yet"
        )
    manifests = []
    for node in nodes:
        try:
            manifests.append(manifest.read_manifest(store, node))
        except GatepostError as error:
            if not lenient:
                raise CommandProblem(error.code, error.message) from None
    return store, [listed for listed in manifests if listed is not None]


def _configured_uri(state_dir: Path | None) -> str:
    if uri := load_settings(state_dir).archive.uri:
        return uri
    file = state_dir / FILE_NAME if state_dir else default_settings_path(os.environ)
    raise usage_problem(
        f"no archive is configured: set archive.uri in {file}, or name an archive:"
        " gatepost archive status /srv/archive"
    )


def _summarize_node(listed: "ArchiveManifest") -> NodeArchive:
    segments = listed.segments
    return NodeArchive(
        listed.node,
        listed.rows,
        len(segments),
        sum(segment.bytes for segment in segments),
        listed.archived_through,
        len(listed.incarnations),
        min((segment.min_created_at for segment in segments), default=None),
        max((segment.max_created_at for segment in segments), default=None),
        segments[-1].archived_at if segments else None,
    )


def _print_status(found: ArchiveStatus) -> None:
    output.print_line(found.uri, "bold")
    rows = [
        (
            n.node,
            n.events,
            n.segments,
            output.format_size(n.bytes),
            n.archived_through,
            "never" if n.archived_at is None else output.format_ago(n.archived_at),
        )
        for n in found.nodes
    ]
    output.print_table(("Node", "Events", "Segments", "Size", "Through", "Archived"), rows)


def _print_verification(verified: ArchiveVerification) -> None:
    if verified.findings:
        rows = [(f.node, f.seq or "", f.rule.value, f.detail) for f in verified.findings]
        output.print_table(("Node", "Seq", "Rule", "Problem"), rows)
    for reach in verified.reaches[:_MOST_SHOWN]:
        output.print_line(f"{reach.node}: {reach.describe()}")
    if len(verified.reaches) > _MOST_SHOWN:
        output.print_line(f"and {len(verified.reaches) - _MOST_SHOWN} more nodes; --json shows all")
    events = f"{output.format_count(verified.events, 'event')} in {verified.uri}"
    if verified.findings:
        findings = output.format_count(len(verified.findings), "finding")
        output.print_line(f"{events}: {findings}", "red")
    else:
        # An older copy of it verifies too.
        output.print_line(f"{events}: authentic; not proven: newest")
