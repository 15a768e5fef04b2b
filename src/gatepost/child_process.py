"""Child processes, started so that nothing of this process runs in them.

`asyncio.create_subprocess_exec` is forbidden here (ruff checks it). Under uvloop it forks, and runs
Python in the child before that becomes the other program. A lock that another thread, such as the
writer of the journal, held at that moment is never released in the child: it hangs, and with it the
event loop, which waits for it. `subprocess` uses vfork, and runs no Python in between.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

PIPE, QUIET = subprocess.PIPE, subprocess.DEVNULL
_GRACE_SECS = 3.0

Stream = int | IO[bytes]
ChildProcess = subprocess.Popen[bytes]


async def start_process(
    *command: str | os.PathLike[str],
    stdin: Stream = QUIET,
    stdout: Stream = QUIET,
    stderr: Stream = QUIET,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    start_new_session: bool = False,
) -> ChildProcess:
    """Start a program. It is killed if the caller is cancelled meanwhile."""

    def start() -> ChildProcess:
        return subprocess.Popen(
            command, bufsize=0, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd,
            start_new_session=start_new_session,
        )  # fmt: skip

    starting = asyncio.get_running_loop().run_in_executor(None, start)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_kill_unwanted)
        raise


def _kill_unwanted(starting: "asyncio.Future[ChildProcess]") -> None:
    if not starting.cancelled() and starting.exception() is None:
        process = starting.result()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


async def run_process(
    *command: str, stdin: bytes, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end; subprocess.TimeoutExpired, and its end, if it takes longer."""

    def run() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command, input=stdin, capture_output=True, timeout=timeout, check=False
        )

    return await asyncio.to_thread(run)


async def wait_for_exit(process: ChildProcess) -> int:
    """The exit code of a process that ends by itself, or was told to."""
    if process.poll() is None:
        await _wait_until_readable(os.pidfd_open(process.pid))
    return process.wait()


async def wait_for_group(process: ChildProcess) -> int:
    """The exit code of a process that leads a session; its remaining children are killed."""
    await _wait_until_readable(os.pidfd_open(process.pid))
    # It has not been reaped, so no other group has its number.
    signal_group(process, signal.SIGKILL)
    return process.wait()


def signal_group(process: ChildProcess, number: signal.Signals) -> None:
    """Signal a process that leads a session, and its children, until it is reaped."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


async def _wait_until_readable(handle: int) -> None:
    """A handle of a process is readable once the process has ended; it is closed here."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def stop_process(process: ChildProcess, grace: float = _GRACE_SECS) -> None:
    """Ask a process to end, and kill it if it does not."""
    process.terminate()
    try:
        async with asyncio.timeout(grace):
            await wait_for_exit(process)
    except TimeoutError:
        process.kill()
        await wait_for_exit(process)
