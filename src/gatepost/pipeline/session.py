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
from pathlib import Path
from typing import TYPE_CHECKING

from gatepost.errors import PipelineMissing
from gatepost.pipeline.java import java_home
from gatepost.pipeline.job_errors import wrap_job_errors
from gatepost.pipeline.jvm_class_cache import JvmClassCache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEEDS = ("pyspark", "pyarrow", "deltalake", "pandas", "obstore")
_JVM_OPTIONS_KEY = "spark.driver.extraJavaOptions"
# Environment variables in which a user may have set options for every JVM.
_JVM_VARIABLES = ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
# Long, because a JVM may write its class cache when it ends.
_END_TIMEOUT = 60.0
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
_BRIEF_JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"

# Settings that every job needs, also in a session that was started elsewhere.
_SQL_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A limit on bytes makes Spark measure the whole batch after every row.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # Otherwise listing more than 32 files starts another Spark job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
}
# Kernels have compressed their blocks already.
_SHUFFLE_SETTINGS = {"spark.shuffle.compress": "false", "spark.shuffle.spill.compress": "false"}


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
    left running. `spark-submit` and a Spark Connect server (`sc://host`) bring their own settings;
    only `conf` is added to them.
    """
    require_spark()
    if (found := _find_session(master, name, conf or {})) is not None:
        with wrap_job_errors():
            _prepare_session(found)
            yield found
        return
    with contextlib.ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="gatepost-spark-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        settings = _base_settings(master or "local[*]", name, scratch, log_level)
        home = java_home()
        shared = JvmClassCache(home, make=keep_classes)
        settings = _merge_settings(settings, conf or {}, brief, shared.jvm_options)
        stack.enter_context(_spark_environment(home, is_local(settings["spark.master"])))
        yield stack.enter_context(_start_session(settings, shared))


def _find_session(master: str | None, name: str, conf: Mapping[str, str]) -> "SparkSession | None":
    """A session that runs already, or that is configured elsewhere; None if there is none."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if master is not None and master.startswith("sc://"):
        return SparkSession.builder.remote(master).getOrCreate()
    if SparkContext._active_spark_context is None and not is_submitted():
        return None
    builder = SparkSession.builder.appName(name)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def is_submitted() -> bool:
    """Whether `spark-submit` started this process, and with it the session's JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_local(master: str) -> bool:
    """Whether driver and executors are this one machine."""
    return master.partition("[")[0] in {"local", "local-cluster"}


def _base_settings(master: str, name: str, scratch: Path, log_level: str) -> dict[str, str]:
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J.format(level=log_level))
    settings = (
        _SQL_SETTINGS
        | _SHUFFLE_SETTINGS
        | {
            "spark.master": master,
            "spark.app.name": name,
            _JVM_OPTIONS_KEY: f"{_JVM_OPTIONS} -Dlog4j2.configurationFile={log4j.as_uri()}"
            f" -Dderby.system.home={scratch} -Djava.io.tmpdir={scratch}",
            "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.ui.enabled": "false",
            # Otherwise every column function asks the JVM twice for its call site in our code.
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        }
    )
    # Spark redacts credentials in these settings.
    settings |= {f"spark.executorEnv.{key}": value for key, value in _storage_environment().items()}
    if is_local(master):
        settings |= {
            "spark.local.dir": str(scratch),
            "spark.driver.memory": f"{_heap_bytes() // 1024**2}m",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "localhost",
            # Few, for one machine's cores; Spark merges partitions that turn out small.
            "spark.sql.shuffle.partitions": str(max(8, 4 * (os.cpu_count() or 2))),
        }
    return settings


def _storage_environment() -> dict[str, str]:
    """The variables with which this process reaches buckets: executors need them too."""
    return {key: value for key, value in os.environ.items() if key.startswith("AWS_")}


def _merge_settings(
    ours: Mapping[str, str], theirs: Mapping[str, str], brief: bool, shared: str
) -> dict[str, str]:
    """The user's settings replace ours, but options for the JVM are joined."""
    more = theirs.get(_JVM_OPTIONS_KEY, "")
    shared = "" if "Xshare" in _user_options(more) or "Archive" in _user_options(more) else shared
    options = [
        ours[_JVM_OPTIONS_KEY],
        shared,
        _BRIEF_JVM_OPTIONS if brief else "",
        _collector_option(more, brief),
        more,
    ]
    return {**ours, **theirs, _JVM_OPTIONS_KEY: " ".join(filter(None, options))}


def _collector_option(options: str, brief: bool) -> str:
    """The garbage collector, of which a JVM takes only one.

    The user's choice wins; otherwise serial for a quick start, or parallel for throughput.
    """
    return (
        "" if "GC" in _user_options(options) else f"-XX:+Use{'Serial' if brief else 'Parallel'}GC"
    )


def _user_options(options: str) -> str:
    """All JVM options that the user set."""
    return " ".join([options, *(os.environ.get(name, "") for name in _JVM_VARIABLES)])


def _heap_bytes() -> int:
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
def _spark_environment(home: Path, local: bool) -> Iterator[None]:
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
def _start_session(settings: Mapping[str, str], shared: JvmClassCache) -> "Iterator[SparkSession]":
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    ours = SparkContext._gateway is None
    with contextlib.ExitStack() as stack:
        if ours:
            stack.callback(lambda: shared.finish_recording(_end_jvm()))
        # Inside the stack: the text of an error comes from the JVM, so it is read before that ends.
        with wrap_job_errors():
            context = SparkContext(conf=SparkConf().setAll(list(settings.items())))
            stack.callback(context.stop)
            session = SparkSession.builder.getOrCreate()
            stack.callback(session.stop)
            _prepare_session(session)
            yield session


def _prepare_session(spark: "SparkSession") -> None:
    from gatepost.pipeline.package_upload import is_connect, send_package

    for key, value in _SQL_SETTINGS.items():
        spark.conf.set(key, value)
    if not is_connect(spark):
        # The session may be older than this process's bucket settings.
        spark.sparkContext.environment.update(_storage_environment())
    # Whatever its master is, a Spark Connect server may be another machine.
    if is_connect(spark) or not is_local(spark.conf.get("spark.master", None) or "local"):
        send_package(spark)


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
    _end_process(gateway.proc)
    return bool(gateway.proc.returncode == 0)


def _end_process(process: "subprocess.Popen[bytes]") -> None:
    # The JVM ends by itself when its standard input is closed.
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(_END_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_END_TIMEOUT)
