"""The transaction in progress: the only way the core reads and writes storage."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import apsw

from gatepost.errors import GatepostError, InternalError
from gatepost.events import Envelope

log = logging.getLogger(__name__)

T = TypeVar("T")
Row = tuple[Any, ...]

# Errors of the disk or the file, as opposed to bugs of ours: they fail the whole commit group.
STORAGE_ERRORS = (
    apsw.FullError,
    apsw.IOError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.ReadOnlyError,
)


class Tx:
    """The transaction of one commit group.

    Each operation runs between `begin_operation` and `keep_operation` or `undo_operation`. A
    change outside SQLite is passed to `add_effect` and runs as soon as the operation is kept. If
    the operation is undone, its effects never run and the events it appended are dropped. The
    group can still fail as a whole: code that changes memory before the commit registers the
    reverse change with `on_rollback`.
    """

    __slots__ = ("_connection", "_effects", "_undos", "appended_drafts", "now")

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self._connection = connection
        self._effects: list[Callable[[], None]] = []
        self._undos: list[Callable[[], None]] = []
        self.appended_drafts: list[Envelope] = []
        self.now = now

    def execute(self, sql: str, params: Row = ()) -> None:
        self._connection.execute(sql, params)

    def execute_many(self, sql: str, rows: Iterable[Row]) -> None:
        self._connection.executemany(sql, rows)

    def fetch_many(self, sql: str, rows: Iterable[Row]) -> list[Row]:
        """The rows that a statement returns for each of several parameter rows, in their order."""
        return self._connection.executemany(sql, rows).fetchall()

    def fetch_all(self, sql: str, params: Row = ()) -> list[Row]:
        return self._connection.execute(sql, params).fetchall()

    def iterate_rows(self, sql: str, params: Row = ()) -> Iterator[Row]:
        return iter(self._connection.execute(sql, params))

    def fetch_one(self, sql: str, params: Row = ()) -> Row | None:
        return self._connection.execute(sql, params).fetchone()

    def changed_rows(self) -> int:
        return self._connection.changes()

    def add_effect(self, apply: Callable[[], None]) -> None:
        self._effects.append(apply)

    def on_rollback(self, undo: Callable[[], None]) -> None:
        self._undos.append(undo)

    def append_event(self, draft: Envelope) -> None:
        """Add an event to the outbox, which adds its seq when the group ends."""
        self.appended_drafts.append(draft)

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def begin_operation(self) -> tuple[int, int]:
        self._connection.execute("SAVEPOINT operation")
        return len(self._effects), len(self.appended_drafts)

    def keep_operation(self) -> None:
        self._connection.execute("RELEASE operation")

    def undo_operation(self, mark: tuple[int, int]) -> None:
        self._connection.execute("ROLLBACK TO operation")
        self._connection.execute("RELEASE operation")
        del self._effects[mark[0] :]
        del self.appended_drafts[mark[1] :]

    def run_effects(self) -> None:
        """Run the effects of the kept operations, and the effects that these add."""
        while self._effects:
            effects, self._effects = self._effects, []
            for apply in effects:
                apply()

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Restore storage and memory to their state before the group."""
        while self._undos:
            self._undos.pop()()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def try_operation(
    tx: Tx, operation: Callable[[Tx], T]
) -> tuple[T, None] | tuple[None, GatepostError]:
    """Run an operation in a savepoint; if it fails, undo it and return the error.

    Only errors of the disk are raised, so a bad event of one source does not fail those of others.
    """
    mark = tx.begin_operation()
    try:
        value = operation(tx)
    except GatepostError as error:
        tx.undo_operation(mark)
        return None, error
    except STORAGE_ERRORS:
        raise
    except Exception as error:
        log.error("an operation failed unexpectedly", exc_info=error)
        tx.undo_operation(mark)
        return None, InternalError("an internal error; the gateway's log has the details")
    tx.keep_operation()
    return value, None
