"""The log of a task, read at the gateway that requested it and not at the one that executes it."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gatepost.errors import NotFound
from gatepost.tasks.service.remote_logs import find_logged_task
from gatepost.tasks.task_states import TaskState
from gatepost.testing import GatewayProcess
from tests.cli.conftest import Cli
from tests.gateway.tools import client
from tests.tasks.harness import HubHarness
from tests.waiting import wait_until

SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("stopping"), time.sleep(1), sys.exit(1)))
print("begun")
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GatewayProcess, ...]]:
    """Two gateways in one room; bob's hub runs an agent."""
    folder = tmp_path_factory.mktemp("logs")
    given: dict[str, object] = {"room__profile": "development", "hub__sandbox": "none"}
    ann = GatewayProcess(folder / "ann", node__id="ann", **given)
    bob = GatewayProcess(folder / "bob", node__id="bob", **given)
    (folder / "bob" / "agents").mkdir(parents=True)
    (folder / "bob").chmod(0o700)
    definition = {"name": "worker", "command": [sys.executable, "-u", "-c", SCRIPT]}
    (folder / "bob" / "agents" / "worker.json").write_text(json.dumps(definition))
    with ann, bob:
        with client(ann) as http:
            body = {"tier": "backbone", "node": "bob"}
            invite = http.post("/v1/room/invites", json=body).raise_for_status().json()
        with client(bob) as http:
            body = {"token": invite["token"], "seed": ann.url}
            http.post("/v1/room/join", json=body, timeout=60).raise_for_status()
        wait_until(lambda: len(ann.get("/v1/status")["peers"]) == 1)
        yield ann, bob


def create(http: httpx.Client) -> str:
    body = {"description": "x", "agent_name": "worker"}
    # The agent is not known here until the room says where it lives.
    made: Any = wait_until(
        lambda: (answer := http.post("/api/hub/tasks", json=body)).is_success and answer.json(), 30
    )
    return str(made["id"])


def read_log(http: httpx.Client, id: str, **query: Any) -> Any:
    answer = http.get(f"/api/hub/tasks/{id}/log", params={"wait_secs": 20, **query}, timeout=60)
    assert answer.is_success, answer.text
    return answer.json()


def test_a_remote_task_is_followed_through_its_cancellation(
    pair: tuple[GatewayProcess, ...],
) -> None:
    ann, bob = pair
    with client(ann) as http, client(bob) as executor:
        id = create(http)
        first = wait_until(lambda: (got := read_log(http, id))["text"] and got)
        assert (first["text"], first["is_complete"]) == ("begun\n", False)
        assert first["session_state"] == "running"
        assert http.post(f"/api/hub/tasks/{id}/cancel", json={}).is_success
        second = read_log(http, id, offset=first["end"])
        assert (second["offset"], second["text"]) == (first["end"], "stopping\n")

        def is_complete() -> Any:
            return (got := read_log(http, id, offset=second["end"]))["is_complete"] and got

        assert wait_until(is_complete)["session_state"] in ("recycling", "recycled")
        assert read_log(http, id, offset=-9, wait_secs=0)["text"] == "stopping\n"
        there = executor.get("/api/hub/sessions").json()["sessions"]
        assert [each["task_id"] for each in there] == [id], "bob executes it"
        shown = http.get(f"/api/hub/tasks/{id}", params={"wait_secs": 20}).json()
        assert shown["status"] == "cancelled"


def test_the_command_line_of_the_requester_follows_a_cancellation(
    pair: tuple[GatewayProcess, ...],
) -> None:
    ann, _ = pair
    cli = Cli(ann.state_dir)
    with client(ann) as http:
        id = create(http)
        wait_until(lambda: read_log(http, id)["text"])
    with cli.running("task", "logs", id, "-f") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "begun\n"
        cancelled = cli("task", "cancel", id, "--reason", "enough", "--wait")
        out, err = following.communicate(timeout=30)
    assert (cancelled.code, cancelled.out) == (0, f"{id} cancelled\n"), cancelled
    assert (following.returncode, out) == (0, "stopping\n")
    assert "gatepost: the session is recycl" in err
    assert cli.json("task", "show", id)["status"] == "cancelled"


def test_only_the_gateway_that_requested_a_task_finds_its_log() -> None:
    hub = HubHarness()
    id = hub.add_task(requester_node="ann", state=TaskState.RUNNING)
    own = hub.add_task(state=TaskState.RUNNING)
    assert hub.run(lambda tx: find_logged_task(tx, "ann", id))[0].id == id
    for asker, task in (("eve", id), ("ann", own), ("ann", hub.ids.next_id())):
        with pytest.raises(NotFound, match="no such task"):
            hub.run(lambda tx, a=asker, t=task: find_logged_task(tx, a, t))  # type: ignore[misc]
