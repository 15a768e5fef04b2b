"""`gatepost pipeline`: jobs that build tables from the archive, compact them, and audit it."""

import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost.cli import output
from gatepost.cli.commands.pipeline_report import print_report
from gatepost.cli.options import DEFAULT_OUTPUT, OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode
from gatepost.cli.spark_jobs import (
    DEFAULT_LOCATIONS,
    JobLocations,
    PositiveCount,
    open_spark,
    run_in_thread,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from gatepost.pipeline.jobs.audit import AuditResult
    from gatepost.pipeline.jobs.pipeline import RunSummary
    from gatepost.pipeline.report.model import PipelineReport, ReportViolation

_POLL_SECS = 0.5


class RunDocument(Struct):
    batches: int
    events: int
    report: "PipelineReport"


class AuditDocument(Struct):
    """`keys`: the source of the nodes' public keys, `room` or `self-asserted`."""

    events: int
    violations: dict[str, int]
    keys: str
    samples: "list[ReportViolation]"


def run_pipeline(
    *, places: JobLocations = DEFAULT_LOCATIONS, options: OutputOptions = DEFAULT_OUTPUT
) -> None:
    """Bring the tables up to date with events archived since the last run.

    Prints the service levels of the last day.

    For example:

      gatepost pipeline run
      gatepost pipeline run --archive s3://bucket/archive --master spark://host:7077
    """
    _run_job(places, options, "run")


def backfill_tables(
    *, places: JobLocations = DEFAULT_LOCATIONS, options: OutputOptions = DEFAULT_OUTPUT
) -> None:
    """Build all tables from scratch in an empty folder.

    For example:

      gatepost pipeline backfill --tables /srv/tables-2
    """
    _run_job(places, options, "backfill")


def _run_job(places: JobLocations, options: OutputOptions, job: Literal["run", "backfill"]) -> None:
    archive, tables, wanted = places.archive_uri(), places.tables_folder(), places.load_objectives()
    with open_spark(places.master, options, "reading the archive", brief=True) as spark:
        from gatepost.pipeline import small_tables
        from gatepost.pipeline.jobs import pipeline as jobs
        from gatepost.pipeline.report.gatherer import gather_report
        from gatepost.pipeline.tables.schemas import ACTIVITY

        work = jobs.update_tables if job == "run" else jobs.backfill_tables
        ran = run_in_thread(spark, lambda: work(spark, archive, tables, wanted))
        if small_tables.open_table(tables, ACTIVITY) is None:
            raise CommandProblem(
                "not_found", f"{archive} holds no archive: no segment was archived there yet"
            )
        report = run_in_thread(spark, lambda: gather_report(spark, tables, days=1))
    document = RunDocument(ran.batches, ran.events, report)
    output.print_result(options, document, lambda: _print_run(ran, report))


def _print_run(ran: "RunSummary", report: "PipelineReport") -> None:
    batches = "1 batch" if ran.batches == 1 else f"{ran.batches} batches"
    text = f"{output.format_count(ran.events, 'new event')} in {batches}"
    output.print_line(text if ran.events else "no new events", "bold")
    output.print_line("")
    print_report(report)


def stream_archive(
    *,
    every: str | None = None,
    max_rows: PositiveCount = 1_000_000,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Keep the tables up to date in micro-batches, until Ctrl-C.

    For example:

      gatepost pipeline stream --every "30 seconds"

    Parameters
    ----------
    every
        How often to check, such as "30 seconds", until Ctrl-C. Default: process the archive once.
    max_rows
        Maximum number of events in a micro-batch.
    """
    archive, tables, wanted = places.archive_uri(), places.tables_folder(), places.load_objectives()
    with open_spark(places.master, options, "following the archive") as spark:
        from gatepost.pipeline.jobs.pipeline import stream_tables as follow
        from gatepost.pipeline.report.gatherer import gather_report

        query = follow(spark, archive, tables, wanted, every=every, max_rows=max_rows)
        _follow_query(query)
        report = gather_report(spark, tables, days=1)
    output.print_result(options, report, lambda: print_report(report))


def _follow_query(query: "StreamingQuery") -> None:
    """Wait until the query ends or Ctrl-C, which must not interrupt a call into the JVM."""
    interrupted = threading.Event()
    previous = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        while query.isActive and not interrupted.wait(_POLL_SECS):
            pass
    finally:
        signal.signal(signal.SIGINT, previous)
    if interrupted.is_set():
        query.stop()
    else:
        query.awaitTermination()


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
    with open_spark(places.master, options, "compacting", brief=True) as spark:
        from gatepost.pipeline.jobs.pipeline import compact_tables as merge

        job = partial(merge, spark, tables, keep_hours=keep_hours, keep_days=keep_days)
        deleted = run_in_thread(spark, job)
    if not deleted:
        raise CommandProblem(
            "not_found", f"{tables} holds no tables yet: run `gatepost pipeline run`"
        )
    rows = list(deleted.items())
    output.print_result(
        options, deleted, lambda: output.print_table(("Table", "Files deleted"), rows)
    )


def audit_archive(
    *, places: JobLocations = DEFAULT_LOCATIONS, options: OutputOptions = DEFAULT_OUTPUT
) -> int:
    """Check every promise of the protocol against every event.

    Exits with 1 if one was broken.

    For example:

      gatepost pipeline audit
      gatepost pipeline audit --archive /srv/archive --json
    """
    archive, tables, wanted = places.archive_uri(), places.tables_folder(), places.load_objectives()
    with open_spark(places.master, options, "auditing") as spark:
        from gatepost.pipeline.jobs.audit import audit_archive as check
        from gatepost.pipeline.report.gatherer import read_last_audit

        found = run_in_thread(spark, lambda: check(spark, archive, tables, wanted))
    known = read_last_audit(tables)
    samples = known.samples if known else []
    document = AuditDocument(found.events, found.violations, found.keys, samples)
    output.print_result(options, document, lambda: _print_audit(found, samples))
    return ExitCode.OK if found.is_clean else ExitCode.FAILED


def _print_audit(found: "AuditResult", samples: "list[ReportViolation]") -> None:
    if samples:
        rows = [(v.node or "", "" if v.seq is None else v.seq, v.rule, v.sentence) for v in samples]
        output.print_table(("Node", "Seq", "Rule", "Promise"), rows)
    broken = sum(found.violations.values())
    if broken > len(samples):
        output.print_line(f"… and {broken - len(samples)} more, in the table violations")
    events = output.format_count(found.events, "event")
    if found.is_clean:
        output.print_line(f"{events}: every promise kept", "green")
    else:
        output.print_line(f"{events}: {output.format_count(broken, 'broken promise')}", "red")
    if found.self_asserted:
        nodes = ", ".join(found.self_asserted)
        output.print_line(f"keys: {found.keys} (no other gateway vouches for {nodes})")
