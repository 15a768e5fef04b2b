"""What the door itself remembers, in a database of its own beside the journal.

The journal is the truth about tasks. Here is only what A2A has and a task of the fabric has not:
which messages make up a task, push notifications, and how far mail for agents elsewhere is.
A record is written before the operation that it belongs to, under an id that is chosen for both. So
after a crash between the two, the record has no task, and the same call makes it.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

T = TypeVar("T")

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS a2a_task (
    id TEXT PRIMARY KEY, caller TEXT NOT NULL, context TEXT NOT NULL, target TEXT NOT NULL,
    ended_as TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS a2a_task_by_caller ON a2a_task (caller, id);
CREATE TABLE IF NOT EXISTS a2a_turn (
    task TEXT NOT NULL, number INTEGER NOT NULL, fabric_id TEXT NOT NULL, caller TEXT,
    message_id TEXT NOT NULL, message BLOB NOT NULL, question TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (task, number)) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS a2a_turn_by_message ON a2a_turn (caller, message_id)
    WHERE caller IS NOT NULL;
CREATE TABLE IF NOT EXISTS a2a_push (
    task TEXT NOT NULL, id TEXT NOT NULL, caller TEXT NOT NULL, session TEXT NOT NULL,
    config BLOB NOT NULL, told TEXT NOT NULL DEFAULT '', PRIMARY KEY (task, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outside_agent (
    name TEXT PRIMARY KEY, url TEXT NOT NULL, token_file TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outside_turn (
    agent TEXT NOT NULL, msg_id TEXT NOT NULL, remote_task TEXT NOT NULL, remote_context TEXT NOT
    NULL, fabric_task TEXT NOT NULL, begun_at INTEGER NOT NULL,
    PRIMARY KEY (agent, msg_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outside_conversation (
    agent TEXT NOT NULL, sender TEXT NOT NULL, conversation TEXT NOT NULL,
    remote_task TEXT NOT NULL, remote_context TEXT NOT NULL, used_at INTEGER NOT NULL,
    PRIMARY KEY (agent, sender, conversation)) WITHOUT ROWID;
"""
MAX_TASKS_PER_CALLER = 10_000
_MAX_CONVERSATIONS = 10_000


class TaskRecord(Struct, frozen=True):
    """A task of A2A. `caller` is the agent that sent it, empty if anonymous.

    `target` is the agent or, after `skill:`, the capability that it is for. `ended_as` is the final
    state that the door gave it, or has seen.
    """

    id: str
    caller: str
    context: str
    target: str
    ended_as: str = ""


class TurnRecord(Struct, frozen=True):
    """One message of the client, and the task of the fabric that it became.

    `question` is what the agent asked at the end of the turn, once the client has answered.
    """

    task: str
    number: int
    fabric_id: str
    caller: str | None
    message_id: str
    message: bytes
    question: str = ""


class PushRecord(Struct, frozen=True):
    """A push notification. `told` marks the state of the task that was told last."""

    task: str
    id: str
    caller: str
    session: str
    config: bytes
    told: str = ""


class OutsideAgent(Struct, frozen=True):
    """An agent elsewhere. `token_file` is read before each call; empty: there is no token."""

    name: str
    url: str
    token_file: str = ""


class OutsideTurn(Struct, frozen=True):
    """Mail that an agent elsewhere has taken. `fabric_task` is empty unless the mail is a task."""

    agent: str
    msg_id: str
    remote_task: str
    remote_context: str
    fabric_task: str
    begun_at: int


