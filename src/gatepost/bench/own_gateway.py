"""A gateway for one measurement, in a process of its own."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gatepost.errors import Unavailable

_PATIENCE = 20.0


class _Endpoint(msgspec.Struct):
    url: str


@contextlib.contextmanager
def own_gateway(state_dir: Path) -> Iterator[tuple[str, str]]:
    """(url, token) of a fresh gateway, which ends with the block."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GATEPOST_")}
    env |= {"GATEPOST_LISTEN__PORT": "0", "GATEPOST_LOG__LEVEL": "error"}
    command = [sys.executable, "-m", "gatepost.gateway", str(state_dir)]
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
    try:
        url = _wait(state_dir / "endpoint.json", process)
        yield url, (state_dir / "token").read_text().strip()
    finally:
        process.terminate()
        process.wait(timeout=_PATIENCE)


def _wait(announcement: Path, process: "subprocess.Popen[bytes]") -> str:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if announcement.exists():
            url = msgspec.json.decode(announcement.read_bytes(), type=_Endpoint).url
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/readyz", timeout=5):
                return url
        time.sleep(0.02)
    raise Unavailable("the gateway to be measured did not start; its own words are above")
