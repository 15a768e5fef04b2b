"""`gatepost pipeline`: builds tables from the archive, and reports and feedback from the tables.

Only the commands that need Spark import and start it.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cyclopts import Group, Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost import config
from gatepost.cli import output
from gatepost.cli.options import (
    DEFAULT_OPTIONS,
    DEFAULT_OUTPUT,
    Flag,
    GatewayOptions,
    OutputOptions,
)
from gatepost.cli.problems import CommandProblem, ExitCode, unreachable_problem, usage_problem
from gatepost.cli.progress_bar import ProgressBar
from gatepost.errors import ConfigError, PipelineMissing, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from gatepost.pipeline.dead_letter_replay import ChosenLetters, RemoteLetters, ReplayOutcome
    from gatepost.pipeline.feedback import FeedbackOutcome
    from gatepost.pipeline.gateway_api import GatewayApi
    from gatepost.pipeline.jobs.audit import AuditResult
    from gatepost.pipeline.jobs.pipeline import RunSummary
    from gatepost.pipeline.objectives import Objectives
    from gatepost.pipeline.report.model import PipelineReport, ReportViolation

Result = TypeVar("Result")

_LOCATIONS_GROUP = Group("Where", sort_key=90)
_POLL_SECS = 0.5

TablesOption = Annotated[
    str | None,
    Parameter(
        group=_LOCATIONS_GROUP,
        help="Folder of the tables. Default: pipeline/ in the state directory.",
    ),
]
MasterOption = Annotated[
    str | None,
    Parameter(group=_LOCATIONS_GROUP, help="Spark master. Default: all cores of this machine."),
]
PositiveCount = Annotated[int, Parameter(validator=Number(gte=1))]


@Parameter(name="*", group=_LOCATIONS_GROUP)
@dataclass(frozen=True, kw_only=True)
class JobLocations:
    """Options for the places a job reads from and writes to."""

    archive: str | None = None
    "The archive, a folder or a URI. Default: archive.uri of the gateway's settings."
    tables: str | None = None
    "Folder of the tables. Default: pipeline/ in the state directory."
    master: str | None = None
    "Spark master, such as spark://host:7077. Default: all cores of this machine."
    objectives: Path | None = None
    "TOML file with objectives that differ from the defaults. The tables remember it."
    state_dir: Path | None = None
    "State directory with the settings. Default: $GATEPOST_HOME, else ~/.gatepost."

    def load_objectives(self) -> "Objectives | None":
        from gatepost.pipeline.objectives import Objectives

        return Objectives.load_file(self.objectives) if self.objectives else None

    def archive_uri(self) -> str:
        if self.archive:
            return self.archive
        if uri := _load_settings(self.state_dir).archive.uri:
            return uri
        raise usage_problem(
            "no archive is configured: set archive.uri in the gateway's settings,"
            " or name an archive with --archive"
        )

    def tables_folder(self) -> str:
        return _tables_folder(self.tables, self.state_dir)


DEFAULT_LOCATIONS = JobLocations()


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


class ReplayDocument(Struct):
    """`elsewhere`: letters that other gateways hold. `answered`: skipped, as they were answered."""

    node: str | None
    outcomes: "list[ReplayOutcome]"
    elsewhere: "list[RemoteLetters]"
    answered: int
    more: bool


# -- jobs


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
    with _open_spark(places.master, options, "reading the archive", brief=True) as spark:
        from gatepost.pipeline import small_tables
        from gatepost.pipeline.jobs import pipeline as jobs
        from gatepost.pipeline.report.gatherer import gather_report
        from gatepost.pipeline.tables.schemas import ACTIVITY

        work = jobs.update_tables if job == "run" else jobs.backfill_tables
        ran = _run_in_thread(spark, lambda: work(spark, archive, tables, wanted))
        if small_tables.open_table(tables, ACTIVITY) is None:
            raise CommandProblem(
                "not_found", f"{archive} holds no archive: no segment was archived there yet"
            )
        report = _run_in_thread(spark, lambda: gather_report(spark, tables, days=1))
    document = RunDocument(ran.batches, ran.events, report)
    output.print_result(options, document, lambda: _print_run(ran, report))


def _print_run(ran: "RunSummary", report: "PipelineReport") -> None:
    batches = "1 batch" if ran.batches == 1 else f"{ran.batches} batches"
    text = f"{output.format_count(ran.events, 'new event')} in {batches}"
    output.print_line(text if ran.events else "no new events", "bold")
    output.print_line("")
    _print_report(report)


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
    with _open_spark(places.master, options, "following the archive") as spark:
        from gatepost.pipeline.jobs.pipeline import stream_tables as follow
        from gatepost.pipeline.report.gatherer import gather_report

        query = follow(spark, archive, tables, wanted, every=every, max_rows=max_rows)
        _follow_query(query)
        report = gather_report(spark, tables, days=1)
    output.print_result(options, report, lambda: _print_report(report))


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
    with _open_spark(places.master, options, "compacting", brief=True) as spark:
        from gatepost.pipeline.jobs.pipeline import compact_tables as merge

        job = partial(merge, spark, tables, keep_hours=keep_hours, keep_days=keep_days)
        deleted = _run_in_thread(spark, job)
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
    with _open_spark(places.master, options, "auditing") as spark:
        from gatepost.pipeline.jobs.audit import audit_archive as check
        from gatepost.pipeline.report.gatherer import read_last_audit

        found = _run_in_thread(spark, lambda: check(spark, archive, tables, wanted))
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


def write_report(
    *,
    output_file: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    terminal: Flag = False,
    days: PositiveCount = 30,
    places: JobLocations = DEFAULT_LOCATIONS,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Write the report, a self-contained HTML file.

    For example:

      gatepost pipeline report
      gatepost pipeline report -o /srv/www/report.html --days 7
      gatepost pipeline report --terminal

    Parameters
    ----------
    output_file
        The file to write. Default: report.html in the current folder.
    terminal
        Print a short version instead.
    days
        Number of days to cover, up to the latest event.
    """
    tables = places.tables_folder()
    with _open_spark(places.master, options, "reading the tables", brief=True) as spark:
        from gatepost.pipeline.report.gatherer import gather_report

        made = _run_in_thread(spark, lambda: gather_report(spark, tables, days=days))
    if not terminal:
        _write_page(made, output_file or Path("report.html"), options)
    else:
        output.print_result(options, made, lambda: _print_report(made))


