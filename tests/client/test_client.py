"""The mailbox protocol and messages, through a real gateway."""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gatepost.client import Agent, Client, Message
from gatepost.errors import (
    DeadlineExceeded,
    IdempotencyConflict,
    InvalidRequest,
    InvalidTargets,
    OutOfOrder,
    PayloadTooLarge,
    StaleLeaseHandle,
    TurnFailed,
    UnknownAgent,
    UnknownMessage,
)
from gatepost.testing import GatewayProcess
from tests.waiting import async_assert_stays_true

pytestmark = pytest.mark.anyio

Unique = Callable[[str], str]


# -- the mailbox protocol


async def test_a_message_goes_in_and_comes_out(client: Client, unique: Unique) -> None:
    box = unique("box")
    payload = {"text": "grüß dich", "list": [1, 2.5, None, True]}
    ack = await client.enqueue(box, payload, msg_id="m1", created_at=1_700_000_000)
    assert (ack.msg_id, ack.queued, ack.pending) == ("m1", True, 1)
    (message,) = await client.dequeue(box)
    assert (message.msg_id, message.from_, message.to) == ("m1", "alice", box)
    assert (message.payload, message.created_at, message.attempt) == (payload, 1_700_000_000, 0)
    assert (message.kind, message.event) == ("message", None)
    await client.ack(box, message.receipt)
    assert await client.dequeue(box) == []


async def test_the_same_id_is_queued_once(client: Client, unique: Unique) -> None:
    box = unique("box")
    assert (await client.enqueue(box, 1, msg_id="m1")).queued
    assert not (await client.enqueue(box, 1, msg_id="m1")).queued
    with pytest.raises(IdempotencyConflict):
        await client.enqueue(box, 2, msg_id="m1")


async def test_many_are_enqueued_in_order_and_a_refusal_stands_in_its_place(
    client: Client, unique: Unique
) -> None:
    box = unique("box")
    acks = await client.enqueue_many(box, ["a", "x" * 70_000, "b"])
    assert [ack.queued for ack in acks] == [True, False, True]
    assert acks[1].error is not None
    assert acks[1].error.code == PayloadTooLarge.code
    assert [message.payload for message in await client.dequeue(box, limit=5)] == ["a", "b"]


async def test_dequeue_waits_for_mail(client: Client, unique: Unique) -> None:
    box = unique("box")
    waiting = asyncio.create_task(client.dequeue(box, wait_secs=5))
    # Its answer shows that the call before it has arrived.
    await client.peek(box)
    await client.enqueue(box, 1)
    (message,) = await waiting
    assert message.payload == 1
    assert await client.dequeue(box, wait_secs=0.05) == []


async def test_a_named_consumer_gets_again_what_it_holds(client: Client, unique: Unique) -> None:
    box = unique("box")
    await client.enqueue(box, 1)
    (first,) = await client.dequeue(box, consumer="me")
    (again,) = await client.dequeue(box, consumer="me")
    assert first.receipt == again.receipt
    assert await client.dequeue(box) == []


async def test_a_nacked_message_comes_again_then_is_a_dead_letter(
    client: Client, unique: Unique
) -> None:
    box = unique("box")
    await client.enqueue(box, "p", msg_id="m1")
    for attempt in range(2):
        (message,) = await client.dequeue(box, wait_secs=2)
        assert message.attempt == attempt
        await client.nack(box, message.receipt, reason="not today")
    (letter,) = await client.peek_dead_letter(box)
    assert (letter.msg_id, letter.attempts) == ("m1", 2)
    assert "not today" in letter.reason
    assert await client.purge_dead_letter(box) == 1
    assert await client.peek_dead_letter(box) == []


async def test_peek_looks_and_purge_empties(client: Client, unique: Unique) -> None:
    box = unique("box")
    await client.enqueue_many(box, range(3))
    assert [summary.state for summary in await client.peek(box)] == ["pending"] * 3
    assert await client.purge(box) == 3
    assert len(await client.peek_dead_letter(box)) == 3


async def test_turns_can_be_settled_by_message_id(client: Client, unique: Unique) -> None:
    box = unique("box")
    await client.enqueue(box, 1, msg_id="m1")
    await client.dequeue(box)
    await client.nack_by_id(box, "m1", reason="again")
    await client.dequeue(box, wait_secs=2)
    await client.ack_by_id(box, "m1")
    with pytest.raises(UnknownMessage):
        await client.ack_by_id(box, "m2")


async def test_extend_tells_which_leases_are_no_more(client: Client, unique: Unique) -> None:
    box = unique("box")
    await client.enqueue(box, 1)
    (message,) = await client.dequeue(box)
    assert await client.extend(box, [message.receipt]) == []
    await client.ack(box, message.receipt)
    assert await client.extend(box, [message.receipt]) == [message.receipt]


async def test_gateway_errors_are_raised_as_what_they_are(client: Client, unique: Unique) -> None:
    box = unique("box")
    await client.enqueue_many(box, range(2))
    first, second = await client.dequeue(box, limit=2)
    with pytest.raises(OutOfOrder):
        await client.ack(box, second.receipt)
    await client.ack(box, first.receipt)
    await client.nack(box, second.receipt)
    with pytest.raises(StaleLeaseHandle):
        await client.ack(box, second.receipt)
    with pytest.raises(UnknownAgent, match="nobody"):
        await client.send("nobody", 1)


