"""`gatepost pipeline`: the archive into tables, and the tables into answers.

Spark is started by the commands that need it, and imported by nothing else.
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
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Group, Parameter
from cyclopts.validators import Number
from msgspec import Struct

from gatepost import config
from gatepost.cli import output
from gatepost.cli.options import OPTIONS, OUTPUT, Flag, Options, Output
from gatepost.cli.problems import Exit, Problem, unreachable, usage
from gatepost.cli.progress import Progress
from gatepost.errors import ConfigError, PipelineMissing, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from gatepost.pipeline.feedback import Posted
    from gatepost.pipeline.gateways import Gateway
    from gatepost.pipeline.jobs.audit import Audited
    from gatepost.pipeline.jobs.run import Ran
    from gatepost.pipeline.objectives import Objectives
    from gatepost.pipeline.replay import Chosen, Elsewhere, Outcome
    from gatepost.pipeline.report.facts import Report, Violation

Result = TypeVar("Result")

_PLACES = Group("Where", sort_key=90)
_POLL_SECS = 0.5

Tables = Annotated[
    str | None,
    Parameter(
        group=_PLACES, help="Folder of the tables. Default: pipeline/ in the state directory."
    ),
]
Master = Annotated[
    str | None,
    Parameter(group=_PLACES, help="Spark master. Default: all cores of this machine."),
]
Count = Annotated[int, Parameter(validator=Number(gte=1))]


@Parameter(name="*", group=_PLACES)
@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a job reads and writes."""

    archive: str | None = None
    "The archive, a folder or a URI. Default: archive.uri of the gateway's settings."
    tables: str | None = None
    "Folder of the tables. Default: pipeline/ in the state directory."
    master: str | None = None
    "Spark master, such as spark://host:7077. Default: all cores of this machine."
    objectives: Path | None = None
    "TOML file with what is promised, where it is not the default. The tables remember it."
    state_dir: Path | None = None
    "Whose settings. Default: $GATEPOST_HOME, else ~/.gatepost."

    def wanted(self) -> "Objectives | None":
        from gatepost.pipeline.objectives import Objectives

        return Objectives.read(self.objectives) if self.objectives else None

    def source(self) -> str:
        if self.archive:
            return self.archive
        if uri := _settings(self.state_dir).archive.uri:
            return uri
        raise usage(
            "no archive is configured: set archive.uri in the gateway's settings, or name one"
            " with --archive"
        )

    def target(self) -> str:
        return _tables(self.tables, self.state_dir)


PLACES = Places()


class RanDocument(Struct):
    batches: int
    events: int
    report: "Report"


class AuditDocument(Struct):
    """`keys`: who says which key is whose, `room` or `self-asserted`."""

    events: int
    violations: dict[str, int]
    keys: str
    samples: "list[Violation]"


class ReplayDocument(Struct):
    """`elsewhere` is what other gateways hold; `answered` were left alone."""

    node: str | None
    outcomes: "list[Outcome]"
    elsewhere: "list[Elsewhere]"
    answered: int
    more: bool


# -- jobs


def run(*, places: Places = PLACES, options: Output = OUTPUT) -> None:
    """Bring the tables up to date with the archive."""
    _run(places, options, "run")


def backfill(*, places: Places = PLACES, options: Output = OUTPUT) -> None:
    """Make all tables from nothing, in an empty folder."""
    _run(places, options, "backfill")


def _run(places: Places, options: Output, job: str) -> None:
    archive, tables, wanted = places.source(), places.target(), places.wanted()
    with _spark(places.master, options, "reading the archive", brief=True) as spark:
        from gatepost.pipeline import small
        from gatepost.pipeline.jobs import run as jobs
        from gatepost.pipeline.report.gather import gather
        from gatepost.pipeline.tables.schemas import ACTIVITY

        ran: Ran = _apart(spark, lambda: getattr(jobs, job)(spark, archive, tables, wanted))
        if small.open_table(tables, ACTIVITY) is None:
            raise Problem("not_found", f"{archive} holds no archive: nothing was sealed there yet")
        report = _apart(spark, lambda: gather(spark, tables, days=1))
    document = RanDocument(ran.batches, ran.events, report)
    output.show(options, document, lambda: _say_ran(ran, report))


def _say_ran(ran: "Ran", report: "Report") -> None:
    said = f"{output.plural(ran.events, 'new event')} in {output.plural(ran.batches, 'batch')}"
    output.say(said.replace("batchs", "batches") if ran.events else "nothing new", "bold")
    output.say("")
    _say_report(report)


