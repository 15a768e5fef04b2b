"""Agents: turns, order, leases, and gateways that die under them."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gatepost.client import Agent, Client, Message, Reject
from gatepost.errors import InvalidRequest
from gatepost.testing import GatewayProcess
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio

StartGateway = Callable[..., GatewayProcess]
Unique = Callable[[str], str]


@contextlib.asynccontextmanager
async def running(
    gateway: GatewayProcess, name: str, handler: Callable[[Message], object], **options: float | str
) -> AsyncIterator[Agent]:
    agent = Agent(name, state_dir=gateway.state_dir, **options)  # type: ignore[arg-type]
    agent.on_message(handler)
    async with agent:
        yield agent


async def test_an_agent_needs_a_handler(gateway: GatewayProcess) -> None:
    with pytest.raises(InvalidRequest, match="on_message"):
        async with Agent("bob", state_dir=gateway.state_dir):
            pass


async def test_a_plain_function_is_run_in_a_thread(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    def handle(message: Message) -> str:
        return threading.current_thread().name

    bob = unique("bob")
    async with running(gateway, bob, handle):
        assert (await client.request(bob, 1)).startswith(f"agent-{bob}")


async def test_a_plain_function_can_send_too(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob, carol = unique("bob"), unique("carol")
    agent = Agent(bob, state_dir=gateway.state_dir)

    @agent.on_message
    def handle(message: Message) -> object:
        return agent.blocking.request(carol, message.payload)

    async def answer(message: Message) -> object:
        return [message.from_, message.payload]

    async with agent, running(gateway, carol, answer):
        assert await client.request(bob, 1) == [bob, 1]


async def test_agents_ask_each_other_under_their_own_names(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob, carol = unique("bob"), unique("carol")
    agent = Agent(bob, state_dir=gateway.state_dir)

    @agent.on_message
    async def handle(message: Message) -> object:
        return await agent.request(carol, message.payload)

    async def answer(message: Message) -> object:
        return [message.from_, message.payload]

    async with agent, running(gateway, carol, answer):
        assert await client.request(bob, 1) == [bob, 1]


async def test_a_reply_comes_to_the_senders_mailbox(
    gateway: GatewayProcess, unique: Unique
) -> None:
    bob, carol = unique("bob"), unique("carol")
    replies: list[tuple[str, object]] = []

    async def answer(message: Message) -> str:
        return "fine"

    async def collect(message: Message) -> str:
        replies.append((message.kind, message.payload))
        return "this goes nowhere"

    async with running(gateway, bob, collect) as agent, running(gateway, carol, answer):
        await agent.send(carol, "how are you")
        await async_wait_until(lambda: replies)
    assert replies == [("reply", "fine")]


async def test_mail_of_one_sender_is_handled_in_order_and_of_many_at_once(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")
    seen: dict[str, list[int]] = {}
    busy: set[str] = set()
    most = 0

    async def handle(message: Message) -> None:
        nonlocal most
        assert message.from_ not in busy
        busy.add(message.from_)
        most = max(most, len(busy))
        # Long enough for turns to overlap.
        await asyncio.sleep(0.001)
        seen.setdefault(message.from_, []).append(message.payload)
        busy.discard(message.from_)

    async with running(gateway, bob, handle, concurrency=4):
        await asyncio.gather(
            *(client.enqueue(bob, n, from_=f"s{s}") for n in range(30) for s in range(8))
        )
        await async_wait_until(lambda: sum(map(len, seen.values())) == 240)
    assert all(numbers == list(range(30)) for numbers in seen.values())
    assert most == 4


async def test_a_work_queue_handles_the_mail_of_one_sender_at_once(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    worker = unique("worker")
    begun: list[int] = []
    all_begun = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.append(message.payload)
        if len(begun) == 4:
            all_begun.set()
        await asyncio.wait_for(all_begun.wait(), 20)

    async with (
        running(gateway, worker, handle, concurrency=2, credit=2, order="none"),
        running(gateway, worker, handle, concurrency=2, credit=2, order="none"),
    ):
        sent = [await client.send(worker, n, from_="boss") for n in range(4)]
        for each in sent:
            assert (await client.await_outcome(each.event_id)).outcome == "ok"
    assert sorted(begun) == [0, 1, 2, 3]


async def test_workers_of_a_queue_share_messages_that_are_sent_at_once(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    worker = unique("worker")
    begun: set[int] = set()
    all_begun = asyncio.Event()

    def handler_of(number: int) -> Callable[[Message], Awaitable[None]]:
        async def handle(message: Message) -> None:
            begun.add(number)
            if len(begun) == 4:
                all_begun.set()
            await asyncio.wait_for(all_begun.wait(), 20)

        return handle

    async with contextlib.AsyncExitStack() as workers:
        for number in range(4):
            agent = running(gateway, worker, handler_of(number), concurrency=4, order="none")
            await workers.enter_async_context(agent)
        sent = await asyncio.gather(*(client.send(worker, n, from_="boss") for n in range(40)))
        for each in sent:
            assert (await client.await_outcome(each.event_id)).outcome == "ok"
    assert begun == {0, 1, 2, 3}


async def test_a_rejected_message_is_not_delivered_again(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")

    async def handle(message: Message) -> None:
        raise Reject("not a job for me")

    async with running(gateway, bob, handle):
        sent = await client.send(bob, 1, from_="al", wait="processed")
    assert (sent.outcome, sent.reason) == ("dead_letter", "not a job for me")
    (letter,) = await client.peek_dead_letter(bob)
    assert (letter.attempts, letter.reason) == (1, "rejected: not a job for me")


async def test_a_delayed_message_is_handled_when_it_is_due(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")
    handled: list[float] = []

    async def handle(message: Message) -> None:
        handled.append(time.time())

    async with running(gateway, bob, handle):
        due = datetime.now(UTC) + timedelta(seconds=0.4)
        await client.send(bob, 1, from_="al", not_before=due, order="none", wait="processed")
    assert handled[0] >= due.timestamp() - 0.001


async def test_a_failed_turn_is_retried_before_what_is_behind_it(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")
    seen: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.payload, message.attempt))
        if message.payload == 1 and message.attempt == 0:
            raise RuntimeError("not yet")

    async with running(gateway, bob, handle):
        await client.enqueue_many(bob, range(4))
        await async_wait_until(lambda: len(seen) == 5)
    assert seen == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)]


async def test_a_handler_that_never_waits_does_not_hold_up_its_acks(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")

    async def handle(message: Message) -> int:
        # A turn that blocks the event loop is the subject.
        time.sleep(0.002)
        return int(message.payload)

    async with running(gateway, bob, handle):
        replies = await asyncio.gather(*(client.request(bob, n) for n in range(40)))
    assert replies == list(range(40))


async def test_a_reply_that_is_not_json_fails_the_turn(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")

    async def handle(message: Message) -> object:
        return object()

    async with running(gateway, bob, handle):
        sent = await client.send(bob, 1, wait="processed")
    assert sent.outcome == "dead_letter"
    assert "JSON" in str(sent.reason)


@pytest.mark.parametrize("size", [70_000, 3_000_000])
async def test_a_large_reply_comes_back_whole_and_in_order(
    client: Client, gateway: GatewayProcess, unique: Unique, size: int
) -> None:
    bob = unique("bob")

    async def handle(message: Message) -> str:
        return str(message.payload) * (size if message.payload % 2 else 1)

    async with running(gateway, bob, handle):
        replies = await asyncio.gather(*(client.request(bob, n) for n in range(4)))
    assert replies == ["0", "1" * size, "2", "3" * size]


async def test_a_large_reply_is_mail_for_its_sender(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob, answer = unique("bob"), "y" * 100_000
    al = unique("al")
    await client.register(al)

    async def handle(message: Message) -> str:
        return answer

    async with running(gateway, bob, handle):
        await client.send(bob, 1, from_=al)
        (reply,) = await client.dequeue(al, wait_secs=10)
    assert (reply.kind, await reply.load()) == ("reply", answer)


@pytest.mark.parametrize("size", [300_000, 2_000_000])
async def test_a_reply_that_cannot_be_sent_fails_the_turn_with_the_reason(
    start_gateway: StartGateway, size: int
) -> None:
    limits = {"limits__max_blob_bytes": 200_000, "limits__max_payload_inline": 1_000}
    policy = {"mailbox__base_backoff_secs": 0.01, "mailbox__max_retries": 1}
    gateway = start_gateway(**limits, **policy)

    async def handle(message: Message) -> str:
        return "small" if message.payload == "small" else "x" * size

    async with (
        running(gateway, "bob", handle),
        Client("al", state_dir=gateway.state_dir) as client,
    ):
        sent = await client.send("bob", "large", wait="processed")
        assert (sent.outcome, "PayloadTooLarge" in str(sent.reason)) == ("dead_letter", True)
        assert await client.request("bob", "small") == "small"


async def test_a_large_payload_is_there_when_the_turn_begins(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")

    async def handle(message: Message) -> int:
        return len(message.payload)

    async with running(gateway, bob, handle):
        for size in (200_000, 3_000_000):
            assert await client.request(bob, "x" * size) == size


async def test_heartbeats_keep_a_slow_turn_and_what_waits_behind_it(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway(mailbox__inflight_timeout_secs=1)
    seen: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.payload, message.attempt))
        if message.payload == 0:
            # Longer than two leases.
            await asyncio.sleep(2.2)

    async with Client("alice", state_dir=gateway.state_dir) as client:
        async with running(gateway, "bob", handle):
            await client.enqueue_many("bob", range(3))
            await async_wait_until(lambda: len(seen) == 3)
        assert await client.peek("bob") == []
    assert seen == [(0, 0), (1, 0), (2, 0)]


async def test_a_turn_survives_a_killed_gateway_and_is_not_taken_twice(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway()
    started: list[int] = []
    go_on = asyncio.Event()

    async def handle(message: Message) -> int:
        started.append(message.payload)
        await go_on.wait()
        return int(message.payload) * 10

    async with Client("alice", state_dir=gateway.state_dir) as client:
        async with running(gateway, "bob", handle):
            requests = [asyncio.create_task(client.request("bob", n)) for n in range(3)]
            await async_wait_until(lambda: started)
            await asyncio.to_thread(gateway.restart)
            go_on.set()
            assert await asyncio.gather(*requests) == [0, 10, 20]
        assert await client.peek("bob") == []
    assert started == [0, 1, 2]


async def test_acks_lost_with_the_gateway_are_repeated_without_a_second_turn(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway()
    seen: list[tuple[str, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.from_, message.payload))

    async with Client("alice", state_dir=gateway.state_dir) as client:
        async with running(gateway, "bob", handle, credit=200):
            numbers = iter(range(3000))

            async def slot(sender: str) -> None:
                for number in numbers:
                    await client.enqueue("bob", number, from_=sender)

            slots = [asyncio.create_task(slot(f"s{n % 4}")) for n in range(32)]
            for _ in range(2):
                wanted = len(seen) + 200
                await async_wait_until(lambda: len(seen) >= wanted)  # noqa: B023
                await asyncio.to_thread(gateway.restart)
            await asyncio.gather(*slots)
            await async_wait_until(lambda: len(seen) >= 3000)
        assert await client.peek("bob") == []
    assert sorted(number for _, number in seen) == list(range(3000))


async def test_a_graceful_stop_ends_the_turn_and_gives_the_rest_back_unharmed(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")
    seen: list[int] = []
    started = asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        # The turn goes on while the agent is being stopped.
        await asyncio.sleep(0.1)
        seen.append(message.payload)

    async with running(gateway, bob, handle):
        await client.enqueue_many(bob, range(4))
        await started.wait()
    assert seen == [0]
    left = await client.peek(bob)
    assert [(summary.state, summary.attempt) for summary in left] == [("pending", 0)] * 3


async def test_a_turn_that_does_not_end_in_time_goes_back_unharmed(
    client: Client, gateway: GatewayProcess, unique: Unique
) -> None:
    bob = unique("bob")
    started = asyncio.Event()

    async def handle(message: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    async with running(gateway, bob, handle, stop_timeout=0.05):
        await client.enqueue(bob, 1)
        await started.wait()
    (left,) = await client.peek(bob)
    assert (left.state, left.attempt) == ("pending", 0)


async def test_a_turn_that_comes_too_late_is_reported(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    # A message that comes again might bring its lease in time; so none does.
    gateway = start_gateway(mailbox__inflight_timeout_secs=1, mailbox__max_retries=0)

    async def await_lost_lease() -> None:
        async with Client("carol", state_dir=gateway.state_dir) as client:

            async def is_lease_lost() -> bool:
                return not await client.peek("bob")

            await async_wait_until(is_lease_lost, 30)

    async with Client("alice", state_dir=gateway.state_dir) as client:
        agent = Agent("bob", state_dir=gateway.state_dir)

        @agent.on_message
        async def block(message: Message) -> None:
            # The whole loop stands still, heartbeats too.
            waiting = threading.Thread(target=lambda: asyncio.run(await_lost_lease()))
            waiting.start()
            waiting.join()

        async def is_reported() -> bool:
            # A busy machine may spend the whole lease on its way to the agent, which takes no turn.
            if not await client.peek("bob"):
                await client.enqueue("bob", 1)
            return "does not count" in caplog.text

        async with agent:
            await async_wait_until(is_reported, 60)


TEN_LINES = """
import sys
from gatepost.client import Agent

