"""Idempotency of send: keys, event ids, and conflicts."""

import pytest

from gatepost.errors import IdempotencyConflict
from gatepost.events import EventIdGenerator
from gatepost.testing import ManualClock
from tests.delivery.post import Post

pytestmark = pytest.mark.anyio


async def test_the_conversation_is_named_after_its_first_message(post: Post) -> None:
    first = await post.send()
    assert first.corr_id == first.event_id
    assert (await post.send(corr_id="talk:1")).corr_id == "talk:1"


async def test_the_same_key_and_body_is_the_same_message(post: Post) -> None:
    first = await post.send("hi", idempotency_key="k")
    again = await post.send("hi", idempotency_key="k")
    assert again.event_id == first.event_id
    assert len(await post.take("bob", 5)) == 1


async def test_the_same_key_with_a_large_body_is_the_same_message(post: Post) -> None:
    large = "x" * 100_000
    first = await post.send(large, idempotency_key="k")
    assert (await post.send(large, idempotency_key="k")).event_id == first.event_id
    with pytest.raises(IdempotencyConflict):
        await post.send(large + "y", idempotency_key="k")


async def test_the_same_key_with_another_body_or_receiver_is_a_conflict(post: Post) -> None:
    await post.send("hi", idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await post.send("ho", idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await post.send("hi", idempotency_key="k", to_agent="al")
    other = await post.send("ho", idempotency_key="k", from_agent="bob", to_agent="al")
    assert other.state == "accepted", "a key belongs to its sender"


async def test_an_event_id_makes_a_send_repeatable(post: Post, clock: ManualClock) -> None:
    id = EventIdGenerator(clock).next_id()
    await post.send("hi", event_id=id)
    assert (await post.send("hi", event_id=id)).event_id == id
    assert len(await post.take("bob", 5)) == 1
    with pytest.raises(IdempotencyConflict):
        await post.send("hi", event_id=id, to_agent="al")
    with pytest.raises(IdempotencyConflict):
        await post.send("ho", event_id=id)
    with pytest.raises(IdempotencyConflict):
        await post.send("hi", event_id=id, to_agent="al", idempotency_key="new")


async def test_the_same_key_with_a_file_uploaded_again_is_the_same_message(post: Post) -> None:
    async def send_file(content: bytes) -> str:
        blob = await post.core.keep_payload([content])
        return (await post.send(payload_ref=blob.digest, idempotency_key="k")).event_id

    first = await send_file(b"content")
    assert await send_file(b"content") == first
    with pytest.raises(IdempotencyConflict):
        await send_file(b"other content")


@pytest.mark.parametrize("other", [{"ttl_secs": 60.0}, {"priority": 7}])
async def test_the_same_key_with_another_lifetime_or_priority_is_a_conflict(
    post: Post, other: dict[str, float]
) -> None:
    sent = await post.send("hi", idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        await post.send("hi", idempotency_key="k", **other)
    assert (await post.send("hi", idempotency_key="k")).event_id == sent.event_id
