"""Frames, deadlines, and connections that break."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from gatepost.client import Client
from gatepost.errors import (
    DeadlineExceeded,
    InvalidId,
    InvalidRequest,
    PayloadTooLarge,
    StaleLeaseHandle,
    Unauthorized,
    Unavailable,
)
from gatepost.testing import GatewayProcess
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio

StartGateway = Callable[..., GatewayProcess]
Unique = Callable[[str], str]


async def test_calls_of_one_tick_leave_in_one_frame(client: Client, unique: Unique) -> None:
    box, before = unique("box"), client.frames_sent
    acks = await asyncio.gather(*(client.enqueue(box, n) for n in range(100)))
    assert client.frames_sent == before + 1
    assert [ack.pending for ack in acks] == list(range(1, 101))


async def test_acks_of_one_tick_leave_in_one_frame(client: Client, unique: Unique) -> None:
    box = unique("box")
    await client.enqueue_many(box, range(50))
    messages = await client.dequeue(box, limit=50)
    before = client.frames_sent
    await asyncio.gather(*(client.ack(box, message.receipt) for message in messages))
    assert client.frames_sent == before + 1
    assert await client.peek(box) == []


async def test_a_busy_tick_leaves_in_pieces_and_in_order(client: Client, unique: Unique) -> None:
    box, before = unique("box"), client.frames_sent
    await client.enqueue_many(box, range(300))
    assert client.frames_sent == before + 3
    messages = await client.dequeue(box, limit=300)
    assert [message.payload for message in messages] == list(range(300))


async def test_frames_stay_below_their_limit(client: Client, unique: Unique) -> None:
    box, before = unique("box"), client.frames_sent
    await client.enqueue_many(box, ["x" * 60_000] * 20)
    assert client.frames_sent - before == 3


async def test_order_is_kept_between_calls_with_different_deadlines(
    client: Client, unique: Unique
) -> None:
    box = unique("box")
    timeouts = [30.0, 5.0, 30.0, 5.0]
    calls = (client.enqueue(box, n, timeout=t) for n, t in enumerate(timeouts))
    await asyncio.gather(*calls)
    messages = await client.dequeue(box, limit=4)
    assert [message.payload for message in messages] == [0, 1, 2, 3]


async def test_one_callers_mistake_does_not_fail_the_others(client: Client, unique: Unique) -> None:
    box = unique("box")
    sizes = [10, 70_000, 10]
    calls = (client.enqueue(box, "x" * size) for size in sizes)
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(second, PayloadTooLarge)
    assert not isinstance(first, BaseException) and first.queued
    assert not isinstance(third, BaseException) and third.queued


async def test_a_bad_receipt_does_not_fail_the_acks_beside_it(
    client: Client, unique: Unique
) -> None:
    box = unique("box")
    await client.enqueue(box, 1)
    (message,) = await client.dequeue(box)
    bad, good = client.ack(box, "nonsense"), client.ack(box, message.receipt)
    with pytest.raises(StaleLeaseHandle):
        await bad
    await good


async def test_what_cannot_travel_is_refused_before_it_leaves(client: Client) -> None:
    before = client.frames_sent
    with pytest.raises(InvalidId):
        await client.enqueue("../etc", 1)
    with pytest.raises(InvalidId):
        await client.enqueue("box", 1, msg_id="a/b")
    with pytest.raises(InvalidRequest):
        await client.enqueue("box", 1, ttl_secs=-1)
    with pytest.raises(InvalidRequest, match="JSON"):
        await client.enqueue("box", object())
    with pytest.raises(InvalidRequest):
        await client.dequeue("box", limit=0)
    assert client.frames_sent == before


async def test_a_call_has_a_deadline_and_says_that_the_outcome_is_unknown(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway()
    async with Client("alice", state_dir=gateway.state_dir) as client:
        with gateway.frozen(), pytest.raises(DeadlineExceeded, match="outcome is unknown"):
            await client.enqueue("box", 1, timeout=0.2)
        assert (await client.enqueue("box", 2)).queued


async def test_callers_beyond_the_limit_wait_for_a_place(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    async with Client("alice", state_dir=gateway.state_dir, max_outstanding=10) as client:
        acks = await asyncio.gather(*(client.enqueue("box", n) for n in range(95)))
        assert all(ack.queued for ack in acks)
        messages = await client.dequeue("box", limit=95)
        assert [message.payload for message in messages] == list(range(95))
        with gateway.frozen():
            calls = [client.enqueue("box", n, timeout=0.2) for n in range(11)]
            errors = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(e, DeadlineExceeded) for e in errors] == [True] * 11
        assert "was not sent" in str(errors[10])
        assert (await client.enqueue("box", 1)).queued


async def test_unanswered_calls_survive_a_kill_without_loss_double_or_disorder(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway()
    async with Client("alice", state_dir=gateway.state_dir) as client:
        numbers, answered = iter(range(6000)), 0

        async def slot() -> None:
            nonlocal answered
            for number in numbers:
                await client.enqueue("box", number)
                answered += 1

        slots = [asyncio.create_task(slot()) for _ in range(64)]
        for _ in range(2):
            wanted = answered + 500
            await async_wait_until(lambda: answered >= wanted)  # noqa: B023
            await asyncio.to_thread(gateway.restart)
        await asyncio.gather(*slots)
        got: list[int] = []
        while messages := await client.dequeue("box", limit=1000):
            got += [message.payload for message in messages]
            await asyncio.gather(*(client.ack("box", m.receipt) for m in messages))
        assert got == list(range(6000))


async def test_what_is_asked_for_while_disconnected_leaves_when_connected_again(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway()
    async with Client("alice", state_dir=gateway.state_dir) as client:
        gateway.kill9()
        call = asyncio.create_task(client.enqueue("box", 1))
        await asyncio.to_thread(gateway.start)
        assert (await call).queued


async def test_a_deadline_holds_while_disconnected_and_names_the_problem(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway()
    async with Client("alice", state_dir=gateway.state_dir) as client:
        gateway.kill9()
        with pytest.raises(DeadlineExceeded, match=r"unknown; .*gateway"):
            await client.enqueue("box", 1, timeout=0.3)


async def test_reconnecting_is_never_silent(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gatepost.client")
    gateway = start_gateway()
    async with Client("alice", state_dir=gateway.state_dir) as client:
        await asyncio.to_thread(gateway.restart)
        await client.enqueue("box", 1)
    assert "connecting again" in caplog.text
    assert "connected again" in caplog.text


async def test_a_gateway_that_takes_smaller_frames_gets_smaller_frames(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway(limits__max_body_bytes=100_000, limits__max_payload_inline=65_536)
    async with Client("alice", state_dir=gateway.state_dir) as client:
        acks = await client.enqueue_many("box", ["x" * 30_000] * 10)
        assert all(ack.queued for ack in acks)
        with pytest.raises(PayloadTooLarge, match="max_body_bytes"):
            await client.enqueue("box", "x" * 200_000)


async def test_a_wrong_token_is_refused_in_the_gateways_words(gateway: GatewayProcess) -> None:
    with pytest.raises(Unauthorized, match="token"):
        async with Client(url=gateway.url, token="wrong"):
            pass


async def test_nobody_listening_says_how_to_start_a_gateway(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="gatepost up"):
        async with Client(url="http://127.0.0.1:9", token="t"):
            pass
    with pytest.raises(Unavailable, match="no gateway runs here"):
        async with Client(state_dir=tmp_path):
            pass


async def test_a_closed_client_says_so(gateway: GatewayProcess) -> None:
    async with Client("alice", state_dir=gateway.state_dir) as client:
        pass
    with pytest.raises(Unavailable, match="closed"):
        await client.enqueue("box", 1)


async def test_closing_ends_calls_under_way(gateway: GatewayProcess, unique: Unique) -> None:
    client = await Client("alice", state_dir=gateway.state_dir).__aenter__()
    box = unique("box")
    call = asyncio.create_task(client.dequeue(box, wait_secs=20))
    # Its answer shows that the call before it has arrived.
    await client.peek(box)
    await client.close()
    with pytest.raises(Unavailable, match="outcome is unknown"):
        await call