async def test_a_subscriber_is_pushed_mail_up_to_its_credit(client: Client, unique: Unique) -> None:
    box = unique("box")
    got: asyncio.Queue[Message] = asyncio.Queue()

    def deliver(messages: list[Message]) -> None:
        for message in messages:
            got.put_nowait(message)

    await client.subscribe(box, deliver, credit=2)
    await client.enqueue_many(box, range(5))
    first, second = await got.get(), await got.get()
    await async_assert_stays_true(got.empty, 0.05)
    await asyncio.gather(client.ack(box, first.receipt), client.ack(box, second.receipt))
    assert (await got.get()).payload == 2
    await client.unsubscribe(box)
    assert [s.state for s in await client.peek(box)] == ["pending"] * 3


async def test_who_sends_must_be_said(gateway: GatewayProcess) -> None:
    async with Client(state_dir=gateway.state_dir) as client:
        with pytest.raises(InvalidRequest, match="name the sender"):
            await client.enqueue("box", 1)
        assert (await client.enqueue("box", 1, from_="somebody")).queued


async def test_status_is_the_gateway_at_a_glance(client: Client, gateway: GatewayProcess) -> None:
    status = await client.status()
    assert (status.pid, status.accepting) == (gateway.pid, True)


# -- messages


def echo(name: str, gateway: GatewayProcess) -> Agent:
    agent = Agent(name, state_dir=gateway.state_dir)

    @agent.on_message
    async def handle(message: Message) -> object:
        if message.payload == "fail":
            raise ValueError("cannot do that")
        return {"echo": message.payload}

    return agent


