"""Keeps the tasks of an agent alive while their handlers work, and notices those that ended."""

import asyncio
import logging

from gatepost.client._task import AgentTask
from gatepost.errors import Forbidden, GatepostError, IdempotencyConflict, UnknownTask, WrongState

log = logging.getLogger("gatepost.client")

# How often a task is kept alive. This also finds out that it was cancelled.
HEARTBEAT_SECS = 5.0
# The task has ended in another way: further reports are ignored.
HAS_ENDED = (WrongState, UnknownTask, Forbidden, IdempotencyConflict)


class TaskHeartbeat:
    """One timer for all tasks. A task whose end it hears of has its handler cancelled."""

    def __init__(self) -> None:
        # None while the end of a task is being reported: nothing is left to cancel.
        self._handlers: dict[AgentTask, asyncio.Task[object] | None] = {}
        self._seen: set[AgentTask] = set()
        self._ended: set[AgentTask] = set()
        self._beats: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add_task(self, task: AgentTask) -> None:
        """The present asyncio task works on a task from now on."""
        running = asyncio.current_task()
        assert running is not None
        self._handlers[task] = running
        if self._timer is None:
            self._timer = running.get_loop().call_later(HEARTBEAT_SECS, self._beat_all)

    def end_handler(self, task: AgentTask) -> bool:
        """The handler of a task is done; returns whether the task had ended before."""
        running, self._handlers[task] = self._handlers[task], None
        if task not in self._ended or running is None:
            return False
        running.uncancel()
        return True

    def remove_task(self, task: AgentTask) -> None:
        """The end of a task is reported."""
        del self._handlers[task]
        self._seen.discard(task)
        self._ended.discard(task)

    def _beat_all(self) -> None:
        """Report all tasks that have worked since the last beat. They leave in one operation."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HEARTBEAT_SECS, self._beat_all) if self._handlers else None
        due, self._seen = self._seen, set(self._handlers)
        for task in due:
            beat = loop.create_task(self._beat(task))
            self._beats.add(beat)
            beat.add_done_callback(self._beats.discard)

    async def _beat(self, task: AgentTask) -> None:
        try:
            await task.update()
        except HAS_ENDED:
            handler = self._handlers.get(task)
            if handler is not None and task not in self._ended:
                self._ended.add(task)
                handler.cancel()
        except GatepostError as error:
            log.warning("%s could not be kept alive: %s", task, error.message)
