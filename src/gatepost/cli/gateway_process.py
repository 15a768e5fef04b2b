"""The gateway of a state directory as a process: start it in the background, await it, stop it."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from gatepost.cli.gateway_api import CliGateway, CliTarget
from gatepost.cli.problems import CommandProblem, unreachable_problem
from gatepost.connect.gateway_endpoint import TOKEN_FILE_NAME, GatewayEndpoint, read_endpoint
from gatepost.errors import GatepostError

_POLL_SECS = 0.02
_ERROR_CHARS = 2000


def start_in_background(
    arguments: list[str], env: Mapping[str, str], home: Path, timeout: float
) -> GatewayEndpoint:
    """Start `gatepost up` in a new session, and return once it answers.

    Output of the process before its log is open is an error of its start, and is reported here.
    """
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "gatepost.cli", "up", *arguments],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=write,
        start_new_session=True,
    )
    os.close(write)
    deadline = time.monotonic() + timeout
    with os.fdopen(read, "rb") as errors:
        while (endpoint := answering_endpoint(home)) is None or endpoint.pid != process.pid:
            if process.poll() is not None:
                raise _start_problem(errors.read().decode(errors="replace"))
            if time.monotonic() > deadline:
                raise unreachable_problem(
                    f"the gateway (process {process.pid}) does not answer after {timeout:g} s;"
                    f" it may still be starting: see its log, then `gatepost up --wait`"
                )
            time.sleep(_POLL_SECS)
    # The process outlives this command, and must not be reported as abandoned.
    process.returncode = 0
    return endpoint


def _start_problem(said: str) -> CommandProblem:
    """The error that the process ended with, which it prints as JSON."""
    lines = said.strip().splitlines()
    for line in reversed(lines):
        try:
            problem = json.loads(line)
            return CommandProblem(problem["code"], problem["message"])
        except (ValueError, KeyError, TypeError):
            continue
    return CommandProblem(
        "start_failed", f"the gateway ended at its start: {said.strip()[-_ERROR_CHARS:]}"
    )


def await_gateway(home: Path, timeout: float) -> GatewayEndpoint:
    """The endpoint of the gateway on this state directory, once it answers."""
    deadline = time.monotonic() + timeout
    while (endpoint := answering_endpoint(home)) is None:
        if time.monotonic() > deadline:
            raise unreachable_problem(
                f"no gateway answers on {home} after {timeout:g} s: start one with `gatepost up`"
            )
        time.sleep(_POLL_SECS)
    return endpoint


def answering_endpoint(home: Path) -> GatewayEndpoint | None:
    """The announced endpoint; None unless the gateway behind it answers to the token beside it."""
    try:
        endpoint = read_endpoint(home)
        target = CliTarget(endpoint.url, home / TOKEN_FILE_NAME, endpoint.tls_cert)
        with CliGateway(target) as gateway:
            gateway.get("/v1/agents", list[object])
    except (GatepostError, CommandProblem):
        return None
    return endpoint


def stop_gateway(home: Path, timeout: float) -> int:
    """Ask the gateway of the state directory to stop; return its pid once it has ended."""
    endpoint = answering_endpoint(home)
    if endpoint is None:
        raise unreachable_problem(f"no gateway runs on {home}")
    try:
        process = os.pidfd_open(endpoint.pid)
    except ProcessLookupError:
        return endpoint.pid
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        ended, _, _ = select.select([process], [], [], timeout)
    finally:
        os.close(process)
    if not ended:
        raise CommandProblem(
            "timeout", f"the gateway (process {endpoint.pid}) has not stopped after {timeout:g} s"
        )
    return endpoint.pid
