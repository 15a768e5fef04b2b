"""`gatepost migrate`: moves from a legacy shared document to this gateway, in phases."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter

from gatepost import migration
from gatepost.cli import output
from gatepost.cli.gateway_api import choose_context_name
from gatepost.cli.options import DEFAULT_OPTIONS, Flag, GatewayOptions
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.cli.settings import load_settings
from gatepost.client import Client, locator
from gatepost.clock import SystemClock
from gatepost.connect.gateway_endpoint import LocateGateway
from gatepost.errors import DeadlineExceeded, GatepostError, Unavailable
from gatepost.events import check_agent_id
from gatepost.migration import AgentNames, ImportPlan, MigrationFolder, OutcomeClient, phase_marker
from gatepost.migration.legacy_records import LegacyKind
from gatepost.migration.phase_marker import MigrationPhase

T = TypeVar("T")

_CLOCK = SystemClock()
_MAX_UNANSWERED = 256
# Pause before a gateway that is away is asked again.
_AWAY_SECS = 1.0

MapAgentOption = Annotated[
    tuple[str, ...],
    Parameter(help="Rename a legacy agent, as OLD=NEW; repeat the option for several."),
]
DumpFileArgument = Annotated[
    Path, Parameter(help="The legacy document: a Yjs state dump, or its JSON export.")
]


def import_dump(
    dump: DumpFileArgument,
    /,
    *,
    dry_run: Flag = False,
    map_agent: MapAgentOption = (),
    only: LegacyKind | None = None,
    from_: str = "legacy",
    ttl_days: float = 30.0,
    history: Path | None = None,
    rejects: Path | None = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Import every undelivered message and task of a legacy document.

    Items that were imported before are skipped. After cut-over nothing is imported:
    the command only reports the contents of the dump, and exits with 1 if items are
    left behind.

    For example:

      gatepost migrate import dump.json --dry-run
      gatepost migrate import dump.bin --map-agent "Jane's Mac=mbp-jane"
      gatepost migrate import dump.bin --only tasks --history done.jsonl

    Parameters
    ----------
    dry_run
        Only report, with the gateway's refusals; import nothing.
    only
        Import only messages, or only tasks.
    from_
        The sender of items that name none.
    ttl_days
        Days after which imported mail expires if its agent does not take it.
    history
        File for items that were delivered or finished already, one JSON object per line.
    rejects
        File for items that were not understood or not accepted. Default: in the state directory.
    """
    folder, plan = (
        _migration_folder(options),
        _build_plan(map_agent, from_, ttl_days, history, rejects),
    )
    found = migration.read_dump(dump, only)
    if _is_cut_over(folder):
        report = migration.survey_dump(folder, found, plan, _CLOCK)
    elif dry_run:
        report = _run_async(_rehearse_import(options, folder, found, plan))
    else:
        report = _run_async(_import_into_gateway(options, folder, found, plan))
    output.print_result(options, _report_document(report), lambda: _print_report(report))
    left_behind = report.dry_run and not dry_run and report.total.imported
    return ExitCode.FAILED if left_behind else ExitCode.OK


async def _rehearse_import(
    options: GatewayOptions, folder: MigrationFolder, dump: migration.LegacyDump, plan: ImportPlan
) -> migration.ImportSummary:
    async with _open_lookup(options) as lookup:
        return await migration.rehearse_import(lookup, folder, dump, plan, _CLOCK)


async def _import_into_gateway(
    options: GatewayOptions, folder: MigrationFolder, dump: migration.LegacyDump, plan: ImportPlan
) -> migration.ImportSummary:
    async with _new_client(options) as client:
        return await migration.import_dump(client, folder, dump, plan, _CLOCK)


