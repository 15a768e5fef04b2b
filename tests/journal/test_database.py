"""Opening a journal: lock, permissions, damage, schema versions."""

import stat
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from gatepost.errors import JournalCorrupt, JournalLocked, JournalTooNew
from gatepost.journal import Database, Tx, open_memory_journal
from gatepost.journal.database import IntegrityCheck, load_migrations, migrate_schema


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


def fill(path: Path) -> None:
    """A journal of some hundred pages, all of them in the file itself."""
    database = Database.open(path)
    rows = ((n, bytes(3_000)) for n in range(300))
    database.writer_connection.executemany("INSERT INTO body (id, payload) VALUES (?, ?)", rows)
    database.writer_connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    database.close()


def scribble(path: Path, first: int, last: int) -> None:
    with path.open("r+b") as file:
        file.seek(first * 4096)
        file.write(b"\xa5" * 4096 * (last - first))


def test_files_are_for_the_owner_only(path: Path) -> None:
    database = Database.open(path)
    database.writer_connection.execute("INSERT INTO fact (name, value) VALUES ('a', 1)")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    database.close()
    assert modes == dict.fromkeys(
        ["journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock"], 0o600
    )
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_commits_wait_for_the_disk(path: Path) -> None:
    database = Database.open(path)
    assert database.writer_connection.pragma("journal_mode") == "wal"
    assert database.writer_connection.pragma("synchronous") == 2
    database.close()


def test_second_open_is_refused(path: Path) -> None:
    database = Database.open(path)
    with pytest.raises(JournalLocked, match="in use by another gateway"):
        Database.open(path)
    database.close()
    Database.open(path).close()


def test_second_open_is_refused_to_another_process(path: Path) -> None:
    database = Database.open(path)
    script = f"""
from pathlib import Path
from gatepost.errors import JournalLocked
from gatepost.journal import Database
try:
    Database.open(Path({str(path)!r}))
except JournalLocked:
    print("locked")
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    database.close()
    assert result.stdout == "locked\n"


def test_failed_open_lets_go_of_the_lock(path: Path) -> None:
    fill(path)
    good = path.read_bytes()
    scribble(path, 0, 1)
    with pytest.raises(JournalCorrupt):
        Database.open(path)
    path.write_bytes(good)
    Database.open(path).close()


def test_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    Database.open(path).close()
    newer = load_migrations()[-1][0] + 1
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", newer)
    connection.close()
    with pytest.raises(JournalTooNew, match=f"schema {newer}"):
        Database.open(path)
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == newer
    connection.close()


@pytest.mark.parametrize("check", ["quick", "full"])
def test_damaged_file_is_refused(path: Path, check: IntegrityCheck) -> None:
    fill(path)
    scribble(path, 200, 260)
    with pytest.raises(JournalCorrupt, match="restore it from a backup"):
        Database.open(path, check)


@pytest.mark.parametrize("check", ["quick", "full", "off"])
def test_file_that_is_no_journal_is_refused(path: Path, check: IntegrityCheck) -> None:
    path.parent.mkdir()
    path.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(JournalCorrupt):
        Database.open(path, check)


def test_damage_nobody_looks_for_is_not_found(path: Path) -> None:
    fill(path)
    scribble(path, 200, 260)
    Database.open(path, "off").close()


def test_migrations_are_numbered_without_gaps() -> None:
    assert [version for version, _ in load_migrations()] == list(
        range(1, len(load_migrations()) + 1)
    )


def test_migrating_twice_changes_nothing() -> None:
    connection = open_memory_journal()
    schema = connection.execute("SELECT sql FROM sqlite_schema").fetchall()
    migrate_schema(connection, Path("again"))
    assert connection.execute("SELECT sql FROM sqlite_schema").fetchall() == schema
    assert connection.pragma("user_version") == load_migrations()[-1][0]


def test_migrations_run_in_order_and_only_those_that_are_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [(1, "CREATE TABLE a (x)"), (2, "ALTER TABLE a ADD y")]
    monkeypatch.setattr("gatepost.journal.database.load_migrations", lambda: steps)
    connection = open_memory_journal()
    connection.execute("INSERT INTO a VALUES (1, 2)")
    steps.append((3, "UPDATE a SET y = y + x; UPDATE a SET x = 10"))
    migrate_schema(connection, Path("newer"))
    migrate_schema(connection, Path("same"))
    assert connection.execute("SELECT * FROM a").fetchall() == [(10, 3)]
    assert connection.pragma("user_version") == 3


def test_migration_that_fails_leaves_the_version_before(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(1, "CREATE TABLE a (x)"), (2, "CREATE TABLE b (x); SELECT nonsense")]
    monkeypatch.setattr("gatepost.journal.database.load_migrations", lambda: steps)
    connection = apsw.Connection(":memory:")
    with pytest.raises(apsw.SQLError):
        migrate_schema(connection, Path("broken"))
    assert connection.pragma("user_version") == 1
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("a",)]


def test_reader_sees_what_is_committed_and_cannot_write(path: Path) -> None:
    database = Database.open(path)
    reader = database.open_reader()
    tx = Tx(database.writer_connection, 0)
    tx.begin()
    tx.execute("INSERT INTO fact (name, value) VALUES ('a', 1)")
    query = "SELECT value FROM fact WHERE name = 'a'"
    assert reader.execute(query).fetchall() == []
    tx.commit()
    assert reader.execute(query).fetchall() == [(1,)]
    with pytest.raises(apsw.ReadOnlyError):
        reader.execute("DELETE FROM fact")
    reader.close()
    database.close()


def test_every_connection_keeps_its_query_plans(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "journal.db")
    reader = database.open_reader()
    for connection in (database.writer_connection, reader, open_memory_journal()):
        assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
    reader.close()
    database.close()
