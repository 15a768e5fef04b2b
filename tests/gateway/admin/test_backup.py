"""Backup and restore of a real gateway's state directory."""

import os
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.clock import SystemClock
from gatepost.core.state_dir import StateDir
from gatepost.errors import BackupError, JournalLocked
from gatepost.events import ChainHead, NodeKey, genesis_chain, verify_group
from gatepost.gateway.admin.backup import (
    BackupManifest,
    create_backup,
    draw_version_leap,
    read_manifest,
    restore_backup,
)
from gatepost.room.signed_record import MAX_VERSION
from gatepost.testing import GatewayProcess
from tests.gateway.tools import client, dump, settings

LARGE = "x" * 200_000


@pytest.fixture
def running(start: Callable[..., GatewayProcess]) -> GatewayProcess:
    gateway = start(node__id="ann")
    with client(gateway) as http:
        http.put("/v1/agents/bob")
    return gateway


def _send(gateway: GatewayProcess, payload: object = "hi") -> str:
    body = {"from_agent": "al", "to_agent": "bob", "payload": payload}
    with client(gateway) as http:
        answer = http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["event_id"])


def _work(gateway: GatewayProcess) -> int:
    done = 0
    with client(gateway) as http:
        while mail := http.post("/v1/mailboxes/bob/dequeue", json={"limit": 100}).json()[
            "messages"
        ]:
            receipts = [message["receipt"] for message in mail]
            http.post("/v1/mailboxes/bob/ack", json={"receipts": receipts})
            done += len(mail)
    return done


def _backup(gateway: GatewayProcess, file: Path) -> BackupManifest:
    return create_backup(StateDir(gateway.state_dir), file, SystemClock())


def _restore(file: Path, state_dir: Path, node: str = "ann") -> Any:
    return restore_backup(file, settings(state_dir, node__id=node), SystemClock())


def test_a_thousand_restores_in_a_row_fit_into_the_versions_of_a_record() -> None:
    version = sum(draw_version_leap(SystemClock()) for _ in range(1000))
    assert version < MAX_VERSION


def test_a_backup_is_one_private_file_made_while_the_gateway_runs(
    running: GatewayProcess, tmp_path: Path
) -> None:
    _send(running)
    _send(running, LARGE)
    made = _backup(running, tmp_path / "ann.tar")
    assert (tmp_path / "ann.tar").stat().st_mode & 0o777 == 0o600
    assert (made.node_id, made.blobs, made.missing) == ("ann", 1, 0)
    assert read_manifest(tmp_path / "ann.tar") == made
    with tarfile.open(tmp_path / "ann.tar") as tar:
        names = tar.getnames()
        assert {member.mode for member in tar} == {0o600}
    assert names[:3] == ["manifest.json", "node.key", "journal.db"]
    assert len(names) == 4
    leftovers = [path for path in tmp_path.iterdir() if path.name.startswith(".ann")]
    assert leftovers == []


def test_a_backup_replaces_nothing(running: GatewayProcess, tmp_path: Path) -> None:
    (tmp_path / "ann.tar").write_text("mine")
    with pytest.raises(BackupError, match="replaces nothing"):
        _backup(running, tmp_path / "ann.tar")
    assert (tmp_path / "ann.tar").read_text() == "mine"


def test_a_backup_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="there is no journal"):
        create_backup(StateDir(tmp_path / "empty"), tmp_path / "x.tar", SystemClock())


def test_a_folder_that_cannot_be_written_is_an_error(
    running: GatewayProcess, tmp_path: Path
) -> None:
    with pytest.raises(BackupError, match="cannot be written"):
        _backup(running, tmp_path / "none" / "ann.tar")


def test_a_restored_gateway_has_what_waited_as_dead_letters(
    running: GatewayProcess, tmp_path: Path
) -> None:
    small, large = _send(running), _send(running, LARGE)
    _backup(running, tmp_path / "ann.tar")
    assert _work(running) == 2
    running.kill9()
    done = _restore(tmp_path / "ann.tar", running.state_dir)
    assert (done.dead_letters, done.in_doubt, done.blobs) == (2, 0, 1)
    running.start()
    assert _work(running) == 0
    with client(running) as http:
        dead = http.get("/v1/mailboxes/bob/dead-letters").json()["messages"]
        assert [each["msg_id"] for each in dead] == [small, large]
        assert {each["reason"] for each in dead} == {"restored from a backup"}
        assert http.get(f"/v1/messages/{small}").json()["outcome"] == "dead_letter"
        http.post("/v1/mailboxes/bob/dead-letters/replay", json={})
        mail = http.post("/v1/mailboxes/bob/dequeue", json={"limit": 10}).json()["messages"]
        assert mail[0]["payload"] == "hi"
        fetched = http.get(f"/v1/blobs/{mail[1]['event']['payload_ref']}").text
        assert fetched == f'"{LARGE}"'


