"""`gatepost pipeline`: jobs that build tables from the archive, and compact them."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.commands.pipeline_audit import (
    AUDIT_EXITS,
    AuditDocument,
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
    print_engine,
    require_pipeline,
)

if TYPE_CHECKING:
    from gatepost.pipeline.engine_use import EngineUse
    from gatepost.pipeline.jobs.audit import AuditResult
    from gatepost.pipeline.jobs.pipeline import RunSummary
    from gatepost.pipeline.jobs.streaming import StreamStep
    from gatepost.pipeline.read_plan import SetAside
    from gatepost.pipeline.report.model import PipelineReport
    from gatepost.pipeline.transport import Transport


_MAX_ASIDE = 10


class RunDocument(Struct, omit_defaults=True):
    """`aside`: nodes and events that were not taken in, and why. `engine`: what ran the jobs."""

    batches: int
    events: int
    aside: "tuple[SetAside, ...]"
    report: "PipelineReport"
    engine: "EngineUse"
    audit: AuditDocument | None = None


class _RunResult(Struct):
    ran: "RunSummary"
    report: "PipelineReport"
    engine: "EngineUse"
    audited: "AuditResult | None" = None


def run_pipeline(
    *,
    audit: Flag = False,
    report: Path | None = None,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> int:
    """Bring the tables up to date with events archived since the last run.

    Prints the service levels of the last day. With --audit and --report, one Spark session does
    all three.

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

    With --engine sql, Spark SQL makes them by their definitions: for clusters that accelerate SQL
    and not Python. Elsewhere it takes several times as long.

    For example:

      gatepost pipeline backfill --tables /srv/tables-2
      gatepost pipeline backfill --tables /srv/tables-2 --engine sql
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
    places.archive_uri()  # before Spark starts in vain
    with open_runner(places, options, "reading the archive", sql=job == "backfill") as runner:
        result = _call_jobs(runner, places, job, audit=audit, page=page)
    audited = result.audited
    found = None
    if audited is not None:
        found = make_document(audited, places.tables_folder(), result.engine)
    ran = result.ran
    document = RunDocument(ran.batches, ran.events, ran.aside, result.report, result.engine, found)
    output.print_result(options, document, lambda: _print_run(result))
    if audited is not None and found is not None and not options.json:
        output.print_line("")
        print_audit(found, audited)
    if not options.json:
        print_engine(result.engine)
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
    from gatepost.pipeline.transport import SparkTransport

    archive, tables, wanted = places.archive_uri(), places.tables_folder(), places.load_objectives()

    def work(transport: "Transport") -> "RunSummary":
        if places.engine == "sql" and isinstance(transport, SparkTransport):
            return jobs.backfill_with_sql(transport, archive, tables, wanted)
        update = jobs.update_tables if job == "run" else jobs.backfill_tables
        return update(transport, archive, tables, wanted)

    ran = runner.call(work)
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
    return _RunResult(ran, report, runner.engine_use(), audited)


def _print_run(result: _RunResult) -> None:
    output.print_line(_describe_run(result.ran), "bold")
    for each in result.ran.aside[:_MAX_ASIDE]:
        output.print_line(f"set aside: {each.sentence}", "red")
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
    available_now: Flag = False,
    checkpoint: str | None = None,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Follow the archive with Structured Streaming, until Ctrl-C.

    Each micro-batch that takes in events prints a line, with --json Spark's progress of it. Ctrl-C
    ends the stream after the current micro-batch.

    For example:

      gatepost pipeline stream
      gatepost pipeline stream --every 5
      gatepost pipeline stream --available-now --json

    Parameters
    ----------
    every
        Seconds between two micro-batches.
    max_rows
        Maximum number of events in a micro-batch.
    available_now
        Take in what is archived now, and end.
    checkpoint
        Folder of the stream's checkpoint. Default: _checkpoint beside tables on this machine.
    """
    archive, tables, wanted = places.archive_uri(), places.tables_folder(), places.load_objectives()
    with (
        open_runner(places, options, "following the archive") as runner,
        _stop_on_interrupt() as stopping,
    ):
        from gatepost.pipeline.jobs.following import follow_archive
        from gatepost.pipeline.jobs.pipeline import Pipeline
        from gatepost.pipeline.jobs.streaming import ArchiveStream
        from gatepost.pipeline.report.gatherer import gather_report
        from gatepost.pipeline.transport import SparkTransport

        def follow(transport: "Transport") -> None:
            pipeline = Pipeline(transport, archive, tables, wanted)
            if isinstance(transport, SparkTransport):
                ArchiveStream(transport.spark, pipeline, max_rows).follow(
                    every=None if available_now else every,
                    checkpoint=checkpoint,
                    stopping=stopping,
                    report=lambda step: _print_step(step, options),
                )
            else:
                follow_archive(
                    pipeline,
                    every=None if available_now else every,
                    max_rows=max_rows,
                    stopping=stopping,
                    report=lambda ran: _print_round(ran, options),
                )

        runner.call(follow)
        report = runner.call(lambda transport: gather_report(transport, tables, days=1))
        use = runner.engine_use()
    output.print_result(options, report, lambda: print_report(report))
    if not options.json:
        print_engine(use)


def _print_round(ran: "RunSummary", options: OutputOptions) -> None:
    if ran.events and not options.json:
        output.print_line(_describe_run(ran))


def _print_step(step: "StreamStep", options: OutputOptions) -> None:
    """A line for each micro-batch; with --json a document in one line."""
    if options.json:
        print(msgspec.json.encode(step).decode(), flush=True)
        return
    lag = step.lag
    behind = (
        f"{output.format_count(lag.events, 'event')} behind, the oldest archived"
        f" {lag.ms / 1000:.0f} s ago"
        if lag.events
        else "up to date"
    )
    taken = output.format_count(step.events, "new event")
    if step.progress is None:
        output.print_line(f"made up for: {taken}; {behind}")
        return
    seconds = step.progress.get("durationMs", {}).get("triggerExecution", 0) / 1000
    output.print_line(
        f"micro-batch {step.progress['batchId']}: {taken} in {seconds:.1f} s; {behind}"
    )


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
        Drop days that ended this many days before the latest event. Default: keep all.
    """
    tables = places.tables_folder()
    with require_pipeline():
        from gatepost.pipeline.session import require_spark

        require_spark()
    from gatepost.pipeline.job_errors import wrap_job_errors
    from gatepost.pipeline.jobs.pipeline import compact_tables as merge

    # Delta's library compacts in this process, without Spark.
    with wrap_job_errors():
        deleted = merge(tables, keep_hours=keep_hours, keep_days=keep_days)
    if not deleted:
        raise CommandProblem(
            "not_found", f"{tables} holds no tables yet: run `gatepost pipeline run`"
        )

    def print_deleted() -> None:
        output.print_table(("Table", "Files deleted"), list(deleted.items()))

    output.print_result(options, deleted, print_deleted)
