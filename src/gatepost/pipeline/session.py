"""A Spark session that starts anywhere pip has been, and leaves nothing behind.

PySpark is imported here and nowhere above: without the extra, `require_spark` says what to do.
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
# Where else a user may have put options for every JVM.
_JVM_READS = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
# A JVM may have its classes to write.
_PATIENCE = 60.0
_GIB = 1024**3

# Java 24 and later warn on every start about what Spark does by design.
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

# To compile well takes longer than to run what little there is, and cores from those who work.
_BRIEF = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"

# What every job needs, whoever made the session.
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

    A `brief` one is for jobs that leave little to its JVM: that starts sooner, and never gets as
    fast. One that keeps its classes lets later ones start from them.

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
        # Or every column function asks the JVM twice where in our code it was called.
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
            # A machine has few cores, and partitions that turn out small are merged.
            "spark.sql.shuffle.partitions": str(max(8, 4 * (os.cpu_count() or 2))),
        }
    return settings


def _merged(
    ours: Mapping[str, str], theirs: Mapping[str, str], brief: bool, shared: str
) -> dict[str, str]:
    """Theirs win, but options for the JVM add up."""
    more = theirs.get(_OPTIONS, "")
    shared = "" if "Xshare" in _chosen(more) or "Archive" in _chosen(more) else shared
    options = [ours[_OPTIONS], shared, _BRIEF if brief else "", _collector(more, brief), more]
    return {**ours, **theirs, _OPTIONS: " ".join(filter(None, options))}


def _collector(options: str, brief: bool) -> str:
    """A JVM takes one: the user's, or the one that is quick to start or that wastes least."""
    return "" if "GC" in _chosen(options) else f"-XX:+Use{'Serial' if brief else 'Parallel'}GC"


def _chosen(options: str) -> str:
    """All options that are the user's own."""
    return " ".join([options, *(os.environ.get(name, "") for name in _JVM_READS)])


def _heap() -> int:
    """2 GiB for each core, but at most half of the memory this process may use, and 1 GiB.

    A JVM takes what it may before it tidies up; the other half is for the Python workers.
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
    """What Spark's scripts read from the environment, while the session lasts."""
    ours = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    if local:
        # A machine's own name need not resolve, and local mode needs no other address.
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
        # Inside of that: what went wrong is told by the JVM, which is about to end.
        with _plainly():
            context = SparkContext(conf=SparkConf().setAll(list(settings.items())))
            stack.callback(context.stop)
            # While the JVM gets ready for queries, which is work for one core.
            with ThreadPoolExecutor(1) as other:
                waking = other.submit(_wake, context)
                session = SparkSession.builder.getOrCreate()
                stack.callback(session.stop)
                _prepare(session)
                waking.result()
            yield session


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """What Spark has to complain of, as an error of ours."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise PipelineError(_said(str(error))) from None


def _said(error: str) -> str:
    """What a worker said at last, without where in its code it was; else all of it."""
    lines = error.strip().splitlines()
    if "Traceback (most recent call last):" not in lines:
        return error
    said = lines[-1]
    return said.partition(": ")[2] if said.startswith("gatepost.") else said


def _wake(context: "SparkContext") -> None:
    """Have the Python workers of this machine started and their libraries loaded."""
    if is_local(context.master or ""):
        cores = context.defaultParallelism
        context.parallelize(range(cores), cores).foreach(_load)


def _load(_: int) -> None:
    for job in ("deliver", "hourly", "overall"):
        importlib.import_module(f"gatepost.pipeline.jobs.{job}")


def _prepare(spark: "SparkSession") -> None:
    from gatepost.pipeline.shipping import ship
    from gatepost.pipeline.source import register

    for key, value in _SQL.items():
        spark.conf.set(key, value)
    if not is_local(spark.sparkContext.master or "local"):
        ship(spark)
    register(spark)


def _end_jvm() -> bool:
    """End the JVM that PySpark started for us, and let PySpark start another one later.

    Says whether it ended by itself.
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
    # The JVM ends by itself when its standard input does.
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_PATIENCE)
