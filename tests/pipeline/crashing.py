"""A streaming job in a process of its own, to be killed, and what its table must hold then."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.dataset import dataset, partitioning

from tests.pipeline.archives import DAY, NOON, write_node
from tests.pipeline.streaming_job import COLUMNS

ROWS = 600
ORDER = [("node", "ascending"), ("seq", "ascending")]
PATIENCE = 300.0


class Job:
    """The streaming job in a process of its own, on one archive, table and checkpoint."""

    def __init__(self, folder: Path, max_rows: int, master: str = "local[2]") -> None:
        self.table = folder / "table"
        # A driver that is killed cannot clean up; what it leaves goes with the test's folder.
        self._env = {"PYTHONPATH": os.pathsep.join(["src", "."]), "TMPDIR": str(folder)}
        self._log = folder / "job.log"
        self._args = [
            *(str(folder / name) for name in ("archive", "table", "checkpoint")),
            str(max_rows),
            master,
        ]

    @contextlib.contextmanager
    def running(self) -> "Iterator[subprocess.Popen[bytes]]":
        """The job, killed at the end of the block if it has not ended by then."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.streaming_job", *self._args],
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
            assert process.wait(PATIENCE) == 0, self._log.read_text()

    def commits(self) -> int:
        return len(list(self.table.glob("_delta_log/*.json")))

    def wait_for_commits(self, count: int, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + PATIENCE
        while self.commits() < count:
            assert process.poll() is None, f"ended early:\n{self._log.read_text()}"
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.01)

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


def kill9(process: "subprocess.Popen[bytes]") -> None:
    """The driver, its JVM and their Python workers."""
    family = [process.pid, *(p.pid for p in psutil.Process(process.pid).children(recursive=True))]
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(PATIENCE)
