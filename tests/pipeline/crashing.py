"""Programs to be killed: a streaming job, and what its table must hold then; others."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.dataset import dataset, partitioning

from tests.pipeline.archives import DAY, NOON, write_node
from tests.pipeline.streaming_job import COLUMNS
from tests.waiting import wait_until

ROWS = 600
ORDER = [("node", "ascending"), ("seq", "ascending")]
PATIENCE = 300.0


class Program:
    """A module that is run as a process of its own, to be killed."""

    def __init__(self, folder: Path, module: str, *args: object) -> None:
        # A driver that is killed cannot clean up; what it leaves goes with the test's folder.
        self._env = {"PYTHONPATH": os.pathsep.join(["src", "."]), "TMPDIR": str(folder)}
        self._log = folder / "job.log"
        self._command = [sys.executable, "-m", module, *map(str, args)]

    @contextlib.contextmanager
    def running(self) -> "Iterator[subprocess.Popen[bytes]]":
        """The process, killed at the end of the block if it has not ended by then."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                env=os.environ | self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                kill9(process)

    def finish(self) -> None:
        with self.running() as process:
            assert process.wait(PATIENCE) == 0, self.log()

    def log(self) -> str:
        return self._log.read_text()

    def wait_until(self, reached: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
        """Wait for something that the process brings about."""

        def reached_alive() -> bool:
            done = reached()
            assert done or process.poll() is None, f"ended early:\n{self.log()}"
            return done

        wait_until(reached_alive, PATIENCE, failure=self.log)


class Job(Program):
    """The streaming job on one archive, table and checkpoint."""

    def __init__(self, folder: Path, max_rows: int, master: str = "local[2]") -> None:
        self.table = folder / "table"
        places = (folder / name for name in ("archive", "table", "checkpoint"))
        super().__init__(folder, "tests.pipeline.streaming_job", *places, max_rows, master)

    def commits(self) -> int:
        return len(list(self.table.glob("_delta_log/*.json")))

    def wait_for_commits(self, count: int, process: "subprocess.Popen[bytes]") -> None:
        self.wait_until(lambda: self.commits() >= count, process)

    def rows(self) -> Any:
        return DeltaTable(self.table).to_pyarrow_table().select(COLUMNS).sort_by(ORDER).to_pylist()


def archived(folder: Path) -> Any:
    """The same rows straight from the archive's files."""
    partitions = partitioning(
        pa.schema([("node", pa.string()), ("date", pa.date32())]), flavor="hive"
    )
    files = dataset(folder / "archive", format="parquet", partitioning=partitions)
    return files.to_table(COLUMNS).sort_by(ORDER).to_pylist()


def make_archive(folder: Path) -> None:
    """Two nodes over two days."""
    for node in ("n1", "n2"):
        times = range(NOON, NOON + 2 * DAY, 2 * DAY // ROWS)
        write_node(folder / "archive", node, times, segment_rows=70)


def wait_a_moment(longest: float = 0.3) -> None:
    """Let the program go on for a random time, to be killed between two commits or in one."""
    time.sleep(random.uniform(0, longest))


def kill9(process: "subprocess.Popen[bytes]") -> None:
    """The driver, its JVM and their Python workers."""
    family = [process.pid, *(p.pid for p in psutil.Process(process.pid).children(recursive=True))]
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(PATIENCE)
