"""Background work goes on after errors, and ends with the gateway."""

import asyncio

import pytest

from gatepost.core.background_loops import BackgroundLoops
from gatepost.errors import StorageFailed
from tests.waiting import async_assert_stays_true, async_wait_until

pytestmark = pytest.mark.anyio


class _FailingWork:
    """Raises each of its errors once, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.calls = 0
        self._errors = list(errors)

    async def __call__(self) -> None:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)

    async def wait_for_calls(self, count: int) -> None:
        await async_wait_until(lambda: self.calls >= count)


async def test_work_is_repeated_after_errors_and_they_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = _FailingWork(StorageFailed("the disk is full"), OSError("no such luck"))
    task = asyncio.create_task(_quiet_loops().repeat_forever(0.001, work, "sweeping failed"))
    await work.wait_for_calls(3)
    task.cancel()
    expected, unexpected = caplog.records
    assert expected.getMessage() == "sweeping failed, and is tried again: the disk is full"
    assert (expected.exc_info, expected.levelname) == (None, "WARNING")
    assert unexpected.getMessage() == "sweeping failed, and is tried again"
    assert unexpected.exc_info is not None and "no such luck" in caplog.text


async def test_a_loop_that_fails_the_same_way_says_so_once_and_raises_one_incident(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reported: list[tuple[str, str]] = []
    loops = BackgroundLoops(lambda failure, error: reported.append((failure, error)))
    work = _FailingWork(*[StorageFailed("the disk is full")] * 50, OSError("no such luck"))
    task = asyncio.create_task(loops.repeat_forever(0, work, "sweeping failed"))
    await async_wait_until(lambda: reported)
    await work.wait_for_calls(53)
    task.cancel()
    assert reported == [("sweeping failed", "the disk is full")]
    assert caplog.text.count("the disk is full") == 1
    assert caplog.text.count("no such luck") >= 1
    assert loops.failing == {}


async def test_loops_that_keep_failing_are_known() -> None:
    loops = _quiet_loops()
    work = _FailingWork(*[StorageFailed("full")] * 1_000_000)
    task = asyncio.create_task(loops.repeat_forever(0.001, work, "sweeping failed"))
    await async_wait_until(lambda: loops.failing == {"sweeping failed": "full"})
    task.cancel()


async def test_the_next_episode_of_the_same_failure_is_reported_again() -> None:
    reported: list[tuple[str, str]] = []
    loops = BackgroundLoops(lambda failure, error: reported.append((failure, error)))
    for _ in range(2):
        work = _FailingWork(StorageFailed("full"), StorageFailed("full"))
        task = asyncio.create_task(loops.repeat_forever(0, work, "sweeping failed"))
        await work.wait_for_calls(4)
        task.cancel()
    assert reported == [("sweeping failed", "full")] * 2


def _quiet_loops() -> BackgroundLoops:
    return BackgroundLoops(lambda failure, error: None)


async def test_work_starts_after_a_pause_and_ends_at_exit() -> None:
    work = _FailingWork()
    async with _quiet_loops().run_every(0.02, work, "sweeping failed"):
        await asyncio.sleep(0)
        assert work.calls == 0
        await work.wait_for_calls(3)
    ended = work.calls
    await async_assert_stays_true(lambda: work.calls == ended, 0.06)


async def test_exit_cancels_work_that_is_running() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with _quiet_loops().run_every(0.001, hang, "hanging failed"):
        await started.wait()
    assert cancelled.is_set()
