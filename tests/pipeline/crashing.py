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
from typing import Any, TypeVar

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.dataset import dataset, partitioning

from tests.pipeline.archives import DAY, NOON, write_node
from tests.pipeline.commit_gate import CommitGate
from tests.pipeline.streaming_job import COLUMNS
from tests.waiting import wait_until

ROWS = 600
ORDER = [("node", "ascending"), ("seq", "ascending")]
PATIENCE = 300.0

Value = TypeVar("Value")


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

    def kill_between(self, gate: CommitGate, most: int) -> None:
        """Start the program, and kill it after one to `most` more commits, before it is done.

        The kill comes at a random moment. If that is late, the program waits for it at the gate.
        """
        gate.admit(gate.count_commits())
        with self.running() as process:
            self.wait_for_commits(gate, random.randint(1, most), process)
            wait_a_moment()
            assert process.poll() is None, f"ended early:\n{self.log()}"
        gate.open()

    def finish(self) -> None:
        with self.running() as process:
            assert process.wait(PATIENCE) == 0, self.log()

    def log(self) -> str:
        return self._log.read_text()

    def wait_until(self, reached: Callable[[], Value], process: "subprocess.Popen[bytes]") -> Value:
        """Wait for something that the process brings about."""

        def reached_alive() -> Value:
            value = reached()
            assert value or process.poll() is None, f"ended early:\n{self.log()}"
            return value

        return wait_until(reached_alive, PATIENCE, failure=self.log)

    def wait_for_commits(
        self, gate: CommitGate, more: int, process: "subprocess.Popen[bytes]"
    ) -> None:
        """Wait for so many commits more, and admit one beyond them."""
        wanted = gate.count_commits() + more
        gate.admit(wanted + 1)
        self.wait_until(lambda: gate.count_commits() >= wanted, process)


class Job(Program):
    """The streaming job on one archive, table and checkpoint."""

    def __init__(self, folder: Path, max_rows: int, master: str = "local[2]") -> None:
        self.table = folder / "table"
        self.gate = CommitGate(self.table)
        places = (folder / name for name in ("archive", "table", "checkpoint"))
        super().__init__(folder, "tests.pipeline.streaming_job", *places, max_rows, master)

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


def executors() -> list[psutil.Process]:
    """The executors of the cluster that this process has started."""
    return [p for p in psutil.Process().children(recursive=True) if _is_executor(p)]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    except psutil.Error:
        return False  # it ended while we looked


def kill_executors(job: Program, gate: CommitGate, rounds: int, most: int) -> int:
    """Run the program to its end, and kill all executors under it so many times; how many died.

    Each time after one to `most` commits, at a random moment before the program is done.
    """
    killed = 0
    gate.admit(gate.count_commits())
    with job.running() as process:
        for _ in range(rounds):
            job.wait_for_commits(gate, random.randint(1, most), process)
            wait_a_moment()
            for executor in job.wait_until(executors, process):
                executor.kill()
                killed += 1
        gate.open()
        assert process.wait(PATIENCE) == 0, job.log()
    return killed


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
