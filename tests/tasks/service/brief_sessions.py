"""Sessions without processes: a gateway in this process, and a runtime that leaves a result."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from gatepost.gateway.api.operations import Operations
from gatepost.tasks.policy import Operator
from gatepost.tasks.runtimes.session_user import SessionUsers
from gatepost.tasks.service.session_manager import SessionManager
from gatepost.tasks.service.session_sockets import SessionSockets
from gatepost.tasks.session_runtime import SessionExit, SessionHandle, SessionSpec
from gatepost.tasks.task_tokens import list_task_tokens
from gatepost.wire.tasks import NewTask, TaskView
from tests.gateway.tools import opened

LARGE_RESULT = json.dumps("x" * 100_000).encode()


class BriefRuntime:
    """A runtime whose sessions end at once, with a result that is usually kept as a blob.

    `result` is its content, or puts something in its place.
    """

    def __init__(self, result: bytes | Callable[[Path], object] = LARGE_RESULT) -> None:
        self.result = result
        self.failures: list[Exception] = []

    def folder_inside(self, folder: Path) -> str:
        return str(folder)

    socket_inside = folder_inside

    async def launch(self, spec: SessionSpec, report: object) -> SessionHandle:
        (spec.folder / "work").mkdir(parents=True)
        path = spec.folder / "work" / "result.json"
        self.result(path) if callable(self.result) else path.write_bytes(self.result)
        return SessionHandle(spec.name, {})

    async def wait(self, handle: SessionHandle) -> SessionExit:
        if self.failures:
            raise self.failures.pop()
        return SessionExit("exited", 0)

    async def remove_orphans(self, known: object) -> list[str]:
        return []

    async def close(self) -> None: ...


@contextlib.asynccontextmanager
async def brief_sessions(
    state: Path, runtime: BriefRuntime
) -> AsyncIterator[tuple[Operations, SessionManager]]:
    """A gateway in this process, whose agent `brief` has sessions of this runtime."""
    async with opened(state) as operations:
        core = operations.core
        core.registry.load_files({"brief.json": b'{"name": "brief", "command": ["true"]}'})
        core.agents.hub_run = frozenset({"brief"})
        runtimes: Any = {"process": runtime}
        users = SessionUsers(core.state.sessions)
        manager = SessionManager(core, runtimes, {}, SessionSockets(core, users))
        operations.tasks.watchers.listeners.append(manager.task_changed)
        await core.commit(lambda tx: core.agents.register(tx, "brief", "internal"))
        async with manager.following(), manager.serving():
            yield operations, manager


async def run_brief_task(operations: Operations, manager: SessionManager) -> TaskView:
    """The task at its end; its session has left its place, and its token is dead."""
    (task,) = await operations.tasks.create_tasks(NewTask("al", "go", ["brief"]), Operator())
    ended = await operations.tasks.show_task(task.id, 30)
    assert manager.session_count == 0
    assert await operations.core.read(list_task_tokens) == []
    return ended
