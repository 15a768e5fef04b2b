"""The hub's tables on a journal in memory; each call is one commit group of the real writer."""

from collections.abc import Callable
from typing import TypeVar

from gatepost.events import EventIdGenerator
from gatepost.journal import Tx, Writer, open_memory_journal
from gatepost.tasks.task_table import Task, TaskPayload, add_task
from gatepost.tasks.task_tokens import list_task_tokens
from gatepost.testing import ManualClock

T = TypeVar("T")

START = 1_700_000_000_000


def has_live_token(tx: Tx, task: str) -> bool:
    return any(token.task_id == task for token in list_task_tokens(tx))


class HubHarness:
    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.ids = EventIdGenerator(self.clock)
        self.connection = open_memory_journal()
        self.writer = Writer(self.connection, self.clock, lambda outcomes: None)

    def run(self, operation: Callable[[Tx], T]) -> T:
        ((_, value, error),) = self.writer.run_group([(operation, lambda *_: None)])
        if error is not None:
            raise error
        result: T = value
        return result

    def add_task(self, **fields: object) -> str:
        """Add a pending task and return its id."""
        id = self.ids.next_id()
        now = self.clock.now()
        given: dict[str, object] = {"agent": "reviewer", "requester": "al", "created_at": now}
        task = Task(id=id, updated_at=now, **(given | fields))  # type: ignore[arg-type]
        self.run(lambda tx: add_task(tx, task, TaskPayload(b'{"x":1}')))
        return id
