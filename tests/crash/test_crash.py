"""A real gateway, killed at random under load: nothing acknowledged is lost or doubled."""

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from gatepost.client import Agent, Client, Message
from gatepost.testing import GatewayProcess
from tests.waiting import async_wait_until, wait_until_in_thread

SENDERS = ("ann", "bob", "cat")
RECEIVERS = ("x", "y")


class Ledger:
    """What was acknowledged to senders, and what receivers did."""

    def __init__(self) -> None:
        self.acknowledged: set[str] = set()
        self.turns: Counter[str] = Counter()
        self.order: dict[tuple[str, str], list[int]] = defaultdict(list)


def receiver(name: str, state_dir: Path, ledger: Ledger) -> Agent:
    agent = Agent(name, state_dir=state_dir)

    @agent.on_message
    async def handle(message: Message) -> None:
        if random.random() < 0.02:
            raise RuntimeError("now and then a turn fails")
        ledger.turns[message.msg_id] += 1
        ledger.order[message.from_, name].append(message.payload)

    return agent


async def produce(client: Client, sender: str, ledger: Ledger, stop: asyncio.Event) -> None:
    """Half of the messages go through the mailbox protocol, half through `send`."""
    number = 0
    while not stop.is_set():
        number += 1
        await asyncio.gather(*(one(client, sender, to, number, ledger) for to in RECEIVERS))


async def one(client: Client, sender: str, to: str, number: int, ledger: Ledger) -> None:
    if sender == "ann":
        sent = await client.send(to, number, from_=sender, timeout=60)
        ledger.acknowledged.add(sent.event_id)
    else:
        ack = await client.enqueue(to, number, from_=sender, timeout=60)
        ledger.acknowledged.add(ack.msg_id)


async def kill_again_and_again(gateway: GatewayProcess, rounds: int, ledger: Ledger) -> None:
    for _ in range(rounds):
        wanted = len(ledger.acknowledged) + random.randint(51, 400)
        await async_wait_until(lambda: len(ledger.acknowledged) >= wanted, 60)  # noqa: B023
        await asyncio.to_thread(gateway.kill9)
        await asyncio.to_thread(gateway.start)


async def drained(gateway: GatewayProcess) -> None:
    def nothing_left() -> bool:
        status = gateway.get("/v1/status")
        return not status["waiting"] + status["in_flight"]

    await wait_until_in_thread(nothing_left, 60)


async def run(gateway: GatewayProcess, rounds: int, ledger: Ledger) -> None:
    agents = [receiver(name, gateway.state_dir, ledger) for name in RECEIVERS]
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        for agent in agents:
            await stack.enter_async_context(agent)
        async with asyncio.TaskGroup() as group:
            for sender in SENDERS:
                client = await stack.enter_async_context(Client(state_dir=gateway.state_dir))
                group.create_task(produce(client, sender, ledger, stop))
            await kill_again_and_again(gateway, rounds, ledger)
            stop.set()
        await drained(gateway)


@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_or_doubled(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    ledger, rounds = Ledger(), count(3, 50)
    with GatewayProcess(tmp_path / "state", mailbox__base_backoff_secs=0.01) as gateway:
        asyncio.run(run(gateway, rounds, ledger))
        dead = {
            letter["msg_id"]
            for name in RECEIVERS
            for letter in gateway.get(f"/v1/mailboxes/{name}/dead-letters?limit=1000")["messages"]
        }
    lost = ledger.acknowledged - ledger.turns.keys() - dead
    doubled = {id for id, turns in ledger.turns.items() if turns > 1}
    both = dead & ledger.turns.keys()
    assert len(ledger.acknowledged) > 50 * rounds, "hardly any load"
    assert (lost, doubled, both) == (set(), set(), set())
    for pair, seen in ledger.order.items():
        assert seen == sorted(seen), f"out of order: {pair}"
