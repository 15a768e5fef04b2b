"""`gatepost pipeline`: jobs that build tables from the archive, and compact them."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.commands.pipeline_audit import (
    AUDIT_EXITS,
    AuditDocument,
    archived_rows,
    make_document,
    print_audit,
)
from gatepost.cli.commands.pipeline_report import print_report, save_page
from gatepost.cli.options import DEFAULT_OUTPUT, Flag, OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode
from gatepost.cli.spark_jobs import (
    DEFAULT_LOCATIONS,
    JobLocations,
    JobRunner,
    PositiveCount,
    open_runner,
    stored_rows,
)

if TYPE_CHECKING:
    from gatepost.pipeline.jobs.audit import AuditResult
    from gatepost.pipeline.jobs.pipeline import RunSummary
    from gatepost.pipeline.read_plan import SetAside
    from gatepost.pipeline.report.model import PipelineReport


_MAX_ASIDE = 10


class RunDocument(Struct, omit_defaults=True):
    """`aside`: nodes and events that were not taken in, and why."""

    batches: int
    events: int
    aside: "tuple[SetAside, ...]"
    report: "PipelineReport"
    audit: AuditDocument | None = None


class _RunResult(Struct):
    ran: "RunSummary"
    report: "PipelineReport"
    audited: "AuditResult | None" = None


def run_pipeline(
    *,
    audit: Flag = False,
    report: Path | None = None,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Bring the tables up to date with events archived since the last run.

    Prints the service levels of the last day.

    For example:

      gatepost pipeline run
      gatepost pipeline run --audit --report report.html
      gatepost pipeline run --archive s3://bucket/archive --master spark://host:7077

    Parameters
    ----------
    audit
        Audit the archive as well. The exit code is that of the audit.
    report
        Write the report to this HTML file as well.
    """
    return _run_jobs(places, options, "run", audit=audit, page=report)


def backfill_tables(
    *, places: JobLocations = DEFAULT_LOCATIONS, options: OutputOptions = DEFAULT_OUTPUT
) -> int:
    """Build all tables from scratch in an empty folder.

    For example:

      gatepost pipeline backfill --tables /srv/tables-2
    """
    return _run_jobs(places, options, "backfill")


def _run_jobs(
    places: JobLocations,
    options: OutputOptions,
    job: Literal["run", "backfill"],
    *,
    audit: bool = False,
    page: Path | None = None,
) -> int:
    archive, tables = places.archive_uri(), places.tables_folder()

    def count_rows() -> int:
        from gatepost.pipeline.jobs.pipeline import estimate_rows

        return archived_rows(archive) if audit else estimate_rows(archive, tables)

    with open_runner(places, options, "reading the archive", count_rows) as runner:
        result = _call_jobs(runner, places, job, audit=audit, page=page)
    audited = result.audited
    found = None if audited is None else make_document(audited, tables)
    ran = result.ran
    document = RunDocument(ran.batches, ran.events, ran.aside, result.report, found)
    output.print_result(options, document, lambda: _print_run(result))
    if audited is not None and found is not None and not options.json:
        output.print_line("")
        print_audit(found, audited)
    return ExitCode.OK if audited is None else AUDIT_EXITS[audited.verdict]


def _call_jobs(
    runner: JobRunner,
    places: JobLocations,
    job: Literal["run", "backfill"],
    *,
    audit: bool,
    page: Path | None,
) -> _RunResult:
    from gatepost.pipeline import small_tables
    from gatepost.pipeline.jobs import pipeline as jobs
    from gatepost.pipeline.jobs.audit import audit_archive as check
    from gatepost.pipeline.report.gatherer import gather_report
    from gatepost.pipeline.tables.schemas import ACTIVITY

    archive, tables, wanted = places.archive_uri(), places.tables_folder(), places.load_objectives()
    work = jobs.update_tables if job == "run" else jobs.backfill_tables
    ran = runner.call(lambda transport: work(transport, archive, tables, wanted))
    audited = None
    if audit:
        audited = runner.call(lambda transport: check(transport, archive, tables, wanted))
    if small_tables.open_table(tables, ACTIVITY) is None:
        raise CommandProblem(
            "not_found", f"{archive} holds no archive: no segment was archived there yet"
        )
    if page is not None:
        save_page(runner.call(lambda transport: gather_report(transport, tables)), page)
    report = runner.call(lambda transport: gather_report(transport, tables, days=1))
    return _RunResult(ran, report, audited)


