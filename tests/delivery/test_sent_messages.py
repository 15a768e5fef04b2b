"""Callers that wait for the end of a message."""

import asyncio

import apsw
import pytest

from gatepost.errors import GatepostError
from tests.delivery.post import Post
from tests.waiting import async_assert_stays_true, async_wait_until

pytestmark = pytest.mark.anyio


async def test_a_waiting_caller_hears_of_the_end_once_and_is_forgotten(post: Post) -> None:
    sent = await post.send()
    waiting = [asyncio.create_task(post.status(sent.event_id, 10)) for _ in range(3)]
    await post.wait_for_callers(sent.event_id, 3)
    await post.ack((await post.take())[0])
    assert [status.state for status in await asyncio.gather(*waiting)] == ["processed"] * 3
    assert post.core.delivery.sent._waiting == {}


async def test_a_caller_that_stops_waiting_leaves_nothing_behind(post: Post) -> None:
    sent = await post.send()
    await post.status(sent.event_id)
    await post.status(sent.event_id, 0.01)
    for callers in (0, 0, 1):
        waiting = asyncio.create_task(post.status(sent.event_id, 10))
        await post.wait_for_callers(sent.event_id, callers)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await post.core.commit(lambda tx: None)
    assert post.core.delivery.sent._waiting == {}


async def test_a_group_that_fails_wakes_no_caller_and_forgets_none(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = await post.send()
    (mail,) = await post.take()
    waiting = asyncio.create_task(post.status(sent.event_id, 10))
    await post.wait_for_callers(sent.event_id, 1)

    def fail(tx: object) -> None:
        monkeypatch.undo()
        raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(post.core.coordinator, "before_commit", fail)
    with pytest.raises(GatepostError):
        await post.ack(mail)
    await async_assert_stays_true(lambda: not waiting.done(), 0.05)
    await async_wait_until(lambda: post.core.writer.failure is None)
    await post.ack(mail)
    assert (await waiting).state == "processed"
