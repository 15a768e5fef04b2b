"""Callers that wait for the end of a message."""

import asyncio

import apsw
import pytest

from gatepost.errors import GatepostError
from tests.delivery.post import Post

pytestmark = pytest.mark.anyio


async def test_a_waiting_caller_hears_of_the_end_once_and_is_forgotten(post: Post) -> None:
    sent = await post.send()
    waiting = [asyncio.create_task(post.status(sent.event_id, 10)) for _ in range(3)]
    await asyncio.sleep(0.05)
    await post.ack((await post.take())[0])
    assert [status.state for status in await asyncio.gather(*waiting)] == ["processed"] * 3
    assert post.core.delivery.sent._waiting == {}


async def test_a_caller_that_stops_waiting_leaves_nothing_behind(post: Post) -> None:
    sent = await post.send()
    await post.status(sent.event_id)
    await post.status(sent.event_id, 0.01)
    for pause in (0, 0, 0.05):
        waiting = asyncio.create_task(post.status(sent.event_id, 10))
        await asyncio.sleep(pause)
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
    while sent.event_id not in post.core.delivery.sent._waiting:
        await asyncio.sleep(0.01)

    def fail(tx: object) -> None:
        monkeypatch.undo()
        raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(post.core.coordinator, "before_commit", fail)
    with pytest.raises(GatepostError):
        await post.ack(mail)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    while post.core.writer.failure is not None:
        await asyncio.sleep(0.01)
    await post.ack(mail)
    assert (await waiting).state == "processed"