async def test_a_request_returns_the_reply(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")
    async with echo(bob, gateway):
        assert await client.request(bob, [1, 2]) == {"echo": [1, 2]}


@pytest.mark.parametrize("size", [3, 100_000])
async def test_the_reply_to_a_sender_without_a_mailbox_is_fetched_later(
    client: Client, unique: Unique, size: int
) -> None:
    bob, answer = unique("bob"), "y" * size
    await client.register(bob)
    sent = await client.send(bob, "question", from_=unique("stranger"))
    with pytest.raises(DeadlineExceeded):
        await client.await_outcome(sent.event_id, timeout=0.05)
    (message,) = await client.dequeue(bob)
    await client.ack(bob, message.receipt, reply=answer)
    for _ in range(2):
        outcome = await client.await_outcome(sent.event_id)
        assert (outcome.state, outcome.outcome) == ("replied", "ok")
        assert msgspec.json.decode(outcome.reply) == answer  # type: ignore[arg-type]


async def test_a_reply_over_the_frame_limit_is_uploaded_with_its_ack(
    client: Client, unique: Unique
) -> None:
    bob, answer = unique("bob"), "y" * 2_000_000
    await client.register(bob)
    sent = await client.send(bob, "question")
    (message,) = await client.dequeue(bob)
    await client.ack(bob, message.receipt, reply=answer)
    await client.ack(bob, message.receipt, reply=answer)
    with pytest.raises(IdempotencyConflict):
        await client.ack(bob, message.receipt, reply="another answer")
    outcome = await client.await_outcome(sent.event_id)
    assert msgspec.json.decode(outcome.reply) == answer  # type: ignore[arg-type]


async def test_the_same_key_with_a_file_sent_again_is_the_same_message(
    client: Client, unique: Unique
) -> None:
    bob = unique("bob")
    await client.register(bob)
    key = unique("key")

    async def send(content: bytes) -> str:
        file = io.BytesIO(content)
        return (await client.send(bob, payload_file=file, idempotency_key=key)).event_id

    assert await send(b"x" * 100) == await send(b"x" * 100)
    with pytest.raises(IdempotencyConflict):
        await send(b"y" * 100)


async def test_a_request_whose_turn_fails_raises_with_the_reason(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")
    async with echo(bob, gateway):
        with pytest.raises(TurnFailed, match="ValueError: cannot do that") as caught:
            await client.request(bob, "fail")
    assert caught.value.outcome == "dead_letter"


async def test_a_request_nobody_answers_ends_at_its_deadline(
    client: Client, unique: Unique
) -> None:
    bob = unique("bob")
    await client.register(bob)
    with pytest.raises(DeadlineExceeded, match="was sent, but its turn has not ended"):
        await client.request(bob, 1, timeout=0.2)


async def test_a_message_that_expires_says_so(client: Client, unique: Unique) -> None:
    bob = unique("bob")
    await client.register(bob)
    with pytest.raises(TurnFailed) as caught:
        await client.request(bob, 1, ttl_secs=0.1, timeout=5)
    assert caught.value.outcome == "expired"


async def test_send_waits_as_long_as_it_is_told_to(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")
    await client.register(bob)
    sent = await client.send(bob, 1, wait="accepted")
    assert sent.accepted_at is not None and sent.processed_at is None
    async with echo(bob, gateway):
        done = await client.send(bob, 2, wait="processed")
    assert done.outcome == "ok"
    assert done.processed_at is not None


async def test_the_same_idempotency_key_sends_once(client: Client, unique: Unique) -> None:
    bob, key = unique("bob"), unique("key")
    await client.register(bob)
    first = await client.send(bob, 1, idempotency_key=key)
    assert (await client.send(bob, 1, idempotency_key=key)).event_id == first.event_id
    with pytest.raises(IdempotencyConflict):
        await client.send(bob, 2, idempotency_key=key)


async def test_what_travels_with_a_message_arrives(client: Client, unique: Unique) -> None:
    bob = unique("bob")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await client.register(bob)
    sent = await client.send(bob, 1, corr_id="talk-1", traceparent=trace)
    (message,) = await client.dequeue(bob)
    assert message.event is not None
    assert message.event.event_id == sent.event_id
    assert (message.event.corr_id, message.event.traceparent) == ("talk-1", trace)


@pytest.mark.parametrize("size", [100_000, 3_000_000])
async def test_a_large_payload_is_kept_apart_and_loaded_on_demand(
    client: Client, unique: Unique, size: int
) -> None:
    bob, payload = unique("bob"), {"data": "x" * size}
    await client.register(bob)
    await client.send(bob, payload)
    (message,) = await client.dequeue(bob)
    assert message.blob_size >= size
    with pytest.raises(InvalidRequest, match="load"):
        _ = message.payload
    assert await message.load() == payload
    assert message.payload == payload


async def test_a_file_is_streamed_both_ways(client: Client, unique: Unique, tmp_path: Path) -> None:
    bob, content = unique("bob"), bytes(range(256)) * 8000
    file = tmp_path / "payload.bin"
    file.write_bytes(content)
    await client.register(bob)
    await client.send(bob, payload_file=file)
    await client.send(bob, payload_file=io.BytesIO(content[:1000]))
    first, second = await client.dequeue(bob, limit=2)
    pieces = [piece async for piece in first.stream()]
    assert b"".join(pieces) == content
    assert len(pieces) > 1
    assert await second.read() == content[:1000]
    with pytest.raises(InvalidRequest, match="not JSON"):
        await first.load()


async def test_a_payload_may_be_json_already(client: Client, unique: Unique) -> None:
    box = unique("box")
    await client.enqueue(box, msgspec.Raw(b'{"a": 1}'))
    (message,) = await client.dequeue(box)
    assert message.payload == {"a": 1}
    with pytest.raises(InvalidRequest, match="JSON"):
        await client.enqueue(box, msgspec.Raw(b'{"a": 1'))


async def test_hundreds_of_requests_wait_at_once(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")
    async with echo(bob, gateway):
        replies = await asyncio.gather(*(client.request(bob, n) for n in range(300)))
    assert replies == [{"echo": n} for n in range(300)]


# -- several receivers


async def test_a_message_to_several_is_a_copy_for_each(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob, carl, nobody = unique("bob"), unique("carl"), unique("nobody")
    async with echo(bob, gateway), echo(carl, gateway):
        sent = await client.send([bob, carl, nobody], "hi", wait="processed")
    assert [copy.to_agent for copy in sent.copies] == [bob, carl, nobody]
    assert [copy.outcome for copy in sent.copies] == ["ok", "ok", None]
    assert sent.copies[2].error is not None
    assert len({copy.event_id for copy in sent.copies}) == 3
    assert {copy.corr_id for copy in sent.copies[:2]} == {sent.corr_id}


async def test_a_message_to_nobody_known_raises(client: Client, unique: Unique) -> None:
    with pytest.raises(InvalidTargets):
        await client.send([unique("nobody"), unique("nor")], "hi")


async def test_a_broadcast_reaches_every_other_agent(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    async with Client("alice", state_dir=start_gateway().state_dir) as client:
        with pytest.raises(InvalidTargets):
            await client.broadcast("is anybody there?")
        for name in ("alice", "bob", "carl"):
            await client.register(name)
        sent = await client.broadcast("hi", wait="accepted")
        assert [copy.to_agent for copy in sent.copies] == ["bob", "carl"]
        assert all(copy.accepted_at for copy in sent.copies)
        (message,) = await client.dequeue("bob")
        assert message.payload == "hi"
        assert await client.dequeue("alice") == []


async def test_copies_survive_a_gateway_that_dies_before_it_answers(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    """What is sent again after a lost connection has the same ids, so nobody gets it twice."""
    gateway = start_gateway()
    async with Client("alice", state_dir=gateway.state_dir) as client:
        for name in ("bob", "carl"):
            await client.register(name)
        with gateway.frozen():
            sending = asyncio.create_task(client.send(["bob", "carl"], "once"))
            # A gateway that is frozen shows nothing; by now the message is on its way.
            await asyncio.sleep(0.1)
        await asyncio.to_thread(gateway.restart)
        sent = await sending
        for copy in sent.copies:
            (message,) = await client.dequeue(copy.to_agent, limit=10)
            assert message.msg_id == copy.event_id
