"""What the gateway's tests share: a core on a clock of its own, and clients for each door."""

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import httpx
import psutil  # type: ignore[import-untyped]
from websockets.sync.client import connect

from gatepost.config import Settings
from gatepost.core.gateway_core import Core
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.app import create_app
from gatepost.gateway.monitoring.metrics import Metrics
from gatepost.gateway.serve import open_core
from gatepost.listening.local_auth import LocalTokenAuth
from gatepost.listening.operator_access import GuessLimit, OperatorAccess
from gatepost.testing import GatewayProcess, ManualClock
from tests.waiting import wait_until


def settings(state_dir: Path, **values: object) -> Settings:
    env = {f"GATEPOST_{name.upper()}": str(value) for name, value in values.items()}
    return Settings.load(None, {"GATEPOST_HOME": str(state_dir), **env})


@contextlib.asynccontextmanager
async def opened(
    state_dir: Path, clock: ManualClock | None = None, **values: object
) -> AsyncIterator[Operations]:
    """A gateway without its doors, in this process."""
    async with open_core(settings(state_dir, **values), clock) as operations:
        yield operations


def dump(core: Core | Path) -> dict[str, list[Any]]:
    """Every row of the journal."""
    path = core if isinstance(core, Path) else core.state.journal
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        names = [str(row[0]) for row in tables]
        return {name: list(connection.execute(f"SELECT * FROM {name}")) for name in names}
    finally:
        connection.close()


def client(gateway: GatewayProcess) -> httpx.Client:
    headers = {"authorization": f"Bearer {gateway.token}"}
    return httpx.Client(base_url=gateway.url, headers=headers, timeout=30)


def asgi_client(
    operations: Operations, host: str, token: str = "t" * 32, url: str = "http://gateway"
) -> httpx.AsyncClient:
    """A client of the local API in this process, which comes from this address."""
    core = operations.core
    guesses = GuessLimit(core.settings.limits.wrong_tokens_per_min, core.abuse, core.clock)
    access = OperatorAccess(LocalTokenAuth("t" * 32), guesses, core.settings)
    app: Any = create_app(operations, access, Metrics(core))
    transport = httpx.ASGITransport(app=app, client=(host, 1))
    headers = {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(transport=transport, base_url=url, headers=headers)


class Frames:
    """A conversation in frames over anything that sends and receives bytes."""

    def __init__(self, send: Callable[[Any], None], receive: Callable[[float], Any]) -> None:
        self._send = send
        self._receive = receive
        self._waiting: list[Any] = []

    def send(self, frame: object) -> None:
        self._send(json.dumps(frame).encode() if not isinstance(frame, str | bytes) else frame)

    def next(self, timeout: float = 10) -> Any:
        """The next answer, in whatever frame it comes."""
        while not self._waiting:
            answer = json.loads(self._receive(timeout))
            self._waiting += answer if isinstance(answer, list) else [answer]
        return self._waiting.pop(0)

    def ask(self, op: str, **fields: object) -> Any:
        self.send({"op": op, **fields})
        return self.next()

    def silent(self, secs: float = 0.15) -> bool:
        with contextlib.suppress(TimeoutError):
            self._waiting.append(self.next(secs))
        return not self._waiting


@contextlib.contextmanager
def websocket(gateway: GatewayProcess, **options: Any) -> Iterator[Frames]:
    with raw_websocket(gateway, **options) as connection:
        yield Frames(connection.send, connection.recv)


def raw_websocket(gateway: GatewayProcess, **options: Any) -> Any:
    url = gateway.url.replace("http", "ws") + "/v1/ws"
    headers = {"authorization": f"Bearer {gateway.token}"}
    return connect(url, additional_headers=headers, compression=None, **options)


@contextlib.contextmanager
def unix_socket(gateway: GatewayProcess) -> Iterator[Frames]:
    with contextlib.ExitStack() as opened_files:
        connection = opened_files.enter_context(socket.socket(socket.AF_UNIX))
        connection.connect(str(gateway.state_dir / "gateway.sock"))
        lines = opened_files.enter_context(connection.makefile("rb"))

        def receive(timeout: float) -> bytes:
            connection.settimeout(timeout)
            line = lines.readline()
            if not line:
                raise EOFError("the gateway closed the connection")
            return line

        yield Frames(lambda frame: connection.sendall(frame + b"\n"), receive)


def drop(gateway: GatewayProcess, name: str, content: object) -> Path:
    """Hand in a request; returns where its answer will be."""
    folder = gateway.state_dir / "drop"
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "tmp" / f"{name}.json").write_bytes(body)
    (folder / "tmp" / f"{name}.json").rename(folder / "new" / f"{name}.json")
    return folder / "out" / f"{name}.json"


def drop_and_wait(gateway: GatewayProcess, name: str, content: object) -> Any:
    answer = drop(gateway, name, content)
    wait_until(answer.exists)
    return json.loads(answer.read_bytes())


def memory(gateway: GatewayProcess) -> int:
    """What the gateway's process has in memory, in bytes."""
    return int(psutil.Process(gateway.pid).memory_info().rss)


def mail(msg_id: str, to: str, sender: str = "sender", **fields: object) -> dict[str, object]:
    return {"msg_id": msg_id, "from": sender, "to": to, "payload": f"payload of {msg_id}", **fields}
