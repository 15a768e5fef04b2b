"""Child processes of a process with many threads, on the event loop of a gateway."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]
import pytest
import uvloop

from gatepost.child_process import (
    PIPE,
    run_process,
    start_process,
    stop_process,
    wait_for_exit,
)
from tests.waiting import async_wait_until

# Python in a child would run this, and a lock that a thread held would never be released there.
_PROOF = """
import asyncio, os, sys, threading
import uvloop
from gatepost.child_process import start_process, wait_for_exit

def tell():
    os.write(2, b"Python ran in the child")

os.register_at_fork(after_in_child=tell)

async def main():
    sys.exit(await wait_for_exit(await start_process("true")))

uvloop.run(main())
"""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


def test_no_python_runs_in_a_child_before_its_program() -> None:
    ended = subprocess.run([sys.executable, "-c", _PROOF], capture_output=True, check=True)
    assert ended.stderr == b""


@pytest.fixture
def churning() -> Iterator[None]:
    """Threads that hold locks of the interpreter and of its allocator nearly all the time."""
    stopping = threading.Event()

    def churn() -> None:
        while not stopping.is_set():
            kept: list[object] = [[{}] for _ in range(1000)]
            kept.append(kept)  # a cycle, for the collector

    threads = [threading.Thread(target=churn) for _ in range(3)]
    for each in threads:
        each.start()
    yield
    stopping.set()
    for each in threads:
        each.join()


@pytest.mark.anyio
@pytest.mark.usefixtures("churning")
async def test_children_start_and_end_while_other_threads_are_at_work() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    for code in range(30):
        async with asyncio.timeout(60):
            process = await start_process("sh", "-c", f"exit {code}")
            assert await wait_for_exit(process) == code


@pytest.mark.anyio
async def test_a_child_that_does_not_stop_is_killed() -> None:
    process = await start_process("sh", "-c", "trap '' TERM; echo up; exec sleep 60", stdout=PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        assert await asyncio.to_thread(output.read, 3) == b"up\n"
        await stop_process(process, grace=0.2)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.anyio
async def test_stopping_a_child_that_has_ended_does_nothing() -> None:
    process = await start_process("true")
    await wait_for_exit(process)
    await stop_process(process)
    assert process.returncode == 0


@pytest.mark.anyio
async def test_a_child_whose_start_is_cancelled_does_not_run_on() -> None:
    starting = asyncio.create_task(start_process("sleep", "1234.5", stdin=PIPE))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    def is_gone() -> bool:
        children = psutil.Process(os.getpid()).children()
        return not [each for each in children if each.cmdline()[-1:] == ["1234.5"]]

    await async_wait_until(is_gone)


@pytest.mark.anyio
async def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        await run_process("sleep", "60", stdin=b"", timeout=0.2)


@pytest.mark.anyio
async def test_a_program_need_not_read_its_input() -> None:
    ended = await run_process("true", stdin=b"x" * 1_000_000, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, b"")