def _write_page(made: "PipelineReport", path: Path, options: OutputOptions) -> None:
    from gatepost.pipeline.report.html_page import render_page

    try:
        path.write_text(render_page(made), encoding="utf-8")
    except OSError as error:
        raise usage_problem(f"{path} cannot be written: {error.strerror}") from None
    output.print_result(options, made, lambda: output.print_line(f"written: {path.absolute()}"))


def _print_report(made: "PipelineReport") -> None:
    from gatepost.pipeline.report import formatting, terminal_summary
    from gatepost.pipeline.report.html_page import audit_verdict

    first, last = map(formatting.format_timestamp, (made.first_at, made.last_at))
    output.print_line(f"{first} to {last} UTC", "bold")
    output.print_table(terminal_summary.LEVEL_COLUMNS, terminal_summary.level_rows(made))
    output.print_line("")
    for line in terminal_summary.trend_lines(made):
        output.print_line(line)
    output.print_line("")
    level, text = audit_verdict(made)
    output.print_line(text, {"good": "green", "bad": "red"}.get(level, ""))
    if rows := terminal_summary.incident_rows(made):
        output.print_line(f"{output.format_count(made.totals.incidents, 'incident')}:", "red")
        output.print_table(terminal_summary.INCIDENT_COLUMNS, rows)
    else:
        output.print_line("No incidents", "green")


class PreparedDocument(Struct):
    """`prepared`: whether the JVM class cache exists now; not every Java can create it."""

    prepared: bool


def prepare_spark(*, options: OutputOptions = DEFAULT_OUTPUT) -> None:
    """Create a JVM class cache, so that later jobs on this machine start faster.

    Takes a minute and about 190 MB in ~/.cache/gatepost. Repeat it after an update of
    Java or Spark.

    For example:

      gatepost pipeline prepare
    """
    from gatepost.pipeline.jvm_class_cache import has_class_cache

    with TemporaryDirectory(prefix="gatepost-") as folder:
        archive, tables = f"{folder}/archive", f"{folder}/tables"
        with _open_spark(None, options, "running every job once", True, keep_classes=True) as spark:
            from gatepost.pipeline.jobs.audit import audit_archive as check
            from gatepost.pipeline.jobs.pipeline import update_tables as bring
            from gatepost.pipeline.report.gatherer import gather_report
            from gatepost.pipeline.synth import SynthOptions as Synth
            from gatepost.pipeline.synth import generate_archive

            generate_archive(archive, Synth(events=5_000))
            _run_in_thread(spark, lambda: bring(spark, archive, tables))
            _run_in_thread(spark, lambda: check(spark, archive, tables))
            _run_in_thread(spark, lambda: gather_report(spark, tables))
    done = has_class_cache()
    text = "later jobs start faster now" if done else "this Java cannot create a class cache"
    output.print_result(options, PreparedDocument(done), lambda: output.print_line(text))


