"""Journals of earlier versions open, and what they hold goes on.

`released/` has, for each version of the schema, a journal that a gateway of that version wrote: of
node `ann` with agents bob, carol and reviewer. Of five messages for bob three wait, one was
answered, and one is a dead letter. There is a capability, a task that waits, and a cancelled one.
"""

import time
from hashlib import sha256
from importlib import resources
from pathlib import Path

import apsw
import httpx
import pytest

from gatepost.journal.database import load_migrations
from gatepost.testing import GatewayProcess
from tests.gateway.tools import client

RELEASED = Path(__file__).parent / "released"
# A migration that was released never changes: journals out there were made by it.
FROZEN = {
    "0001_journal.sql": "44f97920fd05c08f14840ce9b2ab691481e7aa82d7c4173c8598cc5ad7eef3f6",
    "0002_hardening.sql": "c3e148e9147d61e05e4312d28a42593a8b56dd1e5fdb94c30c08709a44c07496",
    "0003_incident_ends.sql": "600d8399c31352a7783823949733b7e185490ded8a0652593e59c34f5cb1828e",
}


def rebuild(version: str, home: Path) -> Path:
    """The state directory of the gateway that wrote this journal."""
    source = RELEASED / version
    home.mkdir(mode=0o700)
    connection = apsw.Connection(str(home / "journal.db"))
    connection.execute((source / "journal.sql").read_text())
    # Its messages were to live for a day from when it was written.
    tomorrow = int(time.time() * 1000) + 86_400_000
    connection.execute("UPDATE mail SET expires_at = ? WHERE state = 0", (tomorrow,))
    connection.execute("UPDATE delivery SET expires_at = ? WHERE expires_at > 0", (tomorrow,))
    connection.close()
    key = home / "node.key"
    key.touch(mode=0o600)
    key.write_bytes(bytes.fromhex((source / "node.key.hex").read_text()))
    return home


def test_a_released_migration_never_changes() -> None:
    folder = resources.files("gatepost.journal") / "schema"
    for name, digest in FROZEN.items():
        text = (folder / name).read_bytes()
        assert sha256(text).hexdigest() == digest, f"{name} is released: add another migration"


def test_every_version_of_the_schema_has_a_journal_here() -> None:
    latest = load_migrations()[-1][0]
    earlier = {f"{version:04}" for version in range(1, latest)}
    assert {folder.name for folder in RELEASED.iterdir()} >= earlier


def _work_through(http: httpx.Client) -> int:
    """Ack all mail of bob; return how much it was."""
    count = 0
    while taken := http.post("/v1/mailboxes/bob/dequeue", json={"limit": 9}).json()["messages"]:
        receipts = [each["receipt"] for each in taken]
        settled = http.post("/v1/mailboxes/bob/ack", json={"receipts": receipts}).json()
        count += int(settled["settled"])
    return count


@pytest.mark.parametrize("version", sorted(folder.name for folder in RELEASED.iterdir()))
def test_a_journal_of_an_earlier_version_opens_and_goes_on(version: str, tmp_path: Path) -> None:
    gateway = GatewayProcess(rebuild(version, tmp_path / "state"), node__id="ann")
    with gateway, client(gateway) as http:
        assert http.get("/v1/status").json()["accepting"]
        found = http.get("/v1/mailboxes/bob").json()["messages"]
        assert [each["state"] for each in found if each["from"] == "al"] == ["pending"] * 3
        (letter,) = http.get("/v1/mailboxes/bob/dead-letters").json()["messages"]
        assert letter["reason"] == "rejected: broken"
        tasks = {task["status"]: task for task in http.get("/api/hub/tasks").json()["tasks"]}
        assert {"pending", "cancelled"} <= set(tasks)
        (capability,) = http.get("/v1/capabilities").json()
        assert capability["capability_id"] == "review"
        assert _work_through(http) == len(found)
        body = {"agent_name": "reviewer", "description": "look", "input": {"change": 2}}
        assert http.post("/api/hub/tasks", json=body).status_code == 201
    with gateway, client(gateway) as http:
        assert http.get("/v1/mailboxes/bob").json()["messages"] == []
