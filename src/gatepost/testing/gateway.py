"""A real gateway in a separate process, which a test can start, kill and start again."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, Self

from gatepost.errors import Unavailable

_TIMEOUT_SECS = 20.0


class StartedProcess(Protocol):
    """The part of `subprocess.Popen` that a gateway's process needs."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> Any: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class GatewayLauncher(Protocol):
    def __call__(
        self, arguments: list[str], env: Mapping[str, str], log: IO[bytes]
    ) -> StartedProcess: ...


def launch_gateway(
    arguments: list[str],
    env: Mapping[str, str],
    log: IO[bytes],
    program: tuple[str, ...] = ("-m", "gatepost.gateway"),
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        env=env,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
    )


class GatewayProcess:
    """Settings are spelled as in the environment: `mailbox__max_retries=1`.

    The first start takes any free port; later ones take the same, so that clients find it again.
    """

    launch: ClassVar[GatewayLauncher] = staticmethod(launch_gateway)

    def __init__(self, state_dir: Path, **settings: object) -> None:
        self.state_dir = state_dir
        self.log = state_dir.with_name(f"{state_dir.name}.log")
        self.port = 0
        self._settings = settings
        self._process: StartedProcess | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill9()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return (self.state_dir / "token").read_text().strip()

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> Self:
        """Returns once the gateway answers."""
        self.spawn()
        self.wait_ready()
        return self

    def spawn(self) -> None:
        """Start the process without waiting for it."""
        assert self._process is None, "the gateway runs already"
        with self._open_log() as log:
            # Our end of its standard input closes when this process ends, even if it is killed.
            arguments = [str(self.state_dir), "--until-stdin-closes"]
            self._process = self.launch(arguments, self._environment(), log)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _TIMEOUT_SECS
        while not self._ready():
            if self._running().poll() is not None:
                raise Unavailable(f"the gateway ended at its start:\n{self.log.read_text()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"the gateway does not answer:\n{self.log.read_text()}")
            time.sleep(0.01)

    def stop(self) -> int:
        """Ask it to end, and return its exit status."""
        self._running().send_signal(signal.SIGTERM)
        return self._reap()

    def kill9(self) -> None:
        self._running().kill()
        self._reap()

    def restart(self) -> Self:
        """Kill it if it runs, and start it on the same state directory and port."""
        if self._process is not None:
            self.kill9()
        return self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """While this lasts the gateway is there but does nothing."""
        gateway = self._running()
        # A stopped process does not see that we ended, so this one wakes it up in our place.
        script = f"cat >/dev/null; kill -CONT {gateway.pid} 2>/dev/null"
        with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE):
            gateway.send_signal(signal.SIGSTOP)
            try:
                yield
            finally:
                gateway.send_signal(signal.SIGCONT)

    def get(self, path: str) -> Any:
        """The JSON answer to an authorized GET."""
        request = urllib.request.Request(self.url + path)
        request.add_header("authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=5) as response:
            return json.load(response)

    def _running(self) -> StartedProcess:
        assert self._process is not None, "the gateway does not run"
        return self._process

    def _reap(self) -> int:
        process, self._process = self._running(), None
        status = process.wait(timeout=_TIMEOUT_SECS)
        process.stdin.close()
        return status

    def _environment(self) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("GATEPOST_")}
        settings = {"listen__port": self.port, "log__format": "text", **self._settings}
        return env | {f"GATEPOST_{key.upper()}": str(value) for key, value in settings.items()}

    def _open_log(self) -> IO[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        return self.log.open("ab")

    def _ready(self) -> bool:
        try:
            endpoint = json.loads((self.state_dir / "endpoint.json").read_bytes())
        except FileNotFoundError:
            return False
        if endpoint["pid"] != self._running().pid:
            return False
        self.port = int(endpoint["url"].rpartition(":")[2])
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False