def stream(
    *,
    every: str | None = None,
    max_rows: Count = 1_000_000,
    places: Places = PLACES,
    options: Output = OUTPUT,
) -> None:
    """Keep the tables up to date in micro-batches.

    Parameters
    ----------
    every
        How often to look, such as "30 seconds", until Ctrl-C. Default: take what there is, and end.
    max_rows
        Events of a micro-batch, at most.
    """
    archive, tables, wanted = places.source(), places.target(), places.wanted()
    with _spark(places.master, options, "following the archive") as spark:
        from gatepost.pipeline.jobs.run import stream as follow
        from gatepost.pipeline.report.gather import gather

        query = follow(spark, archive, tables, wanted, every=every, max_rows=max_rows)
        _follow(query)
        report = gather(spark, tables, days=1)
    output.show(options, report, lambda: _say_report(report))


def _follow(query: "StreamingQuery") -> None:
    """Until it ends or somebody presses Ctrl-C, which must not hit a call into the JVM."""
    enough = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: enough.set())
    try:
        while query.isActive and not enough.wait(_POLL_SECS):
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    if enough.is_set():
        query.stop()
    else:
        query.awaitTermination()


def compact(
    *,
    keep_hours: Annotated[int, Parameter(validator=Number(gte=0))] = 7 * 24,
    keep_days: Count | None = None,
    places: Places = PLACES,
    options: Output = OUTPUT,
) -> None:
    """Merge small files of the tables, and delete those nobody needs any more.

    Parameters
    ----------
    keep_hours
        How long files that were replaced stay, for readers that still use them.
    keep_days
        Drop what is older than this many days before the latest event. Default: keep all.
    """
    tables = places.target()
    with _spark(places.master, options, "compacting", brief=True) as spark:
        from gatepost.pipeline.jobs.run import compact as merge

        old = partial(merge, spark, tables, keep_hours=keep_hours, keep_days=keep_days)
        gone = _apart(spark, old)
    if not gone:
        raise Problem("not_found", f"{tables} holds no tables yet: gatepost pipeline run")
    rows = list(gone.items())
    output.show(options, gone, lambda: output.table(("Table", "Files gone"), rows))


def audit(*, places: Places = PLACES, options: Output = OUTPUT) -> int:
    """Check every promise of the protocol against every event."""
    archive, tables, wanted = places.source(), places.target(), places.wanted()
    with _spark(places.master, options, "auditing") as spark:
        from gatepost.pipeline.jobs.audit import audit as check
        from gatepost.pipeline.report.gather import audited

        found = _apart(spark, lambda: check(spark, archive, tables, wanted))
    known = audited(tables)
    samples = known.samples if known else []
    document = AuditDocument(found.events, found.violations, found.keys, samples)
    output.show(options, document, lambda: _say_audit(found, samples))
    return Exit.OK if found.clean else Exit.FAILED


def _say_audit(found: "Audited", samples: "list[Violation]") -> None:
    if samples:
        rows = [(v.node or "", "" if v.seq is None else v.seq, v.rule, v.sentence) for v in samples]
        output.table(("Node", "Seq", "Rule", "Promise"), rows)
    broken = sum(found.violations.values())
    if broken > len(samples):
        output.say(f"… and {broken - len(samples)} more, in the table violations")
    said = f"{output.plural(found.events, 'event')}: "
    if found.clean:
        output.say(said + "every promise kept", "green")
    else:
        output.say(said + output.plural(broken, "broken promise"), "red")
    if found.self_asserted:
        nodes = ", ".join(found.self_asserted)
        output.say(f"keys: {found.keys} (no other gateway vouches for {nodes})")


def report(
    *,
    output_file: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    terminal: Flag = False,
    days: Count = 30,
    places: Places = PLACES,
    options: Output = OUTPUT,
) -> None:
    """Write the report, one HTML file that needs nothing else.

    Parameters
    ----------
    output_file
        Where to. Default: report.html here.
    terminal
        Print a short version instead.
    days
        How many days up to the latest event it is about.
    """
    tables = places.target()
    with _spark(places.master, options, "reading the tables", brief=True) as spark:
        from gatepost.pipeline.report.gather import gather

        made = _apart(spark, lambda: gather(spark, tables, days=days))
    if not terminal:
        _write(made, output_file or Path("report.html"), options)
    else:
        output.show(options, made, lambda: _say_report(made))


def _write(made: "Report", path: Path, options: Output) -> None:
    from gatepost.pipeline.report.page import page

    try:
        path.write_text(page(made), encoding="utf-8")
    except OSError as error:
        raise usage(f"{path} cannot be written: {error.strerror}") from None
    output.show(options, made, lambda: output.say(f"written: {path.absolute()}"))


