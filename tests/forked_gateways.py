"""Gateways of tests are forked from a process that has imported them, which halves their cost.

Each is a process of its own as usual: it can be killed and frozen, and it has an exit status.
`tests/gateway/test_main.py` and `tests/cli/test_gateway.py` start gateways as users do.
"""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from gatepost.errors import GatepostError

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("gatepost.gateway.__main__", "gatepost.cli.runner"),
        # A gateway imports these when it starts.
        *("cedarpy", "litestar._kwargs", "litestar.middleware._internal.exceptions"),
        *("litestar.middleware.response_cache", "litestar.plugins.attrs"),
        *("litestar.plugins.opentelemetry._utils", "litestar.plugins.pydantic.utils"),
        *("uvicorn.lifespan.off", "uvicorn.protocols.http.auto"),
        *("uvicorn.protocols.websockets.auto", "tests.forked_gateways"),
    ]
)


def run_gateway(arguments: list[str]) -> None:
    """`python -m gatepost.gateway`."""
    # Imported late: a test that needs no gateway does not pay for it.
    from gatepost.gateway.__main__ import main

    try:
        main(arguments)
    except GatepostError as error:
        sys.exit(f"gatepost: {error.message}")


def run_cli(arguments: list[str]) -> None:
    """`gatepost`."""
    from gatepost.cli.runner import run_command

    sys.exit(run_command(arguments))


class ForkedGateway:
    """Looks like the `subprocess.Popen` of a gateway."""

    def __init__(
        self,
        arguments: list[str],
        env: Mapping[str, str],
        log: IO[bytes],
        program: Callable[[list[str]], None] = run_gateway,
    ) -> None:
        reader, self.stdin = _CONTEXT.Pipe(duplex=False)
        # A daemon does not outlive the tests.
        self._process = _CONTEXT.Process(
            target=_run_program,
            args=(program, arguments, dict(env), str(Path.cwd()), log.name, reader),
            daemon=True,
        )
        self._process.start()
        reader.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("gateway", timeout or 0)
        return self._process.exitcode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run_program(
    program: Callable[[list[str]], None],
    arguments: list[str],
    env: dict[str, str],
    folder: str,
    log: str,
    stdin: Connection,
) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for source, target in ((stdin.fileno(), 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    stdin.close()
    os.close(output)
    sys.stdin = os.fdopen(0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    # Everything imported stays: no use to look for garbage in it again and again.
    gc.freeze()
    program(arguments)