def test_the_outbox_goes_on_in_a_new_life_with_a_chain_of_its_own(
    running: GatewayProcess, tmp_path: Path
) -> None:
    _send(running)
    made = _backup(running, tmp_path / "ann.tar")
    running.kill9()
    done = _restore(tmp_path / "ann.tar", running.state_dir)
    assert (done.first_seq, done.incarnation != made.incarnation) == (made.last_seq + 1, True)
    running.start()
    _send(running)
    running.stop()
    rows = dump(running.state_dir / "journal.db")
    seqs = [row[0] for row in rows["outbox"]]
    assert seqs == list(range(1, len(seqs) + 1))
    assert sorted(first for _, first in rows["incarnation"]) == [1, done.first_seq]
    head = next(row for row in rows["head"] if row[1] == done.first_seq)
    digests = [row[5] for row in rows["outbox"] if head[1] <= row[0] <= head[0]]
    key = NodeKey((running.state_dir / "node.key").read_bytes())
    signed = ChainHead("ann", done.incarnation, head[1], head[0], head[2], head[3])
    verify_group(genesis_chain("ann", done.incarnation), digests, signed, key.public)


def test_a_restore_to_an_empty_folder_is_the_same_node(
    running: GatewayProcess, tmp_path: Path
) -> None:
    _backup(running, tmp_path / "ann.tar")
    done = _restore(tmp_path / "ann.tar", tmp_path / "other")
    assert done.kept_in is None
    key = (tmp_path / "other" / "node.key").read_bytes()
    assert key == (running.state_dir / "node.key").read_bytes()
    for name in ("node.key", "journal.db"):
        assert (tmp_path / "other" / name).stat().st_mode & 0o777 == 0o600


def test_what_was_there_is_moved_aside_with_its_log(
    running: GatewayProcess, tmp_path: Path
) -> None:
    _backup(running, tmp_path / "ann.tar")
    _send(running)
    running.kill9()
    assert (running.state_dir / "journal.db-wal").exists()
    done = _restore(tmp_path / "ann.tar", running.state_dir)
    kept = Path(done.kept_in)
    assert {path.name for path in kept.iterdir()} >= {"journal.db", "journal.db-wal"}
    assert len(dump(kept / "journal.db")["delivery"]) == 1
    assert not (running.state_dir / "restoring").exists()
    running.start()


def test_a_running_gateway_is_not_restored(running: GatewayProcess, tmp_path: Path) -> None:
    _backup(running, tmp_path / "ann.tar")
    with pytest.raises(JournalLocked):
        _restore(tmp_path / "ann.tar", running.state_dir)


def test_another_nodes_backup_is_refused(running: GatewayProcess, tmp_path: Path) -> None:
    _backup(running, tmp_path / "ann.tar")
    with pytest.raises(BackupError, match="of node 'ann', and this is 'bea'"):
        _restore(tmp_path / "ann.tar", tmp_path / "other", node="bea")


def test_another_nodes_key_is_kept(running: GatewayProcess, tmp_path: Path) -> None:
    _backup(running, tmp_path / "ann.tar")
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    (other / "node.key").write_bytes(os.urandom(32))
    with pytest.raises(BackupError, match="another key"):
        _restore(tmp_path / "ann.tar", other)
    assert not (other / "journal.db").exists()


def test_a_damaged_backup_changes_nothing(running: GatewayProcess, tmp_path: Path) -> None:
    _backup(running, tmp_path / "ann.tar")
    content = bytearray((tmp_path / "ann.tar").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "bad.tar").write_bytes(content)
    running.kill9()
    before = (running.state_dir / "journal.db").read_bytes()
    with pytest.raises(BackupError, match="damaged"):
        _restore(tmp_path / "bad.tar", running.state_dir)
    assert (running.state_dir / "journal.db").read_bytes() == before
    (tmp_path / "short.tar").write_bytes(content[:20_000])
    with pytest.raises(BackupError):
        _restore(tmp_path / "short.tar", running.state_dir)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"x" * 10_240])
def test_what_is_no_backup_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(BackupError, match="no backup"):
        read_manifest(tmp_path / "x.tar")


