"""An edge node that asks for tasks without end: it has its share of the queue, and nothing else."""

import json
import sys
from pathlib import Path
from typing import Any

import httpx

from gatepost.client import SyncClient
from gatepost.events import TaskInfo
from simulation.hostile import HostileNode
from tests.security.siege import Siege, spy_of
from tests.waiting import wait_until

_WORKER = """
import json, os, time
seconds = json.load(open(os.environ["GATEPOST_TASK_FILE"])).get("input") or 0
time.sleep(seconds)
open(os.environ["GATEPOST_RESULT_FILE"], "w").write("1")
"""
_FLOOD = 1500
# Events that are sent at once.
_BATCH = 50
_MAX_QUEUED = 1000
# Sessions of the flood go on for so long, so the queue does not drain by itself.
_FLOOD_SECS = 0.5


def _hub(siege: Siege) -> httpx.Client:
    headers = {"authorization": f"Bearer {siege.ann.token}"}
    url = f"{siege.ann.url}/api/hub"
    return httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)


def _define_worker(siege: Siege) -> None:
    definition = {"name": "worker", "command": [sys.executable, "-S", "-c", _WORKER]}
    file = siege.ann.state_dir / "agents" / "worker.json"
    file.with_suffix(".tmp").write_text(json.dumps(definition))
    file.with_suffix(".tmp").rename(file)
    with _hub(siege) as hub:
        wait_until(lambda: hub.get("/agents").json()["agents"])
    wait_until(lambda: "worker@ann" in siege.bob.routes())


def _flood(siege: Siege, node: HostileNode) -> None:
    request = json.dumps({"description": "x", "input": _FLOOD_SECS}).encode()
    with siege.linked(node) as connection:
        for n in range(1, _FLOOD + 1):
            node.outbox.add_message(
                "ann",
                node.host_key,
                "worker",
                request,
                kind="task_create",
                task=TaskInfo(),
                source_agent_id=spy_of(node),
            )
            if n % _BATCH == 0:
                connection.deliver(60)


def _count_pending(siege: Siege) -> int:
    with _hub(siege) as hub:
        answer = hub.get("/tasks", params={"status": "pending", "limit": 1000})
    return len(answer.json()["tasks"])


def _run_as_operator(siege: Siege) -> Any:
    with _hub(siege) as hub:
        body = {"description": "mine", "agent_name": "worker"}
        made = hub.post("/tasks", json=body)
        assert made.status_code == 201, made.text
        id = made.json()["id"]
        return hub.get(f"/tasks/{id}", params={"wait_secs": 30}).json()


def test_a_flood_of_tasks_fills_the_share_of_its_node_and_ends_with_its_revocation(
    tmp_path: Path,
) -> None:
    settings = {"hub__max_sessions": 2, "hub__max_queued": _MAX_QUEUED, "hub__sandbox": "none"}
    with Siege.laid(tmp_path, **settings) as siege:
        _define_worker(siege)
        mallory = siege.admit("mallory")
        _flood(siege, mallory)
        siege.expect_named("mallory")
        assert _count_pending(siege) < _MAX_QUEUED / 2
        assert _run_as_operator(siege)["status"] == "completed"
        with SyncClient("bo", state_dir=siege.bob.state_dir) as bo:
            assert bo.run_task("honest", to="worker", timeout=60) == 1
        assert _count_pending(siege) > 50, "the flood is still there"
        siege.ann.call("POST", "/room/nodes/mallory/revoke", {})
        wait_until(lambda: _count_pending(siege) == 0, 10)
        assert len(siege.naming("mallory")) == 1, "one incident, which names the source"
        assert _run_as_operator(siege)["status"] == "completed"
