"""The room in the journal comes back as it was, also after the power went."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from gatepost.errors import JournalCorrupt
from gatepost.journal import Database, Tx, open_memory_journal
from gatepost.room import SharedRoom, store
from gatepost.room.signed_record import SignedRecord
from gatepost.room.store import RoomIdentity
from tests.room.sample_records import (
    GENESIS,
    NOW,
    ROOT,
    agent,
    author,
    claim,
    contents,
    entry,
    proof_of,
    publish,
    room,
    shown,
)

BEN = author("ben")
RECORDS = [entry(ROOT), entry(BEN, 5), claim(BEN, "agents", "job", agent("ben"), 3)]


def saved(*records: SignedRecord) -> Tx:
    tx = Tx(open_memory_journal(), NOW)
    store.create_room(tx, RoomIdentity(GENESIS))
    store.save_records(tx, records)
    return tx


def test_what_was_saved_is_loaded() -> None:
    assert set(store.load_records(saved(*RECORDS), GENESIS)) == set(RECORDS)


def test_a_gateway_in_no_room_knows_that() -> None:
    tx = Tx(open_memory_journal(), NOW)
    assert store.load_room_identity(tx) is None
    store.create_room(tx, RoomIdentity(GENESIS))
    assert store.load_room_identity(tx) == RoomIdentity(GENESIS)


def test_a_gateway_is_in_one_room_for_ever() -> None:
    with pytest.raises(apsw.ConstraintError):
        store.create_room(saved(), RoomIdentity(GENESIS))


def test_only_the_latest_version_is_kept_in_whatever_order() -> None:
    tx = saved(entry(BEN, 2), entry(BEN, 9), entry(BEN, 4))
    assert store.load_records(tx, GENESIS) == [entry(BEN, 9)]


def test_storage_itself_refuses_to_go_back() -> None:
    with pytest.raises(apsw.ConstraintError, match="newer version"):
        saved(entry(BEN, 9)).execute("UPDATE room_record SET version = 3")


def test_rotation_replaces_everything_at_once() -> None:
    tx = saved(*RECORDS)
    store.replace_records(tx, 2, proof_of(2), RECORDS[:1])
    assert store.load_room_identity(tx) == RoomIdentity(GENESIS, 2, proof_of(2))
    assert store.load_records(tx, GENESIS) == RECORDS[:1]


def test_verify_finds_what_was_tampered_with() -> None:
    tx = saved(*RECORDS)
    assert list(store.find_violations(tx, GENESIS)) == []
    tx.execute("UPDATE room_record SET record = replace(record, '\"online\"', '\"offline\"')")
    assert [violation.rule for violation in store.find_violations(tx, GENESIS)] == ["signature"] * 2


def test_a_damaged_record_is_noticed_when_loading() -> None:
    tx = saved(*RECORDS)
    tx.execute("UPDATE room_record SET record = 'nonsense'")
    with pytest.raises(JournalCorrupt, match="damaged"):
        store.load_records(tx, GENESIS)


WRITER = """
import sys
from pathlib import Path
from gatepost.journal import Database, Tx
from gatepost.room import store
from gatepost.room.store import RoomIdentity
from tests.room.sample_records import GENESIS, NOW, author, entry
database = Database.open(Path(sys.argv[1]))
for version in range(1, 1_000_000):
    tx = Tx(database.writer_connection, NOW)
    tx.begin()
    if version == 1:
        store.create_room(tx, RoomIdentity(GENESIS))
    store.save_records(tx, [entry(author("ben"), version)])
    tx.commit()
    print(version, flush=True)
"""


def test_what_was_heard_of_before_a_kill_is_there_after_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    command = [sys.executable, "-c", WRITER, str(path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as writer:
        assert writer.stdout is not None
        heard = [int(writer.stdout.readline()) for _ in range(20)][-1]
        os.kill(writer.pid, signal.SIGKILL)
    database = Database.open(path)
    reopened = store.load_records(Tx(database.writer_connection, NOW), GENESIS)
    database.close()
    assert [signed.key for signed in reopened] == ["ben"]
    assert reopened[0].version >= heard


def test_a_reopened_room_is_the_same_room_and_goes_on() -> None:
    before = room(*RECORDS, of=BEN)
    tx = saved(*before.document)
    found = store.load_room_identity(tx)
    assert found is not None
    after = SharedRoom(
        found.genesis,
        author=BEN,
        epoch=found.epoch,
        records=store.load_records(tx, found.genesis),
    )
    assert (contents(after), shown(after)) == (contents(before), shown(before))
    assert sorted(after.document.slot_clocks()) == sorted(before.document.slot_clocks())
    (gone,) = publish(after, "agents", "job@ben", None, NOW)
    assert gone.version == 4
