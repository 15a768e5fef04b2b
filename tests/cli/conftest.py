"""The command line, and a real gateway that it started itself.

Most tests run a command inside their own process. What a test sees only in a process of its own
(a terminal, a signal, the start, the settings of logs) needs `in_own_process`, `running`, `seen`
or `on_terminal`.
"""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import gatepost
from tests.cli.in_process import run_in_process
from tests.forked_gateways import ForkedGateway, run_cli
from tests.waiting import wait_until

SOURCE = Path(gatepost.__file__).parents[1]
COMMAND = (sys.executable, "-m", "gatepost.cli")
_PATIENCE = 20.0


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)


def environment(**extra: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GATEPOST_", "CYCLOPTS_"))}
    return kept | {"PYTHONPATH": str(SOURCE), **extra}


class Cli:
    """`gatepost`, on the gateway of one state directory."""

    def __init__(self, home: Path, **env: str) -> None:
        self.home = home
        self.env = environment(GATEPOST_HOME=str(home), HOME=str(home.parent), **env)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Result:
        return Result(*run_in_process(arguments, self.env, stdin))

    def in_own_process(self, *arguments: str, stdin: bytes = b"") -> Result:
        done = subprocess.run(
            [*COMMAND, *arguments],
            env={"PYTHONWARNINGS": "error"} | self.env,
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        result = self(*arguments, stdin=stdin)
        assert result.code == 0, result
        assert not result.err, result
        return result.out

    def invite(self, *arguments: str) -> str:
        """A new invite; gateways of tests listen on loopback, which `invite` warns of."""
        result = self("invite", *arguments)
        assert result.code == 0, result
        assert "no other machine can use this invite" in result.err, result
        return result.out

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        return json.loads(self.ok("--json", *arguments, stdin=stdin))

    @contextmanager
    def running(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        with subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def on_terminal(self, *arguments: str, columns: int = 80) -> Iterator["Terminal"]:
        """The command with a terminal for all its streams."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.env | {"TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            yield Terminal(process, ours)
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    def seen(self, *arguments: str, columns: int = 80) -> str:
        """What a person sees on a terminal."""
        with self.on_terminal(*arguments, columns=columns) as terminal:
            return terminal.read()

    # -- what tests need but do not test goes straight to the gateway, which is faster

    def call(self, method: str, path: str, **body: object) -> Any:
        return self._call(method, path, body)

    def post_list(self, path: str, body: list[Any]) -> Any:
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: object) -> Any:
        url = json.loads((self.home / "endpoint.json").read_bytes())["url"]
        token = (self.home / "token").read_text().strip()
        request = urllib.request.Request(
            f"{url}/v1{path}",
            method=method,
            data=json.dumps(body).encode(),
            headers={"authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)

    def message_to(self, agent: str, payload: str = "hello") -> str:
        """Send one, and return its id."""
        sent = self.call("POST", "/messages", from_agent="cli", to_agent=agent, payload=payload)
        return str(sent["event_id"])

    def take(self, agent: str) -> list[Any]:
        path = f"/mailboxes/{agent}/dequeue"
        return list(self.call("POST", path, limit=100)["messages"])

    def dead_letter(self, agent: str, payload: str = "hello", reason: str = "broken") -> str:
        id = self.message_to(agent, payload)
        receipts = [message["receipt"] for message in self.take(agent)]
        self.call("POST", f"/mailboxes/{agent}/nack", receipts=receipts, reason=reason)
        return id


class Terminal:
    def __init__(self, process: "subprocess.Popen[bytes]", descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor

    def read(self, until: str | None = None) -> str:
        """Everything up to `until`, or to the end."""
        seen = b""
        while until is None or until.encode() not in seen:
            try:
                piece = os.read(self._descriptor, 65536)
            except OSError:  # Linux's way to say that the other side is closed
                break
            if not piece:
                break
            seen += piece
        return seen.decode().replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())


def _answers(cli: Cli) -> bool:
    try:
        return bool(cli.call("GET", "/status")["accepting"])
    except OSError:
        return False


@contextmanager
def gateway(home: Path, answers: Callable[[Cli], bool] = _answers, /, **env: str) -> Iterator[Cli]:
    """A gateway started by `gatepost up`, once it `answers`."""
    cli = Cli(home, **env)
    log = home.with_name(f"{home.name}.log")
    with log.open("ab") as written:
        process = ForkedGateway(["up", "--port", "0"], cli.env, written, run_cli)
    try:
        wait_until(lambda: process.poll() is not None or answers(cli), _PATIENCE)
        assert process.poll() is None, log.read_text()
        yield cli
    finally:
        process.kill()
        process.wait(_PATIENCE)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    home = tmp_path_factory.mktemp("cli") / "state"
    home.mkdir(mode=0o700)
    (home / "gatepost.toml").write_text("[mailbox]\nmax_retries = 0\n")
    with gateway(home) as cli:
        yield cli


@pytest.fixture
def agent(cli: Cli, request: pytest.FixtureRequest) -> str:
    """An agent of the test's own, so that tests can share a gateway."""
    name = request.node.name.replace("[", "-").replace("]", "")[:100]
    cli.call("PUT", f"/agents/{name}")
    return str(name)