class DoorRecords:
    """All SQL of the door. It runs in one thread, which waits for the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "a2a-records")

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction, and return once it is on disk."""

        def run_transaction() -> T:
            database = self._open()
            with database:
                return work(database)

        return await asyncio.get_running_loop().run_in_executor(self._thread, run_transaction)

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            self._path.touch(mode=0o600)
            self._database = sqlite3.connect(self._path, check_same_thread=False)
            self._database.executescript(_SCHEMA)
        return self._database

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def close(self) -> None:
        def close() -> None:
            if self._database is not None:
                self._database.close()

        self._thread.submit(close)
        self._thread.shutdown()

    # -- tasks

    async def find_task(self, id: str) -> TaskRecord | None:
        sql = "SELECT id, caller, context, target, ended_as FROM a2a_task WHERE id = ?"
        row = await self.run(lambda db: db.execute(sql, (id,)).fetchone())
        return None if row is None else TaskRecord(*row)

    async def find_turn(self, caller: str, message_id: str) -> TurnRecord | None:
        """The turn that a message of this caller began."""
        sql = (
            "SELECT task, number, fabric_id, caller, message_id, message, question FROM a2a_turn"
            " WHERE caller = ? AND message_id = ?"
        )
        row = await self.run(lambda db: db.execute(sql, (caller, message_id)).fetchone())
        return None if row is None else TurnRecord(*row)

    async def list_turns(self, task: str) -> list[TurnRecord]:
        sql = (
            "SELECT task, number, fabric_id, caller, message_id, message, question FROM a2a_turn"
            " WHERE task = ? ORDER BY number"
        )
        rows = await self.run(lambda db: db.execute(sql, (task,)).fetchall())
        return [TurnRecord(*row) for row in rows]

    async def add_turn(self, task: TaskRecord, turn: TurnRecord, question: str) -> bool:
        """Record a turn, and at the first one the task; False if it was recorded before."""

        def add(db: sqlite3.Connection) -> bool:
            if turn.number == 1:
                fields = (task.id, task.caller, task.context, task.target, "")
                db.execute("INSERT INTO a2a_task VALUES (?, ?, ?, ?, ?)", fields)
            else:
                asked = (question, turn.task, turn.number - 1)
                db.execute("UPDATE a2a_turn SET question = ? WHERE task = ? AND number = ?", asked)
            row = (turn.task, turn.number, turn.fabric_id, turn.caller, turn.message_id)
            db.execute("INSERT INTO a2a_turn VALUES (?, ?, ?, ?, ?, ?, '')", (*row, turn.message))
            return True

        try:
            return await self.run(add)
        except sqlite3.IntegrityError:
            return False

    async def remove_turn(self, turn: TurnRecord) -> None:
        """Forget a turn that the fabric refused."""

        def remove(db: sqlite3.Connection) -> None:
            where = (turn.task, turn.number)
            db.execute("DELETE FROM a2a_turn WHERE task = ? AND number = ?", where)
            if turn.number == 1:
                db.execute("DELETE FROM a2a_task WHERE id = ?", (turn.task,))

        await self.run(remove)

    async def remove_task(self, id: str) -> None:
        def remove(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM a2a_turn WHERE task = ?", (id,))
            db.execute("DELETE FROM a2a_push WHERE task = ?", (id,))
            db.execute("DELETE FROM a2a_task WHERE id = ?", (id,))

        await self.run(remove)

    async def note_end(self, id: str, state: str) -> bool:
        """Note the final state of a task; False if it has one already."""
        sql = "UPDATE a2a_task SET ended_as = ? WHERE id = ? AND ended_as = ''"
        return await self.run(lambda db: db.execute(sql, (state, id)).rowcount) > 0

    async def list_tasks(self, caller: str, context: str) -> list[TaskRecord]:
        """All tasks of a caller, the newest first; of one context unless that is empty."""
        sql = "SELECT id, caller, context, target, ended_as FROM a2a_task WHERE caller = ?1"
        sql += " AND (?2 = '' OR context = ?2) ORDER BY id DESC"
        rows = await self.run(lambda db: db.execute(sql, (caller, context)).fetchall())
        return [TaskRecord(*row) for row in rows]

    async def count_tasks(self, caller: str) -> int:
        sql = "SELECT count(*) FROM a2a_task WHERE caller = ?"
        return int((await self.run(lambda db: db.execute(sql, (caller,)).fetchone()))[0])

    async def find_oldest_ended(self, caller: str) -> str | None:
        sql = "SELECT id FROM a2a_task WHERE caller = ? AND ended_as != '' ORDER BY id LIMIT 1"
        row = await self.run(lambda db: db.execute(sql, (caller,)).fetchone())
        return None if row is None else str(row[0])

    # -- push notifications

    async def add_push(self, push: PushRecord) -> None:
        row = (push.task, push.id, push.caller, push.session, push.config, push.told)
        sql = "INSERT OR REPLACE INTO a2a_push VALUES (?, ?, ?, ?, ?, ?)"
        await self.run(lambda db: db.execute(sql, row))

    async def list_pushes(self, task: str = "", caller: str = "") -> list[PushRecord]:
        sql = "SELECT task, id, caller, session, config, told FROM a2a_push"
        sql += " WHERE (?1 = '' OR task = ?1) AND (?2 = '' OR caller = ?2) ORDER BY task, id"
        rows = await self.run(lambda db: db.execute(sql, (task, caller)).fetchall())
        return [PushRecord(*row) for row in rows]

    async def note_told(self, push: PushRecord, told: str) -> None:
        sql = "UPDATE a2a_push SET told = ? WHERE task = ? AND id = ?"
        await self.run(lambda db: db.execute(sql, (told, push.task, push.id)))

    async def remove_push(self, task: str, id: str) -> bool:
        sql = "DELETE FROM a2a_push WHERE task = ? AND id = ?"
        return await self.run(lambda db: db.execute(sql, (task, id)).rowcount) > 0

    # -- agents elsewhere

    async def list_outside_agents(self) -> list[OutsideAgent]:
        sql = "SELECT name, url, token_file FROM outside_agent ORDER BY name"
        return [OutsideAgent(*row) for row in await self.run(lambda db: db.execute(sql).fetchall())]

    async def add_outside_agent(self, agent: OutsideAgent) -> None:
        row = (agent.name, agent.url, agent.token_file)
        sql = "INSERT OR REPLACE INTO outside_agent VALUES (?, ?, ?)"
        await self.run(lambda db: db.execute(sql, row))

    async def remove_outside_agent(self, name: str) -> bool:
        def remove(db: sqlite3.Connection) -> bool:
            db.execute("DELETE FROM outside_turn WHERE agent = ?", (name,))
            db.execute("DELETE FROM outside_conversation WHERE agent = ?", (name,))
            return db.execute("DELETE FROM outside_agent WHERE name = ?", (name,)).rowcount > 0

        return await self.run(remove)

    async def list_outside_turns(self, agent: str) -> list[OutsideTurn]:
        sql = "SELECT * FROM outside_turn WHERE agent = ?"
        rows = await self.run(lambda db: db.execute(sql, (agent,)).fetchall())
        return [OutsideTurn(*row) for row in rows]

    async def find_outside_turn(self, agent: str, msg_id: str) -> OutsideTurn | None:
        sql = "SELECT * FROM outside_turn WHERE agent = ? AND msg_id = ?"
        row = await self.run(lambda db: db.execute(sql, (agent, msg_id)).fetchone())
        return None if row is None else OutsideTurn(*row)

    async def remove_outside_turns_before(self, agent: str, moment: int) -> None:
        """Forget messages that were taken long ago; tasks are followed to their end."""
        sql = "DELETE FROM outside_turn WHERE agent = ? AND begun_at < ? AND fabric_task = ''"
        await self.run(lambda db: db.execute(sql, (agent, moment)))

    async def add_outside_turn(self, turn: OutsideTurn) -> None:
        row = (turn.agent, turn.msg_id, turn.remote_task, turn.remote_context)
        more = (turn.fabric_task, turn.begun_at)
        sql = "INSERT OR REPLACE INTO outside_turn VALUES (?, ?, ?, ?, ?, ?)"
        await self.run(lambda db: db.execute(sql, (*row, *more)))

    async def remove_outside_turn(self, agent: str, msg_id: str) -> None:
        sql = "DELETE FROM outside_turn WHERE agent = ? AND msg_id = ?"
        await self.run(lambda db: db.execute(sql, (agent, msg_id)))

    async def find_conversation(
        self, agent: str, sender: str, conversation: str
    ) -> tuple[str, str] | None:
        """The task that waits for this sender's next message, if any, and the context elsewhere."""
        sql = (
            "SELECT remote_task, remote_context FROM outside_conversation"
            " WHERE agent = ? AND sender = ? AND conversation = ?"
        )
        key = (agent, sender, conversation)
        row = await self.run(lambda db: db.execute(sql, key).fetchone())
        return None if row is None else (str(row[0]), str(row[1]))

    async def note_conversation(
        self, agent: str, sender: str, conversation: str, remote: tuple[str, str], now: int
    ) -> None:
        def note(db: sqlite3.Connection) -> None:
            row = (agent, sender, conversation, *remote, now)
            db.execute("INSERT OR REPLACE INTO outside_conversation VALUES (?, ?, ?, ?, ?, ?)", row)
            db.execute(
                "DELETE FROM outside_conversation WHERE used_at < (SELECT used_at FROM"
                " outside_conversation ORDER BY used_at DESC LIMIT 1 OFFSET ?)",
                (_MAX_CONVERSATIONS,),
            )

        await self.run(note)
