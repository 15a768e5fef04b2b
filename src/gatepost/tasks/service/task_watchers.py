"""Callers that wait for a task, and streams of all changes of tasks."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from msgspec import Struct

from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import Task

WaitersByTask = dict[str, set["asyncio.Future[None]"]]

_MAX_OPEN = 100_000
_MAX_STREAMS = 256
_STREAM_QUEUE = 1000


class TaskChange(Struct, frozen=True):
    """A change of a task. `what` is `started` when the work on it begins, else its state."""

    what: str
    task: Task


class TaskWatchers:
    """Used in the event loop. A stream that is too slow is ended, not buffered without bound."""

    def __init__(self) -> None:
        self._for_change: WaitersByTask = {}
        self._for_end: WaitersByTask = {}
        self._streams: set[asyncio.Queue[TaskChange | None]] = set()
        # The open tasks that changed in this process, and their states.
        self._open: dict[str, TaskState] = {}
        self.listeners: list[Callable[[Task], None]] = []

    def task_changed(self, task: Task) -> None:
        woken = self._for_change.pop(task.id, set())
        change = TaskChange("started" if self._begins(task) else task.state.value, task)
        if task.has_ended:
            self._open.pop(task.id, None)
            woken = woken | self._for_end.pop(task.id, set())
        elif task.id in self._open or len(self._open) < _MAX_OPEN:
            self._open[task.id] = task.state
        for future in woken:
            if not future.done():
                future.set_result(None)
        for stream in list(self._streams):
            try:
                stream.put_nowait(change)
            except asyncio.QueueFull:
                self._end_stream(stream)
        for listener in self.listeners:
            listener(task)

    def _begins(self, task: Task) -> bool:
        """True for the change by which a task starts to run; later reports leave it running."""
        if task.state is not TaskState.RUNNING:
            return False
        known = self._open.get(task.id)
        return task.updated_at == task.started_at if known is None else known is not task.state

    def is_open(self, id: str) -> bool:
        """Whether a task is known to be open: it changed in this process and has not ended."""
        return id in self._open

    def next_change(self, id: str) -> "asyncio.Future[None]":
        """A future that is resolved at the next change of a task; `forget` it in the end."""
        return self._add_waiter(self._for_change, id)

    def end_of(self, id: str) -> "asyncio.Future[None]":
        """A future that is resolved when a task ends; `forget` it in the end."""
        return self._add_waiter(self._for_end, id)

    def forget(self, id: str, future: "asyncio.Future[None]") -> None:
        for waiting in (self._for_change, self._for_end):
            if id in waiting:
                waiting[id].discard(future)
                if not waiting[id]:
                    del waiting[id]

    def _add_waiter(self, waiting: WaitersByTask, id: str) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.setdefault(id, set()).add(future)
        return future

    @property
    def is_full(self) -> bool:
        return len(self._streams) >= _MAX_STREAMS

    async def stream_changes(self) -> AsyncGenerator[TaskChange, None]:
        """Yield every change of a task from now on."""
        stream: asyncio.Queue[TaskChange | None] = asyncio.Queue(_STREAM_QUEUE)
        self._streams.add(stream)
        try:
            while (change := await stream.get()) is not None:
                yield change
        finally:
            self._streams.discard(stream)

    def end_streams(self) -> None:
        for stream in list(self._streams):
            self._end_stream(stream)

    def _end_stream(self, stream: "asyncio.Queue[TaskChange | None]") -> None:
        self._streams.discard(stream)
        with contextlib.suppress(asyncio.QueueEmpty):
            stream.get_nowait()
        with contextlib.suppress(asyncio.QueueFull):
            stream.put_nowait(None)