def write_synthetic_archive(
    folder: str,
    /,
    *,
    events: PositiveCount = 100_000,
    nodes: PositiveCount = 4,
    seed: int = 0,
    fault: tuple[str, ...] = (),
    all_faults: Flag = False,
    jobs: PositiveCount = 1,
    options: OutputOptions = DEFAULT_OUTPUT,
) -> None:
    """Write a synthetic archive for trials, with a file of its true figures.

    For example:

      gatepost pipeline synth /tmp/archive
      gatepost pipeline synth /tmp/archive --events 1000000 --nodes 6 --all-faults

    Parameters
    ----------
    folder
        The folder to write to; it must be empty.
    events
        Approximate number of events.
    nodes
        Number of nodes.
    seed
        The same seed gives the same archive.
    fault
        Plant this fault, such as doubled_turn or silent_node; repeat the option for several.
    all_faults
        Plant every fault that leaves the archive readable.
    jobs
        Number of writing processes.
    """
    with require_pipeline():
        from gatepost.pipeline.session import require_spark

        require_spark()
        from gatepost.pipeline.synth import FAULTS, generate_archive
        from gatepost.pipeline.synth import SynthOptions as Synth
    # An archive with a gap in its chain cannot be read into tables; only an audit can report it.
    faults = tuple(name for name in FAULTS if name != "chain_gap") if all_faults else fault
    shape = Synth(events=events, nodes=nodes, seed=seed, faults=faults, jobs=jobs)
    with ProgressBar("writing", events, options, "messages") as progress:
        truth = generate_archive(folder, shape, progress.advance)
    text = f"{output.format_count(truth.events, 'event')} of {nodes} nodes in {folder}"
    output.print_result(options, truth, lambda: output.print_line(text))


# -- feedback and replay at a gateway


def post_feedback(*, tables: TablesOption = None, options: GatewayOptions = DEFAULT_OPTIONS) -> int:
    """Post incidents, reviews and ETA advice to a gateway.

    The gateway ignores items it has already, so this can be repeated. It needs a token
    file whose token has the scope ansible.admin.feedback. If the file holds an invite,
    as `gatepost agent invite` prints it, the invite is replaced by its session.

    For example:

      gatepost pipeline feedback
      gatepost pipeline feedback --url https://vps-jane:7433 --token-file feedback.token
    """
    folder = _tables_folder(tables, options.state_dir)
    with require_pipeline():
        from gatepost.pipeline.feedback import post_feedback
    with _open_gateway(options) as gateway:
        posted = post_feedback(folder, gateway)
    output.print_result(options, posted, lambda: _print_posted(posted))
    return ExitCode.OK if all(each.ok for each in posted) else ExitCode.FAILED


def _print_posted(posted: "list[FeedbackOutcome]") -> None:
    rows = [
        (p.what, p.found, p.new, p.given - p.new, p.skipped, len(p.refused), _problem_text(p))
        for p in posted
    ]
    columns = ("Kind", "Found", "New", "Known", "Skipped", "Refused", "Problem")
    output.print_table(columns, rows)


def _problem_text(posted: "FeedbackOutcome") -> str:
    return posted.error or (posted.refused[0] if posted.refused else "")


def replay_dead_letters(
    *,
    where: str,
    limit: PositiveCount = 1000,
    rate: Annotated[float | None, Parameter(validator=Number(gte=0.01))] = None,
    dry_run: Flag = False,
    tables: TablesOption = None,
    master: MasterOption = None,
    options: GatewayOptions = DEFAULT_OPTIONS,
) -> int:
    """Choose dead letters with SQL, and replay them at their gateway.

    Replays only at the gateway of the given token; for other gateways it prints
    commands to run there. Letters that were replayed before are skipped.

    For example:

      gatepost pipeline replay --where "to_agent = 'bob'" --dry-run
      gatepost pipeline replay --where "reason = 'no_route'" --rate 5

    Parameters
    ----------
    where
        An SQL condition over the table deliveries, such as "to_agent = 'bob'".
    limit
        Maximum number of dead letters, oldest first.
    rate
        Maximum number per second. Ctrl-C stops the replay but does not undo it.
    dry_run
        Only list them; replay nothing.
    """
    folder = _tables_folder(tables, options.state_dir)
    with _open_spark(master, options, "choosing") as spark:
        from gatepost.pipeline.dead_letter_replay import choose_letters

        chosen = _run_in_thread(spark, lambda: choose_letters(spark, folder, where, limit))
    document = _dry_run_document(chosen) if dry_run else _replay_at_gateway(chosen, rate, options)
    output.print_result(options, document, lambda: _print_replay(document, chosen))
    refused = any(outcome.state == "refused" for outcome in document.outcomes)
    return ExitCode.FAILED if refused else ExitCode.OK


def _dry_run_document(chosen: "ChosenLetters") -> ReplayDocument:
    from gatepost.pipeline.dead_letter_replay import replay_commands

    return ReplayDocument(None, [], replay_commands(chosen.letters), chosen.answered, chosen.more)


