"""`python -m gatepost.gateway`: it ends with the program that started it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.waiting import wait_until

_PROGRAM = """
import contextlib, sys, time
from pathlib import Path
from gatepost.testing import GatewayProcess
with GatewayProcess(Path(sys.argv[1])) as gateway:
    with gateway.frozen() if sys.argv[2] == "frozen" else contextlib.nullcontext():
        print(gateway.pid, flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("state", ["running", "frozen"])
def test_a_killed_program_leaves_no_gateway_behind(tmp_path: Path, state: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "state"), state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as program:
        assert program.stdout is not None
        gateway = psutil.Process(int(program.stdout.readline()))
        os.kill(program.pid, signal.SIGKILL)
        program.wait(10)
        wait_until(lambda: not gateway.is_running() or gateway.status() == "zombie", 15)