def follow_legacy(
    source: str,
    /,
    *,
    map_agent: MapAgentOption = (),
    from_: str = "legacy",
    ttl_days: float = 30.0,
    rejects: Path | None = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Import new items of the legacy document as they appear, until Ctrl-C.

    The document is only read. Use it while old writers remain: their messages and
    tasks reach the gateway within a second.

    For example:

      gatepost migrate follow export.json
      gatepost migrate follow ws://old-host:1234/ansible

    Parameters
    ----------
    source
        A file that is exported again and again, or the address of a y-websocket room.
    from_
        The sender of items that name none.
    ttl_days
        Days after which imported mail expires if its agent does not take it.
    rejects
        File for items that were not understood or not accepted. Default: in the state directory.
    """
    plan = _build_plan(map_agent, from_, ttl_days, None, rejects)
    _run_async(_follow_source(options, source, plan))


async def _follow_source(options: GatewayOptions, source: str, plan: ImportPlan) -> None:
    folder = _migration_folder(options)
    async with _new_client(options) as client:
        await client.status()
        print(f"following {source}; Ctrl-C stops", file=sys.stderr, flush=True)
        async for dump in migration.follow_document(source):
            work = partial(migration.import_dump, client, folder, dump, plan, _CLOCK)
            _print_followed(await anext(_repeat_while_away(work)), options)


def _print_followed(report: migration.ImportSummary, options: GatewayOptions) -> None:
    total = report.total
    text = f"{total.imported} imported, {total.already} imported before, {total.rejected} rejected"
    output.print_result(options, _report_document(report), lambda: output.print_line(text))
    sys.stdout.flush()


def verify_migration(
    dump: DumpFileArgument,
    /,
    *,
    map_agent: MapAgentOption = (),
    only: LegacyKind | None = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Check that every item of a legacy document is at the gateway exactly once.

    Exits with 1 if not.

    For example:

      gatepost migrate verify dump.bin

    Parameters
    ----------
    only
        Check only messages, or only tasks.
    """
    names, found = AgentNames(_parse_agent_map(map_agent)), migration.read_dump(dump, only)
    proof = _run_async(_verify_at_gateway(options, found, names))
    document = msgspec.to_builtins(proof) | {"holds": proof.is_complete}
    output.print_result(options, document, lambda: _print_proof(proof))
    return ExitCode.OK if proof.is_complete else ExitCode.FAILED


async def _verify_at_gateway(
    options: GatewayOptions, dump: migration.LegacyDump, names: AgentNames
) -> migration.ImportProof:
    async with _open_lookup(options) as lookup:
        return await migration.verify_import(
            lookup, _migration_folder(options), dump, names, _CLOCK
        )


def cut_over_migration(
    dump: DumpFileArgument,
    /,
    *,
    leave_rejects: Flag = False,
    map_agent: MapAgentOption = (),
    from_: str = "legacy",
    ttl_days: float = 30.0,
    history: Path | None = None,
    rejects: Path | None = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Import for the last time, verify, and end dual-write.

    The cut-over is recorded only if the verification succeeds. It can be repeated
    with a newer dump.

    For example:

      gatepost migrate cut-over dump.bin
      gatepost migrate cut-over dump.bin --leave-rejects

    Parameters
    ----------
    leave_rejects
        Cut over although items were rejected; they stay in the rejects file.
    from_
        The sender of items that name none.
    ttl_days
        Days after which imported mail expires if its agent does not take it.
    history
        File for items that were delivered or finished already, one JSON object per line.
    rejects
        File for items that were not understood or not accepted. Default: in the state directory.
    """
    plan = _build_plan(map_agent, from_, ttl_days, history, rejects)
    done = _run_async(
        _run_cut_over(options, migration.read_dump(dump), plan, leave_rejects=leave_rejects)
    )
    document = {"report": _report_document(done.report), "proof": done.proof, "marker": done.marker}
    output.print_result(options, document, lambda: _print_cut_over(done))


async def _run_cut_over(
    options: GatewayOptions, dump: migration.LegacyDump, plan: ImportPlan, *, leave_rejects: bool
) -> migration.CutOverResult:
    async with _new_client(options) as client, _open_lookup(options) as lookup:
        folder = _migration_folder(options)
        parts = (client, lookup, folder, dump, plan, _CLOCK)
        done = await migration.cut_over(*parts, leave_rejects=leave_rejects)
    await _switch_mirror_off(options, folder)
    return done


class DualWriteLine(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A line of standard input: one message."""

    to: str
    payload: Any
    from_: str = msgspec.field(name="from", default="cli")
    corr_id: str | None = None
    idempotency_key: str | None = None


def dual_write_stdin(*, out: Path, options: GatewayOptions = DEFAULT_OPTIONS) -> int:
    """Send messages to the gateway and write them to the legacy document too.

    Reads one JSON object per line: {"from": "a", "to": "b", "payload": …},
    optionally with "corrId" and "idempotencyKey". Prints a line with the event id
    once both sides have the message. Messages of an interrupted run are finished
    first.

    For example:

      gatepost migrate dual-write --out legacy.json < messages.jsonl

    Parameters
    ----------
    out
        The legacy document: JSON if its name ends in .json, else a Yjs state dump.
    """
    failed = _run_async(_dual_write_lines(options, out))
    return ExitCode.FAILED if failed else ExitCode.OK


async def _dual_write_lines(options: GatewayOptions, out: Path) -> int:
    """Send lines as they arrive, print the answers in their order; returns the failures."""
    failed = 0
    async with (
        _new_client(options) as client,
        migration.LegacyMirror(client, _migration_folder(options), out, _CLOCK) as mirror,
    ):
        answers: asyncio.Queue[asyncio.Task[dict[str, Any]] | None] = asyncio.Queue(_MAX_UNANSWERED)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(_submit_lines(mirror, answers, group))
            while (answer := await answers.get()) is not None:
                result = await answer
                failed += "error" in result
                print(msgspec.json.encode(result).decode(), flush=True)
            await reading
    return failed


async def _submit_lines(
    mirror: migration.LegacyMirror,
    answers: "asyncio.Queue[asyncio.Task[dict[str, Any]] | None]",
    group: asyncio.TaskGroup,
) -> None:
    number = 0
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        number += 1
        if line.strip():
            await answers.put(group.create_task(_send_line(mirror, number, line)))
    await answers.put(None)


async def _send_line(mirror: migration.LegacyMirror, number: int, line: bytes) -> dict[str, Any]:
    try:
        new = msgspec.json.decode(line, type=DualWriteLine)
        event_id = await mirror.send(
            new.to,
            new.payload,
            from_=new.from_,
            corr_id=new.corr_id,
            idempotency_key=new.idempotency_key,
        )
    except msgspec.MsgspecError as error:
        return {"line": number, "error": {"code": "invalid_request", "message": str(error)}}
    except GatepostError as error:
        return {"line": number, "error": {"code": error.code, "message": error.message}}
    return {"line": number, "eventId": event_id}


def mirror_sends(
    *,
    out: Path | None = None,
    off: Flag = False,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> None:
    """Write every message sent through the gateway to the legacy document too, until Ctrl-C.

    Senders change nothing. After Ctrl-C the gateway still keeps a copy of each message for the next
    run; --off stops that and drops the copies.

    For example:

      gatepost migrate mirror --out legacy.json
      gatepost migrate mirror --off

    Parameters
    ----------
    out
        The legacy document: JSON if its name ends in .json, else a Yjs state dump.
    off
        Stop keeping copies.
    """
    if off == (out is not None):
        raise usage_problem("name the legacy document with --out, or stop with --off")
    if out is not None:
        _run_async(_mirror_until_stopped(options, out))
        return
    _run_async(_switch_mirror_off(options, _migration_folder(options)))
    output.print_result(options, {"on": False}, lambda: output.print_line("the mirror is off"))


async def _switch_mirror_off(options: GatewayOptions, folder: MigrationFolder) -> None:
    async with _open_mirror(options, folder, Path()) as mirror:
        await mirror.switch(on=False)


async def _mirror_until_stopped(options: GatewayOptions, out: Path) -> None:
    async with _open_mirror(options, _migration_folder(options), out) as mirror:
        async with _new_client(options) as client:
            await mirror.open((await client.status()).node_id)
        print(f"mirroring to {out}; Ctrl-C stops", file=sys.stderr, flush=True)
        async for count in _repeat_while_away(mirror.copy_page):
            if count:
                text = f"{output.format_count(count, 'message')} mirrored"
                output.print_result(options, {"count": count}, partial(output.print_line, text))
                sys.stdout.flush()


@asynccontextmanager
async def _open_mirror(
    options: GatewayOptions, folder: MigrationFolder, out: Path
) -> AsyncIterator[migration.SendMirror]:
    locate = _locate(options)
    mirror = migration.SendMirror(locate, folder, out, _CLOCK)
    try:
        yield mirror
    finally:
        await mirror.close()


async def _repeat_while_away(step: Callable[[], Awaitable[T]]) -> AsyncIterator[T]:
    """Repeat a step for ever and yield its results; wait while the gateway is away."""
    problem = ""
    while True:
        try:
            result = await step()
        except (Unavailable, DeadlineExceeded) as error:
            if error.message != problem:
                print(f"waiting: {error.message}", file=sys.stderr, flush=True)
            problem = error.message
            await asyncio.sleep(_AWAY_SECS)
        else:
            problem = ""
            yield result


def show_migration_status(*, options: GatewayOptions = DEFAULT_OPTIONS) -> int:
    """Show the phase of the migration, and whether both sides of a dual-write agree.

    Exits with 1 if they do not.

    For example:

      gatepost migrate status
    """
    folder = _migration_folder(options)
    marker = phase_marker.load_marker(folder)
    mirror = marker and marker.mirror
    difference = migration.compare_mirror(folder, Path(mirror), _CLOCK) if mirror else None
    document = {"marker": marker, "dual_write": difference}
    output.print_result(options, document, lambda: _print_status(marker, difference))
    # After cut-over only the gateway gets messages, so the two sides are expected to differ.
    matters = marker is not None and marker.phase is MigrationPhase.DUAL_WRITE
    return ExitCode.FAILED if matters and difference and not difference.is_equal else ExitCode.OK


# -- printing


def _report_document(report: migration.ImportSummary) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(report)
    total = report.total
    return built | {"total": msgspec.to_builtins(total), "balanced": total.is_balanced}


def _print_report(report: migration.ImportSummary) -> None:
    rows = [("messages", report.messages), ("tasks", report.tasks), ("total", report.total)]
    verb = "Would import" if report.dry_run else "Imported"
    columns = ("", "Read", verb, "Already", "History", "Rejected")
    output.print_table(columns, [(name, *msgspec.structs.astuple(counts)) for name, counts in rows])
    if not report.total.is_balanced:
        output.print_line("the counts do not add up", "red")
    for code, count in sorted(report.reasons.items()):
        output.print_line(f"rejected: {count} {code}")
    if report.rejects_file:
        output.print_line(f"rejects are in {report.rejects_file}")
    if report.unmapped:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(report.unmapped.items()))
        output.print_line(f"message fields that were not imported: {names}")
    if report.others:
        output.print_line(
            f"maps that hold state, not messages or tasks: {', '.join(report.others)}"
        )


def _print_proof(proof: migration.ImportProof) -> None:
    output.print_table(
        ("Read", "Imported", "History", "Rejected", "Left", "Missing", "Doubled"),
        [
            (
                proof.read,
                proof.imported,
                proof.history,
                proof.rejected,
                len(proof.left),
                len(proof.missing),
                len(proof.doubled),
            )
        ],
    )
    for outcome, count in sorted(proof.outcomes.items()):
        output.print_line(f"imported, now {outcome}: {count}")
    for problem in ("left", "missing", "doubled"):
        for name in getattr(proof, problem):
            output.print_line(f"{problem}: {name}")
    output.print_line(
        "verified" if proof.is_complete else "not verified", "" if proof.is_complete else "red"
    )


def _print_cut_over(done: migration.CutOverResult) -> None:
    _print_report(done.report)
    _print_proof(done.proof)
    output.print_line("cut over: only the gateway carries messages now")


def _print_status(
    marker: migration.PhaseMarker | None, both: migration.MirrorDifference | None
) -> None:
    if marker is None:
        output.print_line("no migration has started here: run `gatepost migrate import DUMP`")
        return
    output.print_line(f"{marker.phase}, to {marker.node_id}, {output.format_ago(marker.at)}")
    if marker.counts is not None:
        columns = ("Read", "Imported", "Already", "History", "Rejected")
        output.print_table(columns, [msgspec.structs.astuple(marker.counts)])
    if both is not None:
        output.print_line(
            f"dual-write: {both.gateway} at the gateway, {both.legacy} in {marker.mirror}"
        )
        for side, ids in (("gateway", both.only_gateway), ("legacy", both.only_legacy)):
            for id in ids:
                output.print_line(f"only {side}: {id}")
        if both.interrupted:
            output.print_line(
                f"{both.interrupted} were interrupted; the next dual-write finishes them"
            )


# -- arguments and connections


def _build_plan(
    map_agent: tuple[str, ...],
    sender: str,
    ttl_days: float,
    history: Path | None,
    rejects: Path | None,
) -> ImportPlan:
    names = AgentNames(_parse_agent_map(map_agent), check_agent_id(sender))
    return ImportPlan(names, ttl_days * 86_400, rejects, history)


def _parse_agent_map(pairs: tuple[str, ...]) -> dict[str, str]:
    renamed = {}
    for pair in pairs:
        old, separator, new = pair.rpartition("=")
        if not separator or not old:
            raise usage_problem(f"{pair!r} is not a renaming: write --map-agent OLD=NEW")
        renamed[old] = check_agent_id(new)
    return renamed


def _migration_folder(options: GatewayOptions) -> MigrationFolder:
    if options.state_dir is not None:
        return MigrationFolder(options.state_dir.absolute())
    return MigrationFolder(load_settings().node.state_dir)


def _is_cut_over(folder: MigrationFolder) -> bool:
    marker = phase_marker.load_marker(folder)
    return marker is not None and marker.phase is MigrationPhase.CUT_OVER


def _locate(options: GatewayOptions) -> LocateGateway:
    return locator(
        options.state_dir,
        options.url,
        token_file=options.token_file,
        context=choose_context_name(options, os.environ),
    )


def _new_client(options: GatewayOptions) -> Client:
    return Client(
        state_dir=options.state_dir,
        url=options.url,
        token_file=options.token_file,
        context=choose_context_name(options, os.environ),
    )


@asynccontextmanager
async def _open_lookup(options: GatewayOptions) -> AsyncIterator[OutcomeClient]:
    target = _locate(options)()
    async with OutcomeClient(target) as lookup:
        yield lookup


def _run_async(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except Unavailable as error:
        raise CommandProblem(error.code, error.message, ExitCode.UNREACHABLE) from None
