"""Background work goes on after errors, and ends with the gateway."""

import asyncio

import pytest

from gatepost.errors import StorageFailed
from gatepost.gateway.repetition import repeat_forever, run_every

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
        async with asyncio.timeout(5):
            while self.calls < count:
                await asyncio.sleep(0.005)


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
    await asyncio.sleep(0.06)
    assert work.calls == ended


async def test_exit_cancels_work_that_is_running() -> None:
    cancelled = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async with run_every(0.001, hang, "hanging failed"):
        await asyncio.sleep(0.05)
    assert cancelled.is_set()
