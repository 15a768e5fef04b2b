"""Reads tasks as clients see them: all that are wanted at one time, in one read."""

import asyncio
from collections.abc import Mapping

from gatepost.errors import GatepostError
from gatepost.gateway.api.tasks.task_views import view_task
from gatepost.gateway.core import Core
from gatepost.hub import tasks
from gatepost.hub.session_states import SessionState
from gatepost.journal import Tx
from gatepost.task_wire import TaskView

WantedView = tuple[str, "asyncio.Future[TaskView]"]


class TaskViewReader:
    """Lives in the event loop. `session_states` knows better than the journal."""

    def __init__(self, core: Core, session_states: Mapping[str, SessionState]) -> None:
        self._core = core
        self._session_states = session_states
        self._wanted: list[WantedView] = []
        self._reading: set[asyncio.Task[None]] = set()

    async def read_view(self, id: str) -> TaskView:
        """The task with this id; UnknownTask if there is none."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[TaskView] = loop.create_future()
        self._wanted.append((id, future))
        if len(self._wanted) == 1:
            # All callers that the same commit group woke up come before this.
            loop.call_soon(self._start_reading)
        return await future

    def view(self, tx: Tx, id: str) -> TaskView:
        return view_task(tx, tasks.load_task(tx, id), self._session_states.get(id))

    def _start_reading(self) -> None:
        wanted, self._wanted = self._wanted, []
        task = asyncio.create_task(self._read(wanted))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read(self, wanted: list[WantedView]) -> None:
        try:
            ids = list(dict.fromkeys(id for id, _ in wanted))
            found = await self._core.read(lambda tx: {id: self._try_view(tx, id) for id in ids})
        except Exception as error:
            _reject_all(wanted, error)
            return
        for id, future in wanted:
            if future.done():
                continue
            view = found[id]
            if isinstance(view, GatepostError):
                future.set_exception(type(view)(view.message))
            else:
                future.set_result(view)

    def _try_view(self, tx: Tx, id: str) -> TaskView | GatepostError:
        try:
            return self.view(tx, id)
        except GatepostError as error:
            return error


def _reject_all(wanted: list[WantedView], error: Exception) -> None:
    for _, future in wanted:
        if not future.done():
            future.set_exception(error)
