"""The bench of the work queue counts every message once."""

import asyncio

import pytest

from gatepost.bench.work_queue import WorkTally
from gatepost.errors import BenchFailed

pytestmark = pytest.mark.anyio


def _acked(error: Exception | None = None) -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


async def test_the_run_ends_with_the_last_ack() -> None:
    tally = WorkTally(2)
    for number in (1, 0):
        assert not tally.finished.done()
        tally.note_arrival(number)
        tally.count_ack(_acked())
    await tally.finished


async def test_a_message_that_arrives_twice_fails_the_run() -> None:
    tally = WorkTally(2)
    tally.note_arrival(1)
    tally.note_arrival(1)
    with pytest.raises(BenchFailed, match="twice"):
        await tally.finished


async def test_a_refused_ack_fails_the_run() -> None:
    tally = WorkTally(1)
    tally.count_ack(_acked(RuntimeError("stale")))
    with pytest.raises(BenchFailed, match="stale"):
        await tally.finished
