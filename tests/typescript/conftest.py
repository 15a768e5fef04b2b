"""Node, and gateways for what runs in it."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gatepost.testing import GatewayProcess
from tests.waiting import wait_until

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def node_environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GATEPOST_")}
    return kept | more


class Program:
    """A program in Node, and what it said so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.said: list[Any] = []
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # A program that is killed may leave half a line behind.
            if line.endswith("\n"):
                self.said.append(json.loads(line))

    def hears(self, secs: float = 30, **fields: object) -> Any:
        """Wait until it has said something with these fields."""
        wait_until(lambda: self.found(**fields) or self.process.poll() is not None, secs)
        assert self.found(**fields), self.said
        return self.found(**fields)[0]

    def found(self, **fields: object) -> list[Any]:
        return [s for s in self.said if all(s.get(k) == v for k, v in fields.items())]

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("now\n")
        self.process.stdin.flush()

    def finish(self, secs: float = 60) -> list[Any]:
        """Wait for its end, and return everything that it said."""
        code = self.process.wait(secs)
        self._listener.join()
        assert self.process.stderr is not None
        assert code == 0, self.process.stderr.read()
        return self.said

    def end(self) -> None:
        self.process.kill()
        self._listener.join()


Start = Callable[..., Any]


@pytest.fixture(scope="session")
def node() -> str:
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed, so the client was not tried")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    if int(re.findall(r"\d+", version.stdout)[0]) < 20:
        pytest.skip(f"node is {version.stdout.strip()}, and the client needs 20")
    return program


@pytest.fixture
def start(node: str) -> Start:
    """Starts a scenario on a gateway: `start(gateway, "request", "bob", "1")`."""

    @contextmanager
    def started(
        gateway: GatewayProcess, *arguments: str, env: dict[str, str] | None = None
    ) -> Iterator[Program]:
        wanted = {"GATEPOST_HOME": str(gateway.state_dir)} if env is None else env
        with subprocess.Popen(
            [node, str(HERE / "scenarios.mjs"), *arguments],
            env=node_environment(**wanted),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            program = Program(process)
            try:
                yield program
            finally:
                program.end()

    return started


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A failed turn is tried twice, quickly."""
    state_dir = tmp_path_factory.mktemp("typescript") / "state"
    settings = {"mailbox__base_backoff_secs": 0.01, "mailbox__max_retries": 1}
    with GatewayProcess(state_dir, **settings) as process:
        yield process
