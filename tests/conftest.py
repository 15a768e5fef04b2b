"""All tests share this: how much to run, in which order, on which event loop, on which Spark.

`scripts/test` runs everything at reduced counts, `scripts/test --full` at the full ones.
"""

import gc
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The fixtures of a real gateway, for every package that is tested through one.
pytest_plugins = ["tests.gateway.fixtures"]

FULL = os.environ.get("GATEPOST_FULL") == "1"

# A reduced run tries the same examples each time: it judges a change, and full runs search.
settings.register_profile("reduced", deadline=None, max_examples=30, derandomize=True)
settings.register_profile(
    "full", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("full" if FULL else "reduced")


# A shell that runs the tests in the background ignores Ctrl-C, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def choose(reduced: int, full: int) -> int:
    return full if FULL else reduced


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether this run is at full counts."""
    return FULL


@pytest.fixture(scope="session")
def count() -> Callable[[int, int], int]:
    """`count(5, 50)` is 5 in a reduced run and 50 in a full one."""
    return choose


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Tests marked `anyio` run on asyncio, which is what the gateway runs on."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _forked_gateways() -> None:
    from gatepost.testing import GatewayProcess
    from tests.forked_gateways import ForkedGateway

    GatewayProcess.launch = ForkedGateway


@pytest.fixture(scope="session")
def workers_at_start() -> list[list[str]]:
    """The Python workers that `spark` had when it was new, by their command lines."""
    return []


@pytest.fixture(scope="session")
def spark(workers_at_start: list[list[str]]) -> "Iterator[SparkSession]":
    """The one Spark session of this process, with its web interface: its JVM takes seconds."""
    from gatepost.pipeline.session import spark_session
    from tests.pipeline.spark_settings import QUICK_SPARK, WEB_INTERFACE

    conf = QUICK_SPARK | WEB_INTERFACE
    with spark_session("local[2]", name="tests", conf=conf, brief=True) as session:
        workers_at_start += _list_python_workers()
        yield session


def _list_python_workers() -> list[list[str]]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            found.append(process.cmdline())
    return [line for line in found if "pyspark.daemon" in line]


def pytest_report_header() -> str:
    return f"gatepost: {'full' if FULL else 'reduced'} counts"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not FULL:
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip(reason="only with scripts/test --full"))
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = divide_among_workers(items, workers)


def pytest_collection_finish() -> None:
    """Leave all that was imported and collected out of every search for garbage from here on."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Give it all back: some libraries complain at the end of what nobody has cleared away."""
    gc.unfreeze()


# Tests that take long without the shared Spark session, the longest first.
_LONG_TESTS = (
    *(
        "tests/simulation/",
        "tests/live_mesh/",
        "tests/cli/test_pipeline.py",
        "tests/room/test_conv",
    ),
    *("tests/pipeline/test_bare.py", "tests/crash/", "tests/migration/", "tests/gateway/test_open"),
    *("tests/mailbox/test_model.py", "tests/access/test_machine.py", "tests/pipeline/"),
)


def divide_among_workers(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order the tests so that workers stay evenly loaded, and only one of them starts Spark.

    `--dist worksteal` cuts the list into one share of equal length for each worker, and an idle
    worker steals from the end of a share. So the files with Spark's tests begin the first share and
    the other long tests begin the others; all shares end with short tests.
    """
    # Whole files, because their tests share archives and tables, too.
    files = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    spark = [item for item in items if item.path in files]
    rest = [item for item in items if item.path not in files]
    long = dict.fromkeys(
        item for start in _LONG_TESTS for item in rest if item.nodeid.startswith(start)
    )
    short = [item for item in rest if item not in long]
    shares = [spark, *(_every_nth_file(long, start, workers - 1) for start in range(workers - 1))]
    size = len(items) // workers
    for share in shares[:-1]:
        wanted = max(0, size - len(share))
        share.extend(short[:wanted])
        del short[:wanted]
    return [item for share in shares for item in share] + short


def _every_nth_file(items: Iterable[pytest.Item], start: int, step: int) -> list[pytest.Item]:
    """The tests of every `step`-th file: tests of one file share fixtures."""
    files = list(dict.fromkeys(item.path for item in items))
    chosen = set(files[start::step])
    return [item for item in items if item.path in chosen]