def _replay_at_gateway(
    chosen: "ChosenLetters", rate: float | None, options: GatewayOptions
) -> ReplayDocument:
    """Replay letters at our gateway; for other gateways list the commands to run there."""
    from gatepost.pipeline import dead_letter_replay as job

    with _open_gateway(options) as gateway:
        node = gateway.fetch_node_id()
        here = [letter for letter in chosen.letters if letter.node == node]
        others = [letter for letter in chosen.letters if letter.node != node]
        with ProgressBar("replaying", len(here), options, "messages") as progress:
            outcomes = job.replay_letters(gateway, here, rate=rate, done=progress.advance)
    return ReplayDocument(node, outcomes, job.replay_commands(others), chosen.answered, chosen.more)


def _print_replay(document: ReplayDocument, chosen: "ChosenLetters") -> None:
    if not chosen.letters:
        output.print_line("no matching dead letters")
    if document.outcomes:
        rows = [(o.event_id, o.state.replace("_", " "), o.detail) for o in document.outcomes]
        output.print_table(("Message", f"At {document.node}", "As, or why"), rows)
    for held in document.elsewhere:
        output.print_line(
            f"{held.node} holds {output.format_count(held.letters, 'dead letter')}; run there:",
            "bold",
        )
        for command in held.commands:
            output.print_line(f"  {command}")
    if document.answered:
        output.print_line(f"{document.answered} were given up but answered later: not replayed")
    if document.more:
        output.print_hint("There are more: raise --limit.")


# -- helpers


@contextmanager
def _open_spark(
    master: str | None,
    options: OutputOptions,
    label: str,
    brief: bool = False,
    *,
    keep_classes: bool = False,
) -> "Iterator[SparkSession]":
    with require_pipeline():
        from gatepost.pipeline.session import require_spark, spark_session

        require_spark()
    from gatepost.pipeline.progress_bar import show_progress

    with ExitStack() as stack:
        session = spark_session(master, brief=brief, keep_classes=keep_classes)
        spark = _start_uninterrupted(lambda: stack.enter_context(session))
        if not options.json:
            stack.enter_context(show_progress(spark, label))
        yield spark


def _start_uninterrupted(start: "Callable[[], SparkSession]") -> "SparkSession":
    """Start Spark; defer Ctrl-C until it has started, or its JVM would never be stopped."""
    interrupted = threading.Event()

    def record_interrupt(*_: object) -> None:
        interrupted.set()

    previous = signal.signal(signal.SIGINT, record_interrupt)
    try:
        return start()
    finally:
        # Spark installs its own handler when it starts; leave that one in place.
        if signal.getsignal(signal.SIGINT) is record_interrupt:
            signal.signal(signal.SIGINT, previous)
        if interrupted.is_set():
            raise KeyboardInterrupt


def _run_in_thread(spark: "SparkSession", job: Callable[[], Result]) -> Result:
    """Run the job in its own thread, so that Ctrl-C does not interrupt a call into the JVM.

    On Ctrl-C Spark cancels its jobs, and the rest of the thread ends with the session.
    """
    from pyspark import inheritable_thread_target

    pool = ThreadPoolExecutor(1)
    try:
        result: Result = pool.submit(inheritable_thread_target(spark)(job)).result()
        return result
    finally:
        pool.shutdown(wait=False)


@contextmanager
def require_pipeline() -> Iterator[None]:
    """Report a missing extra as a usage problem that names the package to install."""
    try:
        yield
    except PipelineMissing as error:
        raise CommandProblem(error.code, error.message, ExitCode.USAGE) from None
    except ModuleNotFoundError as error:
        raise CommandProblem(
            PipelineMissing.code,
            f"the pipeline needs {error.name}: pip install 'gatepost[pipeline]'",
            ExitCode.USAGE,
        ) from None


@contextmanager
def _open_gateway(options: GatewayOptions) -> "Iterator[GatewayApi]":
    from gatepost.cli.gateway_api import locate_gateway
    from gatepost.cli.session_file import current_token
    from gatepost.pipeline.gateway_api import GatewayApi

    target = locate_gateway(options, os.environ)
    token = current_token(target)
    try:
        with GatewayApi(target.url, token, verify=target.tls_verification()) as gateway:
            yield gateway
    except Unavailable as error:
        raise unreachable_problem(error.message) from None


def _tables_folder(tables: str | None, state_dir: Path | None) -> str:
    return tables or str(_load_settings(state_dir).node.state_dir / "pipeline")


def _load_settings(state_dir: Path | None) -> config.Settings:
    env = dict(os.environ)
    if state_dir is not None:
        env["GATEPOST_HOME"] = env["GATEPOST_NODE__STATE_DIR"] = str(state_dir.absolute())
    file = config.default_settings_path(env)
    try:
        return config.Settings.load(file if file.exists() else None, env)
    except ConfigError as error:
        raise CommandProblem(error.code, error.message, ExitCode.USAGE) from None
