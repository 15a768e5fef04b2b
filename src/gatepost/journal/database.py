"""Open one gateway's SQLite file: lock, pragmas, integrity check, migrations."""

import os
from importlib import resources
from pathlib import Path
from typing import IO, Literal

import apsw

from gatepost.errors import JournalCorrupt, JournalLocked, JournalTooNew
from gatepost.files import lock_file

IntegrityCheck = Literal["quick", "full", "off"]

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # FULL makes every COMMIT wait for the disk; every positive answer relies on it.
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -65536",
    "PRAGMA wal_autocheckpoint = 4000",
    "PRAGMA temp_store = MEMORY",
)
_CHECKS = {"quick": "PRAGMA quick_check(1)", "full": "PRAGMA integrity_check(1)"}


class Database:
    """An open journal file, one per path at a time. `writer_connection` belongs to one thread."""

    def __init__(self, path: Path, writer: apsw.Connection, lock: IO[bytes]) -> None:
        self.path = path
        self.writer_connection = writer
        self._lock = lock

    @classmethod
    def open(cls, path: Path, check: IntegrityCheck = "quick") -> "Database":
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        guard = lock_journal(path)
        try:
            connection = _open_connection(path, check)
        except BaseException:
            guard.close()
            raise
        return cls(path, connection, guard)

    def open_reader(self) -> apsw.Connection:
        """Open a read-only connection; each statement sees the commits before it began."""
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(5_000)
        keep_query_plans(connection)
        return connection

    def close(self) -> None:
        self.writer_connection.close()
        self._lock.close()


def open_memory_journal() -> apsw.Connection:
    """Open an empty journal in memory, for simulations and tests."""
    connection = apsw.Connection(":memory:")
    keep_query_plans(connection)
    migrate_schema(connection, Path(":memory:"))
    return connection


def keep_query_plans(connection: apsw.Connection) -> None:
    """Prepare each statement once.

    Otherwise SQLite prepares a statement again whenever a parameter changes that a partial index or
    statistics could make use of, which takes several times as long as most statements run.
    """
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def lock_journal(path: Path) -> IO[bytes]:
    """Take the journal's lock until the returned file is closed; JournalLocked if it is taken."""
    try:
        return lock_file(Path(f"{path}.lock"))
    except BlockingIOError:
        raise JournalLocked(
            f"{path} is in use by another gateway; stop it first, or choose another state_dir"
        ) from None


def _open_connection(path: Path, check: IntegrityCheck) -> apsw.Connection:
    # Created here, not by SQLite, so that other users can never read the file.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = apsw.Connection(str(path))
    try:
        _prepare_connection(connection, path, check)
    except (apsw.CorruptError, apsw.NotADBError) as error:
        connection.close()
        raise _corrupt_error(path, str(error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare_connection(connection: apsw.Connection, path: Path, check: IntegrityCheck) -> None:
    # No other gateway writes, but a person may open the file with SQLite's own tools.
    connection.set_busy_timeout(5_000)
    keep_query_plans(connection)
    for pragma in _PRAGMAS:
        connection.execute(pragma)
    if check != "off":
        ((verdict,),) = connection.execute(_CHECKS[check]).fetchall()
        if verdict != "ok":
            raise _corrupt_error(path, str(verdict))
    migrate_schema(connection, path)


def _corrupt_error(path: Path, why: str) -> JournalCorrupt:
    return JournalCorrupt(f"{path} is damaged or not a journal ({why}); restore it from a backup")


def load_migrations() -> list[tuple[int, str]]:
    """Return (version, SQL) of every migration, oldest first."""
    folder = resources.files("gatepost.journal") / "schema"
    files = [f for f in folder.iterdir() if f.name.endswith(".sql")]
    return [(int(f.name.split("_")[0]), f.read_text()) for f in sorted(files, key=lambda f: f.name)]


def migrate_schema(connection: apsw.Connection, path: Path) -> None:
    current = connection.pragma("user_version")
    known = load_migrations()
    if current > known[-1][0]:
        raise JournalTooNew(
            f"{path} has schema {current}, this Gatepost knows up to {known[-1][0]}; upgrade it"
        )
    for version, sql in known:
        if version > current:
            with connection:
                connection.execute(sql)
                connection.pragma("user_version", version)
