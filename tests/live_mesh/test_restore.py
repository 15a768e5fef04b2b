"""A gateway comes back from a backup, in the middle of traffic with another one."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from gatepost.client import SyncClient
from gatepost.clock import SystemClock
from gatepost.core.state_dir import StateDir
from gatepost.errors import GatepostError
from gatepost.gateway.admin.backup import create_backup, restore_backup
from gatepost.room import lib0
from gatepost.room.signed_record import sign_record
from tests.gateway.tools import client, settings
from tests.live_mesh.tools import BareNode, Gateway, converge
from tests.room.sample_records import node, update
from tests.waiting import wait_until

_OPEN = "SELECT count(*) FROM delivery WHERE processed_at IS NULL"


class Worker:
    """An agent that writes down every turn it completed, as no restored journal would."""

    def __init__(self, gateway: Gateway, name: str, turns: Counter[str]) -> None:
        self._gateway = gateway
        self._name = name
        self._turns = turns
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join(timeout=20)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with client(self._gateway) as http:
                    self._work(http)
            except (OSError, ValueError, KeyError):
                self._ending.wait(0.05)
            except Exception as error:
                if type(error).__module__.split(".")[0] not in ("httpx", "httpcore"):
                    raise
                self._ending.wait(0.05)

    def _work(self, http: Any) -> None:
        path = f"/v1/mailboxes/{self._name}"
        while not self._ending.is_set():
            asked = http.post(f"{path}/dequeue", json={"limit": 5, "wait_secs": 0.2}).json()
            for message in asked["messages"]:
                # The turn counts as taken even if its end is never heard of.
                self._turns[message["payload"]] += message["attempt"] == 0
                http.post(f"{path}/ack", json={"receipts": [message["receipt"]]})


def _traffic(gateway: Gateway, sender: str, to: str, label: str, count: int) -> list[str]:
    """Payloads that were acknowledged."""
    sent = []
    with SyncClient(sender, state_dir=gateway.state_dir) as http:
        for number in range(count):
            payload = f"{label}-{number}"
            try:
                http.send(to, payload, timeout=5.0)
            except GatepostError:
                continue
            sent.append(payload)
    return sent


def _rows(gateway: Gateway, sql: str) -> list[Any]:
    connection = apsw.Connection(
        str(gateway.state_dir / "journal.db"), flags=apsw.SQLITE_OPEN_READONLY
    )
    connection.set_busy_timeout(5_000)
    try:
        return list(connection.execute(sql))
    finally:
        connection.close()


def _payloads_of_dead(gateway: Gateway) -> set[str]:
    dead = "SELECT b.payload FROM dead_letter d JOIN body b ON b.id = d.id"
    found = _rows(gateway, f"{dead} UNION ALL SELECT payload FROM undelivered")
    return {bytes(row[0]).decode().strip('"') for row in found}


@pytest.mark.parametrize("restored", ["ann", "bob"])
def test_nothing_is_doubled_and_nothing_acknowledged_is_lost_silently(
    start: Callable[..., list[Gateway]], tmp_path: Path, restored: str
) -> None:
    ann, bob = start("ann", "bob", delivery__offline_secs=1, delivery__accept_timeout_secs=1)
    bob.join(ann)
    for gateway, agent in ((ann, "al"), (bob, "bo")):
        gateway.call("PUT", f"/agents/{agent}")
    wait_until(lambda: {"al@ann", "bo@bob"} <= ann.routes() & bob.routes())
    turns: Counter[str] = Counter()
    victim = ann if restored == "ann" else bob
    other = bob if restored == "ann" else ann

    def send(label: str, count: int) -> list[str]:
        there = _traffic(ann, "al", "bo", f"{label}-a", count)
        return there + _traffic(bob, "bo", "al", f"{label}-b", count)

    # Before the backup: what waits in a mailbox then is what the restore finds there.
    sent = send("waits", 5)
    wait_until(lambda: all(each.get("/v1/status")["waiting"] == 5 for each in (ann, bob)))
    create_backup(StateDir(victim.state_dir), tmp_path / "backup.tar", SystemClock())
    workers = [Worker(ann, "al", turns), Worker(bob, "bo", turns)]
    sent += send("since", 20)
    wait_until(lambda: sum(turns.values()) >= 45)
    lost = _traffic(other, "al" if other is ann else "bo", "bo" if other is ann else "al", "x", 3)
    sent += lost
    victim.kill9()
    sent += _traffic(
        other, "al" if other is ann else "bo", "bo" if other is ann else "al", "down", 5
    )
    restore_backup(
        tmp_path / "backup.tar", settings(victim.state_dir, node__id=victim.name), SystemClock()
    )
    victim.start()
    converge(ann, bob)
    # It is a member again: records that it writes now reach the other.
    victim.call("PUT", "/agents/newcomer")
    wait_until(lambda: f"agents newcomer@{victim.name}" in other.records())
    assert other.nodes()[victim.name]["status"] == "online"
    sent += send("after", 20)

    def settled() -> bool:
        return all(_rows(gateway, _OPEN) == [(0,)] for gateway in (ann, bob))

    wait_until(settled, 40)
    for worker in workers:
        worker.end()
    doubled = {payload: count for payload, count in turns.items() if count > 1}
    assert doubled == {}, "somebody took a turn twice"
    dead = _payloads_of_dead(ann) | _payloads_of_dead(bob)
    silent = [payload for payload in sent if not turns[payload] and payload not in dead]
    assert silent == []
    after = [payload for payload in sent if payload.startswith("after")]
    assert len(after) == 40
    assert all(turns[payload] == 1 for payload in after), "what comes after works as ever"
    assert all(turns[p] == 1 for p in sent if p.startswith("down"))


def _restore(gateway: Gateway, other: Gateway, backup: Path) -> None:
    """Restore a gateway; return once the other one has heard from it."""
    gateway.kill9()
    restore_backup(backup, settings(gateway.state_dir, node__id=gateway.name), SystemClock())
    gateway.start()
    wait_until(lambda: gateway.call("GET", "/room")["epoch"] == 2, 30)
    gateway.call("PUT", f"/agents/of-{gateway.name}")
    wait_until(lambda: f"agents of-{gateway.name}@{gateway.name}" in other.records(), 30)
    converge(gateway, other)


def test_a_restored_genesis_invites_revokes_and_rotates_and_a_restored_edge_is_online(
    start: Callable[..., list[Gateway]], tmp_path: Path
) -> None:
    """Both backups are older than the document that the room is in by now."""
    ann, bob = start("ann", "bob", delivery__offline_secs=1)
    bob.join(ann, "edge")
    converge(ann, bob)
    for gateway in (ann, bob):
        backup = tmp_path / f"{gateway.name}.tar"
        create_backup(StateDir(gateway.state_dir), backup, SystemClock())
    ann.call("POST", "/room/rotate", {})
    wait_until(lambda: bob.call("GET", "/room")["epoch"] == 2, 20)
    _restore(ann, bob, tmp_path / "ann.tar")
    _restore(bob, ann, tmp_path / "bob.tar")
    BareNode(ann, "cat").enter(ann.invite("cat", "edge"))
    eve = BareNode(ann, "eve")
    genesis, author = eve.enter(ann.invite("eve", "edge"))
    with eve.open(eve.ticket()) as socket:
        own = sign_record(author, "nodes", "eve", 1, 1, node(author, genesis))
        socket.send(b"\x00\x02" + lib0.encode_bytes(update(own, epoch=2)))
        wait_until(lambda: "eve" in ann.nodes())
    ann.call("POST", "/room/nodes/eve/revoke", {})
    wait_until(lambda: "nodes eve@ann" in bob.records())
    assert ann.call("POST", "/room/rotate", {})["epoch"] == 3
    wait_until(lambda: bob.call("GET", "/room")["epoch"] == 3, 20)
    converge(ann, bob)
    assert {each: found["status"] for each, found in bob.nodes().items()} == {
        "ann": "online",
        "bob": "online",
    }
    for gateway in (ann, bob):
        assert gateway.call("GET", "/room/verify")["problems"] == []