def _say_report(made: "Report") -> None:
    from gatepost.pipeline.report import figures, terminal
    from gatepost.pipeline.report.page import audit_verdict

    output.say(f"{figures.moment(made.first_at)} to {figures.moment(made.last_at)} UTC", "bold")
    output.table(terminal.LEVEL_COLUMNS, terminal.level_rows(made))
    output.say("")
    for line in terminal.trends(made):
        output.say(line)
    output.say("")
    how, said = audit_verdict(made)
    output.say(said, {"good": "green", "bad": "red"}.get(how, ""))
    if rows := terminal.incident_rows(made):
        output.say(f"{output.plural(made.totals.incidents, 'incident')}:", "red")
        output.table(terminal.INCIDENT_COLUMNS, rows)
    else:
        output.say("No incidents", "green")


class PreparedDocument(Struct):
    """`prepared`: whether there is now what later jobs start from; not every Java can make it."""

    prepared: bool


def prepare(*, options: Output = OUTPUT) -> None:
    """Let later jobs on this machine start sooner."""
    from gatepost.pipeline.classes import is_prepared

    with TemporaryDirectory(prefix="gatepost-") as folder:
        archive, tables = f"{folder}/archive", f"{folder}/tables"
        with _spark(None, options, "trying everything once", True, keep_classes=True) as spark:
            from gatepost.pipeline.jobs.audit import audit as check
            from gatepost.pipeline.jobs.run import run as bring
            from gatepost.pipeline.report.gather import gather
            from gatepost.pipeline.synth import Options as Synth
            from gatepost.pipeline.synth import generate

            generate(archive, Synth(events=5_000))
            _apart(spark, lambda: bring(spark, archive, tables))
            _apart(spark, lambda: check(spark, archive, tables))
            _apart(spark, lambda: gather(spark, tables))
    done = is_prepared()
    said = (
        "later jobs start from here" if done else "this Java cannot do that: jobs go on as before"
    )
    output.show(options, PreparedDocument(done), lambda: output.say(said))


def synth(
    folder: str,
    /,
    *,
    events: Count = 100_000,
    nodes: Count = 4,
    seed: int = 0,
    fault: tuple[str, ...] = (),
    all_faults: Flag = False,
    jobs: Count = 1,
    options: Output = OUTPUT,
) -> None:
    """Write a synthetic archive, and the truth about it, to try things on.

    Parameters
    ----------
    folder
        Where to; it must be empty.
    events
        About how many events.
    nodes
        Of how many nodes.
    seed
        The same seed gives the same archive.
    fault
        Plant this, such as doubled_turn or silent_node; may be given several times.
    all_faults
        Plant everything that can go wrong and still be read.
    jobs
        Processes that write.
    """
    with needed():
        from gatepost.pipeline.session import require_spark

        require_spark()
        from gatepost.pipeline.synth import FAULTS, generate
        from gatepost.pipeline.synth import Options as What
    # An archive with a hole cannot be read into tables; only an audit says what is wrong with it.
    faults = tuple(name for name in FAULTS if name != "chain_gap") if all_faults else fault
    what = What(events=events, nodes=nodes, seed=seed, faults=faults, jobs=jobs)
    with Progress("writing", events, options, "messages") as progress:
        truth = generate(folder, what, progress.advance)
    said = f"{output.plural(truth.events, 'event')} of {nodes} nodes in {folder}"
    output.show(options, truth, lambda: output.say(said))


# -- back to the gateways


def feedback(*, tables: Tables = None, options: Options = OPTIONS) -> int:
    """Post incidents, reviews and ETA advice to a gateway."""
    folder = _tables(tables, options.state_dir)
    with needed():
        from gatepost.pipeline.feedback import post
    with _gateway(options) as gateway:
        posted = post(folder, gateway)
    output.show(options, posted, lambda: _say_posted(posted))
    return Exit.OK if all(each.ok for each in posted) else Exit.FAILED


def _say_posted(posted: "list[Posted]") -> None:
    rows = [
        (p.what, p.found, p.new, p.given - p.new, p.skipped, len(p.refused), _trouble(p))
        for p in posted
    ]
    columns = ("What", "Found", "New", "Known", "Skipped", "Refused", "Problem")
    output.table(columns, rows)


def _trouble(posted: "Posted") -> str:
    return posted.error or (posted.refused[0] if posted.refused else "")


def replay(
    *,
    where: str,
    limit: Count = 1000,
    rate: Annotated[float | None, Parameter(validator=Number(gte=0.01))] = None,
    dry_run: Flag = False,
    tables: Tables = None,
    master: Master = None,
    options: Options = OPTIONS,
) -> int:
    """Have dead letters sent again by the gateways that hold them.

    Parameters
    ----------
    where
        An SQL condition over the table deliveries, such as "to_agent = 'bob'".
    limit
        How many at most, the oldest first.
    rate
        How many a second at most. Ctrl-C stops; what was replayed stays replayed.
    dry_run
        Only say which ones.
    """
    folder = _tables(tables, options.state_dir)
    with _spark(master, options, "choosing") as spark:
        from gatepost.pipeline.replay import choose

        chosen = _apart(spark, lambda: choose(spark, folder, where, limit))
    document = _dry(chosen) if dry_run else _replayed(chosen, rate, options)
    output.show(options, document, lambda: _say_replay(document, chosen))
    refused = any(outcome.state == "refused" for outcome in document.outcomes)
    return Exit.FAILED if refused else Exit.OK


