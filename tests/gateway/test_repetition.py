"""Background work goes on after errors, and ends with the gateway."""

import asyncio

import pytest

from gatepost.errors import StorageFailed
from gatepost.gateway.repetition import repeat_forever, run_every
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
    task = asyncio.create_task(repeat_forever(0.001, work, "sweeping failed"))
    await work.wait_for_calls(3)
    task.cancel()
    expected, unexpected = caplog.records
    assert expected.getMessage() == "sweeping failed, and is tried again: the disk is full"
    assert (expected.exc_info, expected.levelname) == (None, "WARNING")
    assert unexpected.getMessage() == "sweeping failed, and is tried again"
    assert unexpected.exc_info is not None and "no such luck" in caplog.text


async def test_work_starts_after_a_pause_and_ends_at_exit() -> None:
    work = _FailingWork()
    async with run_every(0.02, work, "sweeping failed"):
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

    async with run_every(0.001, hang, "hanging failed"):
        await started.wait()
    assert cancelled.is_set()
