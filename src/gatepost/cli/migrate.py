"""`gatepost migrate`: moves from a legacy shared document to this gateway, in phases."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter

from gatepost import migration
from gatepost.cli import output
from gatepost.cli.options import OPTIONS, Flag, Options
from gatepost.cli.problems import Exit, Problem, usage
from gatepost.client import Client, locator
from gatepost.clock import SystemClock
from gatepost.config import Settings, default_settings_path
from gatepost.errors import GatepostError, Unavailable
from gatepost.events import check_agent_id
from gatepost.migration import AgentNames, ImportPlan, MigrationFolder, OutcomeClient, phase_marker
from gatepost.migration.legacy_records import LegacyKind
from gatepost.migration.phase_marker import MigrationPhase

T = TypeVar("T")

_CLOCK = SystemClock()
_AT_ONCE = 256

MapAgent = Annotated[
    tuple[str, ...],
    Parameter(help="Rename a legacy agent, as OLD=NEW; repeat the option for several."),
]
DumpFile = Annotated[
    Path, Parameter(help="The legacy document: a Yjs state dump, or its JSON export.")
]


def import_(
    dump: DumpFile,
    /,
    *,
    dry_run: Flag = False,
    map_agent: MapAgent = (),
    only: LegacyKind | None = None,
    from_: str = "legacy",
    ttl_days: float = 30.0,
    history: Path | None = None,
    rejects: Path | None = None,
    options: Options = OPTIONS,
) -> int:
    """Import undelivered messages and tasks.

    Parameters
    ----------
    dry_run
        Only report; import nothing.
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
    folder, plan = _folder(options), _plan(map_agent, from_, ttl_days, history, rejects)
    found = migration.read_dump(dump, only)
    if dry_run or _is_cut_over(folder):
        report = migration.survey_dump(folder, found, plan, _CLOCK)
    else:
        report = _run(_import(options, folder, found, plan))
    output.show(options, _document(report), lambda: _print_report(report))
    left_behind = report.dry_run and not dry_run and report.total.imported
    return Exit.FAILED if left_behind else Exit.OK


async def _import(
    options: Options, folder: MigrationFolder, dump: migration.LegacyDump, plan: ImportPlan
) -> migration.ImportReport:
    async with _client(options) as client:
        return await migration.import_dump(client, folder, dump, plan, _CLOCK)


def verify(
    dump: DumpFile,
    /,
    *,
    map_agent: MapAgent = (),
    only: LegacyKind | None = None,
    options: Options = OPTIONS,
) -> int:
    """Check that every item of a dump is at the gateway exactly once.

    Parameters
    ----------
    only
        Check only messages, or only tasks.
    """
    names, found = AgentNames(_renamed(map_agent)), migration.read_dump(dump, only)
    proof = _run(_verify(options, found, names))
    document = msgspec.to_builtins(proof) | {"holds": proof.is_complete}
    output.show(options, document, lambda: _print_proof(proof))
    return Exit.OK if proof.is_complete else Exit.FAILED


async def _verify(
    options: Options, dump: migration.LegacyDump, names: AgentNames
) -> migration.ImportProof:
    async with _lookup(options) as lookup:
        return await migration.verify_import(lookup, _folder(options), dump, names, _CLOCK)


def cut_over(
    dump: DumpFile,
    /,
    *,
    leave_rejects: Flag = False,
    map_agent: MapAgent = (),
    from_: str = "legacy",
    ttl_days: float = 30.0,
    history: Path | None = None,
    rejects: Path | None = None,
    options: Options = OPTIONS,
) -> None:
    """Import for the last time, verify, and end dual-write.

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
    plan = _plan(map_agent, from_, ttl_days, history, rejects)
    done = _run(_cut_over(options, migration.read_dump(dump), plan, leave_rejects=leave_rejects))
    document = {"report": _document(done.report), "proof": done.proof, "marker": done.marker}
    output.show(options, document, lambda: _print_cut_over(done))


async def _cut_over(
    options: Options, dump: migration.LegacyDump, plan: ImportPlan, *, leave_rejects: bool
) -> migration.CutOverResult:
    async with _client(options) as client, _lookup(options) as lookup:
        parts = (client, lookup, _folder(options), dump, plan, _CLOCK)
        return await migration.cut_over(*parts, leave_rejects=leave_rejects)


class Line(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A line of standard input: one message."""

    to: str
    payload: Any
    from_: str = msgspec.field(name="from", default="cli")
    corr_id: str | None = None
    idempotency_key: str | None = None


def dual_write(*, out: Path, options: Options = OPTIONS) -> int:
    """Send messages from standard input to the gateway and to the legacy document.

    Parameters
    ----------
    out
        The legacy document: JSON if its name ends in .json, else a Yjs state dump.
    """
    failed = _run(_dual_write(options, out))
    return Exit.FAILED if failed else Exit.OK