def test_names_in_a_backup_lead_nowhere_else(running: GatewayProcess, tmp_path: Path) -> None:
    _backup(running, tmp_path / "ann.tar")
    with tarfile.open(tmp_path / "ann.tar", "a") as tar:
        for name in ("../evil", "blobs/../../evil", "blobs/" + "../" * 21 + "e", "/tmp/evil"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, BytesIO(b"evil"))
    _restore(tmp_path / "ann.tar", tmp_path / "deep" / "other")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["other"]
    assert list((tmp_path / "deep" / "other" / "blobs").iterdir()) == []


def test_a_backup_of_a_stopped_gateway_works_too(running: GatewayProcess, tmp_path: Path) -> None:
    _send(running)
    running.stop()
    assert _backup(running, tmp_path / "ann.tar").last_seq == 2


def test_open_tasks_of_a_restored_gateway_have_failed_and_others_are_as_they_were(
    running: GatewayProcess, tmp_path: Path
) -> None:
    def create() -> str:
        body = {"description": "do it", "agent_name": "bob"}
        with client(running) as http:
            made = http.post("/api/hub/tasks", json=body)
        return str(made.json()["id"])

    cancelled, waiting = create(), create()
    with client(running) as http:
        http.post(f"/api/hub/tasks/{cancelled}/cancel", json={"reason": "enough"})
    _backup(running, tmp_path / "ann.tar")
    running.stop()
    _restore(tmp_path / "ann.tar", tmp_path / "new")
    restored = GatewayProcess(tmp_path / "new", node__id="ann")
    with restored:
        tasks = {id: restored.get(f"/api/hub/tasks/{id}") for id in (cancelled, waiting)}
    assert tasks[cancelled]["state"] == "cancelled"
    assert tasks[waiting]["state"] == "failed"
    assert tasks[waiting]["error_code"] in ("executor_lost", "rejected")


def _write_settings(state_dir: Path) -> None:
    (state_dir / "agents").mkdir(mode=0o700, exist_ok=True)
    for name in ("gatepost.toml", "tls.key", "tls.crt", "policy.cedar", "agents/reviewer.json"):
        (state_dir / name).write_text(f"# {name}\n")


def test_a_blank_machine_gets_its_settings_and_certificate_back(
    running: GatewayProcess, tmp_path: Path
) -> None:
    _write_settings(running.state_dir)
    made = _backup(running, tmp_path / "ann.tar")
    blank = tmp_path / "blank"
    done = restore_backup(tmp_path / "ann.tar", settings(blank), SystemClock())
    assert done.node_id == "ann"
    assert done.settings == made.settings
    assert set(made.settings) == {
        *("gatepost.toml", "tls.key", "tls.crt", "policy.cedar", "agents/reviewer.json")
    }
    for name in made.settings:
        assert (blank / name).read_text() == f"# {name}\n"
        assert (blank / name).stat().st_mode & 0o777 == 0o600


def test_settings_that_are_there_stay_as_they_are(running: GatewayProcess, tmp_path: Path) -> None:
    _write_settings(running.state_dir)
    _backup(running, tmp_path / "ann.tar")
    there = tmp_path / "there"
    there.mkdir(mode=0o700)
    (there / "gatepost.toml").write_text("mine")
    done = restore_backup(tmp_path / "ann.tar", settings(there), SystemClock())
    assert done.present == ("gatepost.toml",)
    assert (there / "gatepost.toml").read_text() == "mine"
    assert "tls.key" in done.settings


@pytest.mark.parametrize("name", ["../x", "agents/../../x", "token", "agents/a/b", "journal.db"])
def test_a_forged_backup_puts_no_file_elsewhere(
    running: GatewayProcess, tmp_path: Path, name: str
) -> None:
    _backup(running, tmp_path / "ann.tar")
    with (
        tarfile.open(tmp_path / "ann.tar") as good,
        tarfile.open(tmp_path / "forged.tar", "w") as forged,
    ):
        for member in good:
            content = good.extractfile(member)
            assert content is not None
            body = content.read()
            if member.name == "manifest.json":
                manifest = msgspec.json.decode(body)
                body = msgspec.json.encode(manifest | {"settings": [name]})
                member.size = len(body)
            forged.addfile(member, BytesIO(body))
        planted = tarfile.TarInfo(f"settings/{name}")
        planted.size = 4
        forged.addfile(planted, BytesIO(b"evil"))
    blank = tmp_path / "deep" / "blank"
    blank.parent.mkdir()
    done = restore_backup(tmp_path / "forged.tar", settings(blank), SystemClock())
    assert done.settings == ()
    found = [p for p in (tmp_path / "deep").rglob("*") if p.is_file() and p.read_bytes() == b"evil"]
    assert found == []
