"""The sweep of tasks runs when a task is late or to be forgotten, and otherwise now and then."""

import asyncio
from pathlib import Path

import pytest

from gatepost.gateway.api.operations import Operations
from gatepost.journal import Tx
from gatepost.tasks.service import task_sweep_timer
from gatepost.tasks.service.task_sweep_timer import TaskSweepTimer
from gatepost.tasks.task_table import Task, load_task
from gatepost.wire.operations import Register
from gatepost.wire.tasks import NewTask, TaskCreate
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio
_FAR_MS = 1_000_000


@pytest.fixture(autouse=True)
def _no_usual_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_sweep_timer, "_SWEEP_SECS", 3600.0)


async def _create_task(operations: Operations) -> str:
    for agent in ("al", "bo"):
        await operations.perform(Register(agent=agent))
    created = await operations.perform(TaskCreate(tasks=[NewTask("al", "x", ["bo"])]))
    return str(created.results[0].tasks[0].id)


async def _set_eta(operations: Operations, id: str, eta_at: int) -> Task:
    def change(tx: Tx) -> Task:
        tx.execute("UPDATE task SET eta_at = ?", (eta_at,))
        return load_task(tx, id)

    return await operations.core.commit(change)


async def test_the_sweep_is_due_as_a_task_misses_its_eta(state: Path) -> None:
    async with opened(state) as operations:
        id, deadlines = await _create_task(operations), TaskSweepTimer(operations.core)
        await _set_eta(operations, id, operations.core.clock.now() + 10)
        await asyncio.wait_for(deadlines.wait_until_due(), 60)


async def test_a_task_that_changes_can_bring_the_sweep_forward(state: Path) -> None:
    async with opened(state) as operations:
        id, deadlines = await _create_task(operations), TaskSweepTimer(operations.core)
        now = operations.core.clock.now()
        await _set_eta(operations, id, now + _FAR_MS)
        waiting = asyncio.create_task(deadlines.wait_until_due())
        deadlines.task_changed(await _set_eta(operations, id, now + 2 * _FAR_MS))
        assert not waiting.done()
        deadlines.task_changed(await _set_eta(operations, id, now + 1))
        await asyncio.wait_for(waiting, 60)


async def test_a_task_that_a_sweep_left_does_not_make_the_next_one_due(state: Path) -> None:
    async with opened(state) as operations:
        id, deadlines = await _create_task(operations), TaskSweepTimer(operations.core)
        await _set_eta(operations, id, operations.core.clock.now() + 1)
        await asyncio.wait_for(deadlines.wait_until_due(), 60)
        again = asyncio.create_task(deadlines.wait_until_due())
        done, _ = await asyncio.wait([again], timeout=0.05)
        assert not done
        again.cancel()


async def test_the_sweep_is_due_as_a_task_is_to_be_forgotten(state: Path) -> None:
    async with opened(state, hub__keep_tasks_secs=0.01) as operations:
        id, deadlines = await _create_task(operations), TaskSweepTimer(operations.core)
        waiting = asyncio.create_task(deadlines.wait_until_due())
        ended = await operations.core.commit(lambda tx: operations.core.tasks.cancel_task(tx, id))
        deadlines.task_changed(ended)
        await asyncio.wait_for(waiting, 60)
