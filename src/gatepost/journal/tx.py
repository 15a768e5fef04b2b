"""A transaction in progress: the only way the core touches storage."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from gatepost.journal.outbox import Draft

Row = tuple[Any, ...]


class Tx:
    """One commit group. Each operation runs between `mark` and `keep` or `undo`.

    What an operation wants to happen outside SQLite it hands over as an effect, which happens as
    soon as the operation is kept; effects of an operation that is undone never happen, and
    neither do the events it appended. The group can still fail as a whole, so whatever changes
    memory before the commit also says, with `on_rollback`, how to change it back.
    """

    __slots__ = ("_connection", "_effects", "_undos", "appended", "now")

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        self._connection = connection
        self._effects: list[Callable[[], None]] = []
        self._undos: list[Callable[[], None]] = []
        self.appended: list[Draft] = []
        self.now = now

    def run(self, sql: str, params: Row = ()) -> None:
        self._connection.execute(sql, params)

    def many(self, sql: str, rows: Iterable[Row]) -> None:
        self._connection.executemany(sql, rows)

    def rows(self, sql: str, params: Row = ()) -> list[Row]:
        return self._connection.execute(sql, params).fetchall()

    def each(self, sql: str, params: Row = ()) -> Iterator[Row]:
        return iter(self._connection.execute(sql, params))

    def one(self, sql: str, params: Row = ()) -> Row | None:
        return self._connection.execute(sql, params).fetchone()

    def changes(self) -> int:
        return self._connection.changes()

    def effect(self, happen: Callable[[], None]) -> None:
        self._effects.append(happen)

    def on_rollback(self, undo: Callable[[], None]) -> None:
        self._undos.append(undo)

    def append(self, draft: "Draft") -> None:
        """Add an event to the outbox; its seq is given when the group ends."""
        self.appended.append(draft)

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def mark(self) -> tuple[int, int]:
        self._connection.execute("SAVEPOINT operation")
        return len(self._effects), len(self.appended)

    def keep(self) -> None:
        self._connection.execute("RELEASE operation")

    def undo(self, mark: tuple[int, int]) -> None:
        self._connection.execute("ROLLBACK TO operation")
        self._connection.execute("RELEASE operation")
        del self._effects[mark[0] :]
        del self.appended[mark[1] :]

    def settle(self) -> None:
        """Let the effects of everything kept happen, and those that they bring about."""
        while self._effects:
            effects, self._effects = self._effects, []
            for happen in effects:
                happen()

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Leave storage and memory as they were before the group."""
        while self._undos:
            self._undos.pop()()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