agent = Agent("bob", state_dir=sys.argv[1])

@agent.on_message
async def handle(message):
    return f"hello {message.from_}"

agent.run()
"""


async def test_ten_lines_make_an_agent_which_a_signal_ends(
    client: Client, gateway: GatewayProcess, tmp_path: Path
) -> None:
    script = tmp_path / "bob.py"
    script.write_text(TEN_LINES)
    await client.register("bob")
    command = [sys.executable, str(script), str(gateway.state_dir)]
    process = subprocess.Popen(command, env=dict(os.environ))
    try:
        assert await client.request("bob", 1) == "hello alice"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 5) == 0
    finally:
        process.kill()
        process.wait()


async def test_an_agent_waits_for_a_gateway_that_does_not_run_yet(
    tmp_path: Path, start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gatepost.client")
    agent = Agent("early", state_dir=tmp_path / "state")
    agent.on_message(lambda message: "done")
    serving = asyncio.create_task(agent.serve())
    await async_wait_until(lambda: "waiting for the gateway" in caplog.text)
    gateway = await asyncio.to_thread(start_gateway)
    await async_wait_until(lambda: "connected to the gateway" in caplog.text)
    async with Client("alice", state_dir=gateway.state_dir) as alice:
        await async_wait_until(lambda: "is ready for mail" in caplog.text)
        assert await alice.request("early", 1) == "done"
    agent.end()
    await serving
    # One line for each reason: no gateway has run here; one starts, but does not listen yet.
    assert caplog.text.count("waiting for the gateway") <= 2
    assert "Traceback" not in caplog.text


async def test_an_agent_that_waits_can_be_ended(tmp_path: Path) -> None:
    agent = Agent("early", state_dir=tmp_path)
    agent.on_message(lambda message: None)
    serving = asyncio.create_task(agent.serve())
    await asyncio.sleep(0)
    agent.end()
    await asyncio.wait_for(serving, 5)


def test_the_program_of_an_agent_says_that_it_waits(tmp_path: Path) -> None:
    program = (
        "from gatepost.client import Agent\n"
        "agent = Agent('early')\n"
        "agent.on_message(lambda message: None)\n"
        "agent.run()\n"
    )
    env = os.environ | {"GATEPOST_HOME": str(tmp_path / "state")}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "waiting for the gateway: no gateway runs here" in process.stderr.readline()
        process.terminate()
        assert "finishes its turns" in process.stderr.readline()
        assert process.wait(10) == 0
        assert process.stderr.read() == ""