def _print_run(result: _RunResult) -> None:
    output.print_line(_describe_run(result.ran), "bold")
    for each in result.ran.aside[:_MAX_ASIDE]:
        events = f", events {each.first} to {each.last}" if each.first is not None else ""
        output.print_line(f"set aside: {each.node}{events}: {each.reason}", "red")
    if len(result.ran.aside) > _MAX_ASIDE:
        output.print_line(f"… and {len(result.ran.aside) - _MAX_ASIDE} more, in the incidents")
    output.print_line("")
    print_report(result.report)


def _describe_run(ran: "RunSummary") -> str:
    batches = "1 batch" if ran.batches == 1 else f"{ran.batches} batches"
    return (
        f"{output.format_count(ran.events, 'new event')} in {batches}"
        if ran.events
        else "no new events"
    )


def stream_archive(
    *,
    every: Annotated[float, Parameter(validator=Number(gt=0))] = 30.0,
    max_rows: PositiveCount = 1_000_000,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Run again and again, in one session, until Ctrl-C.

    This is `run` in a loop. Each run that finds new events prints a line.

    For example:

      gatepost pipeline stream
      gatepost pipeline stream --every 5

    Parameters
    ----------
    every
        Seconds between the end of one run and the start of the next.
    max_rows
        Maximum number of events in a batch.
    """
    archive, tables, wanted = places.archive_uri(), places.tables_folder(), places.load_objectives()
    # Nobody knows how many events will come.
    with (
        open_runner(places, options, "following the archive", lambda: 1 << 62) as runner,
        _stop_on_interrupt() as stopping,
    ):
        from gatepost.pipeline.jobs.following import follow_archive
        from gatepost.pipeline.jobs.pipeline import Pipeline
        from gatepost.pipeline.report.gatherer import gather_report

        runner.call(
            lambda transport: follow_archive(
                Pipeline(transport, archive, tables, wanted),
                every=every,
                max_rows=max_rows,
                stopping=stopping,
                report=lambda ran: _print_step(ran, options),
            )
        )
        report = runner.call(lambda transport: gather_report(transport, tables, days=1))
    output.print_result(options, report, lambda: print_report(report))


def _print_step(ran: "RunSummary", options: OutputOptions) -> None:
    if ran.events and not options.json:
        output.print_line(_describe_run(ran))


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that the batch at hand is finished."""
    stopping = threading.Event()
    previous = signal.signal(signal.SIGINT, lambda *_: stopping.set())
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, previous)


def compact_tables(
    *,
    keep_hours: Annotated[int, Parameter(validator=Number(gte=0))] = 7 * 24,
    keep_days: PositiveCount | None = None,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Merge small files of the tables, and delete files that are no longer needed.

    For example:

      gatepost pipeline compact
      gatepost pipeline compact --keep-hours 24

    Parameters
    ----------
    keep_hours
        Hours to keep replaced files, for readers that still use them.
    keep_days
        Drop rows older than this many days before the latest event. Default: keep all.
    """
    tables = places.tables_folder()
    with open_runner(places, options, "compacting", lambda: stored_rows(tables)) as runner:
        from gatepost.pipeline.jobs.pipeline import compact_tables as merge

        deleted = runner.call(
            lambda transport: merge(transport, tables, keep_hours=keep_hours, keep_days=keep_days)
        )
    if not deleted:
        raise CommandProblem(
            "not_found", f"{tables} holds no tables yet: run `gatepost pipeline run`"
        )
    rows = list(deleted.items())
    output.print_result(
        options, deleted, lambda: output.print_table(("Table", "Files deleted"), rows)
    )
