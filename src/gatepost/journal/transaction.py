"""The transaction in progress: the only way the core reads and writes storage."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from gatepost.journal.outbox import EventDraft

Row = tuple[Any, ...]


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
        self.appended_drafts: list[EventDraft] = []
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

    def append_event(self, draft: "EventDraft") -> None:
        """Add an event to the outbox; it gets its seq when the group ends."""
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
