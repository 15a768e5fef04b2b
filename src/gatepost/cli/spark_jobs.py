"""Spark sessions and locations for the commands of `gatepost pipeline`.

Spark is imported when a session is opened, so that commands without one start fast.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from gatepost.cli import output
from gatepost.cli.options import OutputOptions
from gatepost.cli.problems import CommandProblem, ExitCode, usage_problem
from gatepost.cli.settings import load_settings
from gatepost.errors import PipelineMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gatepost.pipeline.engine_use import EngineUse, SparkUse
    from gatepost.pipeline.objectives import Objectives
    from gatepost.pipeline.transport import Transport

Result = TypeVar("Result")

_LOCATIONS_GROUP = Group("Where", sort_key=90)
_QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

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
    conf: tuple[str, ...] = ()
    "A setting of Spark, such as spark.ui.enabled=true. May be repeated."
    engine: Literal["spark", "local", "sql"] = "spark"
    "spark; local: this process, without Spark, for trials; sql: Spark SQL alone, for backfill."
    state_dir: Path | None = None
    "State directory with the settings. Default: $GATEPOST_HOME, else ~/.gatepost."

    def load_objectives(self) -> "Objectives | None":
        from gatepost.pipeline.objectives import Objectives

        return Objectives.load_file(self.objectives) if self.objectives else None

    def archive_uri(self) -> str:
        if self.archive:
            return self.archive
        if uri := load_settings(self.state_dir).archive.uri:
            return uri
        raise usage_problem(
            "no archive is configured: set archive.uri in the gateway's settings,"
            " or name an archive with --archive"
        )

    def tables_folder(self) -> str:
        return tables_folder_or_default(self.tables, self.state_dir)

    def spark_settings(self) -> dict[str, str]:
        settings = {}
        for setting in self.conf:
            name, equals, value = setting.partition("=")
            if not equals:
                raise usage_problem(f"--conf takes NAME=VALUE, not {setting!r}")
            settings[name] = value
        return settings


DEFAULT_LOCATIONS = JobLocations()


class JobRunner:
    """Runs the jobs of one command: with Spark, or in this process."""

    def __init__(
        self,
        transport: "Transport",
        spark: "SparkSession | None" = None,
        use: "SparkUse | None" = None,
    ) -> None:
        self._transport = transport
        self._spark = spark
        self._use = use

    def call(self, job: "Callable[[Transport], Result]") -> Result:
        from gatepost.pipeline.job_errors import wrap_job_errors

        def call_job() -> Result:
            with wrap_job_errors():
                return job(self._transport)

        return call_job() if self._spark is None else run_in_thread(self._spark, call_job)

    def engine_use(self) -> "EngineUse":
        """What the jobs ran on so far; only while the session lasts."""
        from gatepost.pipeline.engine_use import EngineUse

        if self._use is None:
            return EngineUse("local", self._transport.input_rows)
        return self._use.measure()


@contextmanager
def open_runner(
    places: JobLocations, options: OutputOptions, label: str, *, sql: bool = False
) -> "Iterator[JobRunner]":
    """A runner for the jobs of a command, on the engine that the user chose.

    `sql`: whether these jobs know the engine of that name.
    """
    if places.engine == "sql" and not sql:
        raise usage_problem("--engine sql is for backfill alone")
    with require_pipeline():
        from gatepost.pipeline.session import require_spark

        require_spark()
        from gatepost.pipeline.engine_use import SparkUse
        from gatepost.pipeline.transport import LocalTransport, SparkTransport
    if places.engine == "local":
        if places.master is not None or places.conf:
            raise usage_problem("--engine local has no Spark: leave --master and --conf out")
        yield JobRunner(LocalTransport())
        return
    settings, started = places.spark_settings(), time.monotonic()
    with open_spark(places.master, options, label, brief=True, conf=settings) as spark:
        transport = SparkTransport(spark)
        yield JobRunner(transport, spark, SparkUse(transport, time.monotonic() - started))


def print_engine(use: "EngineUse") -> None:
    """The last line of a job's summary: what ran where."""
    output.print_line(use.describe(), "dim")


@contextmanager
def open_spark(
    master: str | None,
    options: OutputOptions,
    label: str,
    brief: bool = False,
    *,
    keep_classes: bool = False,
    conf: "Mapping[str, str] | None" = None,
) -> "Iterator[SparkSession]":
    with require_pipeline():
        from gatepost.pipeline.session import require_spark, spark_session

        require_spark()
    from gatepost.pipeline.package_upload import is_connect
    from gatepost.pipeline.progress_bar import show_progress

    with ExitStack() as stack:
        stack.enter_context(_silence_query_loggers())
        session = spark_session(master, conf=conf, brief=brief, keep_classes=keep_classes)
        spark = _start_uninterrupted(lambda: stack.enter_context(session))
        if not options.json and not is_connect(spark):
            stack.enter_context(show_progress(spark, label))
        yield spark


@contextmanager
def _silence_query_loggers() -> "Iterator[None]":
    """Keep PySpark from printing a stack trace for an error that is then told in a sentence."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _QUERY_LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


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


def run_in_thread(spark: "SparkSession", job: Callable[[], Result]) -> Result:
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


def tables_folder_or_default(tables: str | None, state_dir: Path | None) -> str:
    return tables or str(load_settings(state_dir).node.state_dir / "pipeline")