def _dry(chosen: "Chosen") -> ReplayDocument:
    from gatepost.pipeline.replay import elsewhere

    return ReplayDocument(None, [], elsewhere(chosen.letters), chosen.answered, chosen.more)


def _replayed(chosen: "Chosen", rate: float | None, options: Options) -> ReplayDocument:
    """Only the gateway whose token we have is asked."""
    from gatepost.pipeline import replay as job

    with _gateway(options) as gateway:
        node = gateway.node()
        here = [letter for letter in chosen.letters if letter.node == node]
        others = [letter for letter in chosen.letters if letter.node != node]
        with Progress("replaying", len(here), options, "messages") as progress:
            outcomes = job.replay(gateway, here, rate=rate, done=progress.advance)
    return ReplayDocument(node, outcomes, job.elsewhere(others), chosen.answered, chosen.more)


def _say_replay(document: ReplayDocument, chosen: "Chosen") -> None:
    if not chosen.letters:
        output.say("no such dead letters")
    if document.outcomes:
        rows = [(o.event_id, o.state.replace("_", " "), o.detail) for o in document.outcomes]
        output.table(("Message", f"At {document.node}", "As, or why"), rows)
    for held in document.elsewhere:
        output.say(
            f"{held.node} holds {output.plural(held.letters, 'dead letter')}; run there:", "bold"
        )
        for command in held.commands:
            output.say(f"  {command}")
    if document.answered:
        output.say(f"{document.answered} were given up, but answered all the same: left alone")
    if document.more:
        output.hint("There are more: raise --limit")


# -- what commands share


@contextmanager
def _spark(
    master: str | None,
    options: Output,
    label: str,
    brief: bool = False,
    *,
    keep_classes: bool = False,
) -> "Iterator[SparkSession]":
    with needed():
        from gatepost.pipeline.session import require_spark, spark_session

        require_spark()
    from gatepost.pipeline.progress import progress

    with ExitStack() as stack:
        session = spark_session(master, brief=brief, keep_classes=keep_classes)
        spark = _undisturbed(lambda: stack.enter_context(session))
        if not options.json:
            stack.enter_context(progress(spark, label))
        yield spark


def _undisturbed(start: "Callable[[], SparkSession]") -> "SparkSession":
    """Ctrl-C waits until Spark has started: broken off in between, its JVM would run for ever."""
    pressed = threading.Event()

    def note(*_: object) -> None:
        pressed.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        return start()
    finally:
        # Spark has put a handler of its own in the place of ours, unless it ran already.
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
        if pressed.is_set():
            raise KeyboardInterrupt


def _apart(spark: "SparkSession", job: Callable[[], Result]) -> Result:
    """The job in a thread of its own: Ctrl-C must not hit a call into the JVM.

    Spark cancels its jobs then, and what the thread still tries ends with the session.
    """
    from pyspark import inheritable_thread_target

    pool = ThreadPoolExecutor(1)
    try:
        made: Result = pool.submit(inheritable_thread_target(spark)(job)).result()
        return made
    finally:
        pool.shutdown(wait=False)


@contextmanager
def needed() -> Iterator[None]:
    """A part that is not installed is the user's to install."""
    try:
        yield
    except PipelineMissing as error:
        raise Problem(error.code, error.message, Exit.USAGE) from None
    except ModuleNotFoundError as error:
        raise Problem(
            PipelineMissing.code,
            f"the pipeline needs {error.name}: pip install 'gatepost[pipeline]'",
            Exit.USAGE,
        ) from None


@contextmanager
def _gateway(options: Options) -> "Iterator[Gateway]":
    from gatepost.cli.connect import locate
    from gatepost.cli.session_file import bearer
    from gatepost.pipeline.gateways import Gateway

    target = locate(options, os.environ)
    token = bearer(target)
    try:
        with Gateway(target.url, token, verify=target.trust()) as gateway:
            yield gateway
    except Unavailable as error:
        raise unreachable(error.message) from None


def _tables(tables: str | None, state_dir: Path | None) -> str:
    return tables or str(_settings(state_dir).node.state_dir / "pipeline")


def _settings(state_dir: Path | None) -> config.Settings:
    env = dict(os.environ)
    if state_dir is not None:
        env["GATEPOST_HOME"] = env["GATEPOST_NODE__STATE_DIR"] = str(state_dir.absolute())
    file = config.default_path(env)
    try:
        return config.Settings.load(file if file.exists() else None, env)
    except ConfigError as error:
        raise Problem(error.code, error.message, Exit.USAGE) from None
