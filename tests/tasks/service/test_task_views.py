"""Tasks that several callers want at one time are read together."""

import asyncio
from pathlib import Path

import pytest

from gatepost.errors import UnknownTask
from gatepost.gateway.api.operations import Operations
from gatepost.tasks.service.task_views import TaskViewReader
from gatepost.tasks.session_states import SessionState
from gatepost.wire.operations import Register
from gatepost.wire.tasks import NewTask, TaskAwait, TaskCreate
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio


async def _create(operations: Operations, count: int) -> list[str]:
    for agent in ("al", "bo"):
        await operations.perform(Register(agent=agent))
    created = await operations.perform(
        TaskCreate(tasks=[NewTask("al", f"task {number}", ["bo"]) for number in range(count)])
    )
    return [each.tasks[0].id for each in created.results]


async def test_views_that_are_wanted_together_are_one_read(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state) as operations:
        ids = await _create(operations, 3)
        reads = 0
        read = operations.core.read

        async def count_read(query: object) -> object:
            nonlocal reads
            reads += 1
            return await read(query)  # type: ignore[arg-type]

        monkeypatch.setattr(operations.core, "read", count_read)
        states: dict[str, SessionState] = {}
        views = TaskViewReader(operations.core, states)
        found = await asyncio.gather(*(views.read_view(id) for id in [*ids, ids[0]]))
        assert [view.id for view in found] == [*ids, ids[0]]
        assert reads == 1


async def test_an_unknown_task_fails_its_own_caller_only(state: Path) -> None:
    async with opened(state) as operations:
        (id,) = await _create(operations, 1)
        unknown = operations.core.node.event_ids.next_id()
        states: dict[str, SessionState] = {}
        views = TaskViewReader(operations.core, states)
        found, missing = await asyncio.gather(
            views.read_view(id), views.read_view(unknown), return_exceptions=True
        )
        assert not isinstance(found, BaseException)
        assert found.id == id
        assert isinstance(missing, UnknownTask)


async def test_a_task_that_is_known_to_be_open_is_shown_when_the_wait_is_over(state: Path) -> None:
    async with opened(state) as operations:
        (id,) = await _create(operations, 1)
        awaited = await operations.perform(TaskAwait(task_id=id, wait_secs=0.01))
        assert awaited.task.state == "pending"
        awaited = await operations.perform(TaskAwait(task_id=id, wait_secs=0))
        assert awaited.task.state == "pending"
