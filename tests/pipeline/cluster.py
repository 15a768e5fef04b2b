"""A standalone Spark cluster on this machine, from the same installation.

One master and several workers run as separate processes on loopback, as they would on separate
machines. They and the executors they started end with the block.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gatepost.errors import PipelineError
from gatepost.pipeline.java import java_home
from gatepost.pipeline.session import require_spark

_START_TIMEOUT = 60.0
_HOST = "127.0.0.1"
_DEPLOY_PACKAGE = "org.apache.spark.deploy"


@contextlib.contextmanager
def standalone_cluster(
    workers: int = 2, *, cores: int = 1, memory: str = "1g", java_options: str = ""
) -> Iterator[str]:
    """Yield the URL of the master once all workers have registered with it."""
    require_spark()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gatepost-cluster-")))
        env = _cluster_environment(folder, java_options)
        port, web = _free_port(), _free_port()
        master = f"spark://{_HOST}:{port}"
        args = ["--host", _HOST, "--port", str(port), "--webui-port", str(web)]
        stack.enter_context(
            _run_process("master", f"{_DEPLOY_PACKAGE}.master.Master", args, env, folder)
        )
        _wait_for_log(folder / "master.log", "I have been elected leader")
        for number in range(workers):
            name = f"worker-{number}"
            args = ["--host", _HOST, "--cores", str(cores), "--memory", memory]
            args += ["--webui-port", "0", "--work-dir", str(folder / name), master]
            stack.enter_context(
                _run_process(name, f"{_DEPLOY_PACKAGE}.worker.Worker", args, env, folder)
            )
        for number in range(workers):
            _wait_for_log(folder / f"worker-{number}.log", "Successfully registered with master")
        yield master


def _cluster_environment(folder: Path, java_options: str) -> dict[str, str]:
    return os.environ | {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": _HOST,
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"-XX:+UseSerialGC {java_options}".strip(),
    }


@contextlib.contextmanager
def _run_process(
    name: str, main: str, args: list[str], env: dict[str, str], folder: Path
) -> Iterator[None]:
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), main, *args]
    with (folder / f"{name}.log").open("wb") as log:
        process = _start_process(command, env, log)
    try:
        yield
    finally:
        _end_process_group(process)


def _start_process(
    command: list[str], env: dict[str, str], log: IO[bytes]
) -> "subprocess.Popen[bytes]":
    # A process group of its own, so that ending it ends its executors and their Python workers.
    return subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )


def _end_process_group(process: "subprocess.Popen[bytes]") -> None:
    """Terminate the whole process group, and kill the processes that are left after 5 s."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_START_TIMEOUT)


def _wait_for_log(log: Path, sentence: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while sentence not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise PipelineError(f"the cluster did not start:\n{log.read_text(errors='replace')}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
