import os
import signal
import subprocess

from gatepost.tasks.runtimes.process_identity import (
    all_pids,
    boot_id,
    is_same_process,
    own_child_pids,
    pids_with_variable,
    send_signal,
    start_time,
)
from tests.waiting import wait_until


def test_a_process_is_known_by_its_start_until_it_ends() -> None:
    child = subprocess.Popen(["sleep", "1000"], env={"GATEPOST_TEST_MARK": "xyzzy"})
    try:
        started = start_time(child.pid)
        assert started is not None
        assert is_same_process(child.pid, started) and not is_same_process(child.pid, started + 1)
        assert child.pid in own_child_pids() and child.pid in set(all_pids())
        wait_until(lambda: pids_with_variable("GATEPOST_TEST_MARK", "xyzzy") == [child.pid])
        assert send_signal(child.pid, signal.SIGKILL)
        wait_until(lambda: start_time(child.pid) is None)
    finally:
        child.kill()
        child.wait()
    assert not send_signal(child.pid, 0)


def test_a_process_that_does_not_exist_has_no_start() -> None:
    assert start_time(2**22 + 1) is None
    assert start_time(os.getpid()) is not None
    assert boot_id() == boot_id()
