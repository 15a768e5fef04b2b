"""Starts a Spark session from a plain pip installation, and cleans up all its files afterwards.

PySpark is imported inside functions only: without the extra, `require_spark` says how to get it.
"""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from gatepost.errors import PipelineError, PipelineMissing
from gatepost.pipeline.classes import SharedClasses
from gatepost.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_NEEDS = ("pyspark", "pyarrow", "deltalake", "pandas")
_OPTIONS = "spark.driver.extraJavaOptions"
# Environment variables in which a user may have set options for every JVM.
_JVM_READS = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
# Long, because a JVM may write its class cache when it ends.
_PATIENCE = 60.0
_GIB = 1024**3

# Java 24 and later warn on every start about memory access that Spark does by design.
_JVM_OPTIONS = "-XX:+IgnoreUnrecognizedVMOptions --sun-misc-unsafe-memory-access=allow"

_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = {level}
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%throwable{{short.message}}%n
"""

# In a short job the optimising compiler takes longer than the code it compiles, and takes cores
# from the Python workers.
_BRIEF = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"

# Settings that every job needs, also in a session that was started elsewhere.
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A limit on bytes makes Spark measure the whole batch after every row.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # Otherwise listing more than 32 files starts a Spark job of its own.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
}


def require_spark() -> None:
    """Raise PipelineMissing unless the parts of the extra are installed."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise PipelineMissing(
            f"the pipeline needs {', '.join(missing)}: pip install 'gatepost[pipeline]'"
        )


@contextlib.contextmanager
def spark_session(
    master: str | None = None,
    *,
    name: str = "gatepost",
    conf: Mapping[str, str] | None = None,
    brief: bool = False,
    keep_classes: bool = False,
    log_level: str = "fatal",
) -> "Iterator[SparkSession]":
    """A session on `master` (default: all cores of this machine), stopped at the end.

    `brief` is for jobs that do little work in the JVM: it starts sooner, and never gets as fast.
    With `keep_classes` the JVM writes its class cache at the end, so that later sessions start
    faster.

    Where a session runs already, as in a notebook or on a managed cluster, that one is used and
    left running.
    """
    require_spark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        running = SparkSession.builder.getOrCreate()
        _prepare(running)
        with _plainly():
            yield running
        return
    with contextlib.ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="gatepost-spark-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        settings = _settings(master or "local[*]", name, scratch, log_level)
        home = java_home()
        shared = SharedClasses(home, make=keep_classes)
        settings = _merged(settings, conf or {}, brief, shared.options)
        stack.enter_context(_environment(home, is_local(settings["spark.master"])))
        yield stack.enter_context(_started(settings, shared))


def is_local(master: str) -> bool:
    """Whether driver and executors are this one machine."""
    return master.partition("[")[0] in {"local", "local-cluster"}


def _settings(master: str, name: str, scratch: Path, log_level: str) -> dict[str, str]:
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J.format(level=log_level))
    settings = _SQL | {
        "spark.master": master,
        "spark.app.name": name,
        _OPTIONS: f"{_JVM_OPTIONS} -Dlog4j2.configurationFile={log4j.as_uri()}"
        f" -Dderby.system.home={scratch} -Djava.io.tmpdir={scratch}",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        # Otherwise every column function asks the JVM twice for its call site in our code.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    if is_local(master):
        settings |= {
            "spark.local.dir": str(scratch),
            "spark.driver.memory": f"{_heap() // 1024**2}m",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "localhost",
            # Few, for one machine's cores; Spark merges partitions that turn out small.
            "spark.sql.shuffle.partitions": str(max(8, 4 * (os.cpu_count() or 2))),
        }
    return settings


def _merged(
    ours: Mapping[str, str], theirs: Mapping[str, str], brief: bool, shared: str
) -> dict[str, str]:
    """The user's settings replace ours, but options for the JVM are joined."""
    more = theirs.get(_OPTIONS, "")
    shared = "" if "Xshare" in _chosen(more) or "Archive" in _chosen(more) else shared
    options = [ours[_OPTIONS], shared, _BRIEF if brief else "", _collector(more, brief), more]
    return {**ours, **theirs, _OPTIONS: " ".join(filter(None, options))}


def _collector(options: str, brief: bool) -> str:
    """The garbage collector, of which a JVM takes only one.

    The user's choice wins; otherwise serial for a quick start, or parallel for throughput.
    """
    return "" if "GC" in _chosen(options) else f"-XX:+Use{'Serial' if brief else 'Parallel'}GC"


def _chosen(options: str) -> str:
    """All JVM options that the user set."""
    return " ".join([options, *(os.environ.get(name, "") for name in _JVM_READS)])


def _heap() -> int:
    """2 GiB for each core, at most half of the memory this process may use, at least 1 GiB.

    A JVM fills its heap before it collects garbage; the other half is for the Python workers.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    half = min(physical, _cgroup_limit() or physical) // 2
    return max(_GIB, min(half, 2 * _GIB * (os.cpu_count() or 2)))


def _cgroup_limit() -> int | None:
    try:
        return int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _environment(home: Path, local: bool) -> Iterator[None]:
    """Set the environment variables that Spark's scripts read, while the session lasts."""
    ours = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    if local:
        # The machine's own name may not resolve, and local mode needs no other address.
        ours |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
    else:
        ours["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON", sys.executable)
    before = {key: os.environ.get(key) for key in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


@contextlib.contextmanager
def _started(settings: Mapping[str, str], shared: SharedClasses) -> "Iterator[SparkSession]":
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    ours = SparkContext._gateway is None
    with contextlib.ExitStack() as stack:
        if ours:
            stack.callback(lambda: shared.ended(_end_jvm()))
        # Inside the stack: the text of an error comes from the JVM, so it is read before that ends.
        with _plainly():
            context = SparkContext(conf=SparkConf().setAll(list(settings.items())))
            stack.callback(context.stop)
            # Workers warm up while the JVM gets ready for queries, which uses one core.
            with ThreadPoolExecutor(1) as executor:
                warm_up = executor.submit(_wake, context)
                session = SparkSession.builder.getOrCreate()
                stack.callback(session.stop)
                _prepare(session)
                warm_up.result()
            yield session


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Re-raise Spark errors as `PipelineError`."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise PipelineError(_said(str(error))) from None


def _said(error: str) -> str:
    """The last line of a worker's traceback; the whole text if there is no traceback."""
    lines = error.strip().splitlines()
    if "Traceback (most recent call last):" not in lines:
        return error
    last = lines[-1]
    return last.partition(": ")[2] if last.startswith("gatepost.") else last


def _wake(context: "SparkContext") -> None:
    """Start the Python workers of this machine, and let them load their libraries."""
    if is_local(context.master or ""):
        cores = context.defaultParallelism
        context.parallelize(range(cores), cores).foreach(_load)


def _load(_: int) -> None:
    from gatepost.pipeline.jobs import deliver, hourly, overall  # noqa: F401


def _prepare(spark: "SparkSession") -> None:
    from gatepost.pipeline.shipping import ship
    from gatepost.pipeline.source import register

    for key, value in _SQL.items():
        spark.conf.set(key, value)
    if not is_local(spark.sparkContext.master or "local"):
        ship(spark)
    register(spark)


def _end_jvm() -> bool:
    """End the JVM that PySpark started for us, so that PySpark may start another one later.

    Returns whether it ended by itself.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return False
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    _end(gateway.proc)
    return bool(gateway.proc.returncode == 0)


def _end(process: "subprocess.Popen[bytes]") -> None:
    # The JVM ends by itself when its standard input is closed.
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_PATIENCE)