async def _dual_write(options: Options, out: Path) -> int:
    """Send lines as they arrive, print the answers in their order; returns the failures."""
    failed = 0
    async with (
        _client(options) as client,
        migration.LegacyMirror(client, _folder(options), out, _CLOCK) as mirror,
    ):
        answers: asyncio.Queue[asyncio.Task[dict[str, Any]] | None] = asyncio.Queue(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(_read_lines(mirror, answers, group))
            while (answer := await answers.get()) is not None:
                result = await answer
                failed += "error" in result
                print(msgspec.json.encode(result).decode(), flush=True)
            await reading
    return failed


async def _read_lines(
    mirror: migration.LegacyMirror,
    answers: "asyncio.Queue[asyncio.Task[dict[str, Any]] | None]",
    group: asyncio.TaskGroup,
) -> None:
    number = 0
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        number += 1
        if line.strip():
            await answers.put(group.create_task(_answer(mirror, number, line)))
    await answers.put(None)


async def _answer(mirror: migration.LegacyMirror, number: int, line: bytes) -> dict[str, Any]:
    try:
        new = msgspec.json.decode(line, type=Line)
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


def status(*, options: Options = OPTIONS) -> int:
    """Show the phase, the counts, and the differences between both sides of a dual-write."""
    folder = _folder(options)
    marker = phase_marker.load_marker(folder)
    mirror = marker and marker.mirror
    difference = migration.compare_mirror(folder, Path(mirror), _CLOCK) if mirror else None
    document = {"marker": marker, "dual_write": difference}
    output.show(options, document, lambda: _print_status(marker, difference))
    # After cut-over only the gateway gets messages, so the two sides are expected to differ.
    matters = marker is not None and marker.phase is MigrationPhase.DUAL_WRITE
    return Exit.FAILED if matters and difference and not difference.is_equal else Exit.OK


# -- printing


def _document(report: migration.ImportReport) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(report)
    total = report.total
    return built | {"total": msgspec.to_builtins(total), "balanced": total.is_balanced}


def _print_report(report: migration.ImportReport) -> None:
    rows = [("messages", report.messages), ("tasks", report.tasks), ("total", report.total)]
    verb = "Would import" if report.dry_run else "Imported"
    columns = ("", "Read", verb, "Already", "History", "Rejected")
    output.table(columns, [(name, *msgspec.structs.astuple(counts)) for name, counts in rows])
    if not report.total.is_balanced:
        output.say("the counts do not add up", "red")
    for code, count in sorted(report.reasons.items()):
        output.say(f"rejected: {count} {code}")
    if report.rejects_file:
        output.say(f"rejects are in {report.rejects_file}")
    if report.unmapped:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(report.unmapped.items()))
        output.say(f"message fields that were not imported: {names}")
    if report.others:
        output.say(f"maps that hold state, not messages or tasks: {', '.join(report.others)}")


def _print_proof(proof: migration.ImportProof) -> None:
    output.table(
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
        output.say(f"imported, now {outcome}: {count}")
    for problem in ("left", "missing", "doubled"):
        for name in getattr(proof, problem):
            output.say(f"{problem}: {name}")
    output.say(
        "verified" if proof.is_complete else "not verified", "" if proof.is_complete else "red"
    )


def _print_cut_over(done: migration.CutOverResult) -> None:
    _print_report(done.report)
    _print_proof(done.proof)
    output.say("cut over: only the gateway carries messages now")


def _print_status(
    marker: migration.PhaseMarker | None, both: migration.MirrorDifference | None
) -> None:
    if marker is None:
        output.say("no migration has started here: run `gatepost migrate import DUMP`")
        return
    output.say(f"{marker.phase}, to {marker.node_id}, {output.age(marker.at / 1000)} ago")
    if marker.counts is not None:
        columns = ("Read", "Imported", "Already", "History", "Rejected")
        output.table(columns, [msgspec.structs.astuple(marker.counts)])
    if both is not None:
        output.say(f"dual-write: {both.gateway} at the gateway, {both.legacy} in {marker.mirror}")
        for side, ids in (("gateway", both.only_gateway), ("legacy", both.only_legacy)):
            for id in ids:
                output.say(f"only {side}: {id}")
        if both.interrupted:
            output.say(f"{both.interrupted} were interrupted; the next dual-write finishes them")


# -- arguments and connections


def _plan(
    map_agent: tuple[str, ...],
    sender: str,
    ttl_days: float,
    history: Path | None,
    rejects: Path | None,
) -> ImportPlan:
    names = AgentNames(_renamed(map_agent), check_agent_id(sender))
    return ImportPlan(names, ttl_days * 86_400, rejects, history)


def _renamed(pairs: tuple[str, ...]) -> dict[str, str]:
    renamed = {}
    for pair in pairs:
        old, separator, new = pair.rpartition("=")
        if not separator or not old:
            raise usage(f"{pair!r} is not a renaming: write --map-agent OLD=NEW")
        renamed[old] = check_agent_id(new)
    return renamed


def _folder(options: Options) -> MigrationFolder:
    if options.state_dir is not None:
        return MigrationFolder(options.state_dir.absolute())
    file = default_settings_path(os.environ)
    return MigrationFolder(
        Settings.load(file if file.exists() else None, os.environ).node.state_dir
    )


def _is_cut_over(folder: MigrationFolder) -> bool:
    marker = phase_marker.load_marker(folder)
    return marker is not None and marker.phase is MigrationPhase.CUT_OVER


def _token(options: Options) -> str | None:
    if options.token_file is None:
        return None
    try:
        return options.token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise usage(f"{options.token_file} cannot be read") from None


def _client(options: Options) -> Client:
    return Client(state_dir=options.state_dir, url=options.url, token=_token(options))


@asynccontextmanager
async def _lookup(options: Options) -> AsyncIterator[OutcomeClient]:
    target = locator(options.state_dir, options.url, _token(options))()
    async with OutcomeClient(target) as lookup:
        yield lookup


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except Unavailable as error:
        raise Problem(error.code, error.message, Exit.UNREACHABLE) from None
