"""A real Yjs client in Node.js, with the provider everybody uses, in the room."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.live_mesh.tools import BareNode, Gateway
from tests.waiting import wait_until

Start = Callable[[str], AbstractContextManager["Script"]]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("js"), "host") as running:
        running.invite()
        yield running


class Script:
    """The client as a process, and what it said so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.said: list[Any] = []
        self._listener = Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # A process that is killed may leave half a line behind.
            if line.endswith("\n"):
                self.said.append(json.loads(line))

    def end(self) -> None:
        """Before its output is closed, whoever reads it has to be done."""
        self.process.kill()
        self._listener.join()

    def hears(self, event: str, **fields: object) -> Any:
        """Wait for an event."""
        wait_until(lambda: self._found(event, fields))
        return self._found(event, fields)[0]

    def _found(self, event: str, fields: dict[str, object]) -> list[Any]:
        wanted = {"event": event, **fields}
        return [s for s in self.said if all(s.get(k) == v for k, v in wanted.items())]

    def does(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()


@pytest.fixture
def client(installed: Path, host: Gateway) -> Start:
    @contextmanager
    def start(ticket: str) -> Iterator[Script]:
        url = host.url.replace("http", "ws") + "/ansible/room"
        with subprocess.Popen(
            ["node", "client.mjs", url, "ansible-control"],
            cwd=installed,
            env=os.environ | {"TICKET": ticket},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            script = Script(process)
            try:
                yield script
            finally:
                script.end()

    return start


def _refusal(client: Start, ticket: str) -> tuple[int, str]:
    with client(ticket) as script:
        refused = script.hears("refused")
    assert refused["bytes"] == 0, "not a byte of the room went out"
    assert refused["body"]["message"]
    return refused["status"], refused["body"]["code"]


def test_it_joins_with_a_ticket_reads_and_sees_live_changes(client: Start, host: Gateway) -> None:
    ticket = BareNode(host, "browser").ticket(host.invite("browser"))
    with client(ticket) as script:
        synced = script.hears("synced")
        assert synced["protocol"] == "gatepost"
        record = synced["nodes"]["host"]
        assert (record["writer"], record["data"]["status"]) == ("host", "online")
        host.call("PUT", "/agents/builder")
        change = script.hears("change", map="agents")["record"]
        assert change["key"] == "builder@host"
        assert change["data"]["gateway"] == "host"
        wait_until(
            lambda: any("host" in s["nodes"] for s in script.said if "present" in s.values())
        )


def test_what_it_writes_unsigned_changes_nothing_and_ends_its_connection(
    client: Start, host: Gateway
) -> None:
    before = host.records()["nodes host"]
    ticket = BareNode(host, "vandal").ticket(host.invite("vandal"))
    with client(ticket) as script:
        script.hears("synced")
        script.does("forge")
        script.hears("closed", code=4403)
    assert host.records()["nodes host"] == before
    assert host.incidents()


def test_without_a_ticket(client: Start) -> None:
    assert _refusal(client, "") == (401, "invalid_ticket")


def test_with_an_expired_ticket(client: Start, host: Gateway) -> None:
    token = host.invite(ttl_secs=2)
    invited_at = time.monotonic()
    ticket = BareNode(host, "late").ticket(token)
    # A ticket does not outlive its invite.
    wait_until(lambda: time.monotonic() > invited_at + 2)
    assert _refusal(client, ticket) == (401, "expired_ticket")


def test_with_a_used_ticket(client: Start, host: Gateway) -> None:
    node = BareNode(host, "twice")
    ticket = node.ticket(host.invite())
    node.visit(ticket)
    assert _refusal(client, ticket) == (409, "ticket_already_used")


def test_with_a_ticket_of_another_gateway(client: Start, tmp_path: Path) -> None:
    with Gateway(tmp_path, "other") as other:
        ticket = BareNode(other, "stranger").ticket(other.invite())
    assert _refusal(client, ticket) == (401, "invalid_ticket")
