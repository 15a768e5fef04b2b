"""The main job, end to end: agents exchange messages while handlers fail and the gateway dies.

Starts a real gateway, lets four agents send a few thousand messages to four others whose handlers
fail at random, kills the gateway with SIGKILL in the middle, starts it again, and then counts:
every message sent must have been processed or dead-lettered, once, in order.
"""

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gatepost.client import Agent, Client, Message, Sent
from gatepost.testing import GatewayProcess

SENDERS = ("ann", "bob", "cat", "dan")
WORKERS = ("worker-1", "worker-2", "worker-3", "worker-4")
FAIL_RATE = 0.1
POISON_RATE = 0.005
PATIENCE = 60.0

console = Console()


class Record:
    """What the demo itself saw, to hold against what the gateway says."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.turns: Counter[str] = Counter()
        self.order: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.failures = 0
        self.kills = 0

    def count(self, outcome: str) -> int:
        return sum(1 for value in self.outcomes.values() if value == outcome)

    def doubled(self) -> int:
        return sum(1 for turns in self.turns.values() if turns > 1)

    def out_of_order(self) -> int:
        return sum(1 for seen in self.order.values() if seen != sorted(seen))


def make_worker(name: str, state_dir: Path, record: Record, chance: random.Random) -> Agent:
    agent = Agent(name, state_dir=state_dir)

    @agent.on_message
    async def handle(message: Message) -> str:
        number, poison = message.payload["number"], message.payload["poison"]
        await asyncio.sleep(chance.uniform(0, 0.002))
        if poison or chance.random() < FAIL_RATE:
            record.failures += 1
            raise RuntimeError("this message never works" if poison else "bad luck")
        record.turns[message.msg_id] += 1
        record.order[message.from_, name].append(number)
        return f"done: {number}"

    return agent


class Bars:
    """A progress bar, and a way to wait for a point on it."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("messages settled", total=total)
        self._done = 0
        self._marks: dict[int, asyncio.Event] = {}

    def advance(self) -> None:
        self._done += 1
        self._progress.advance(self._task)
        if self._done in self._marks:
            self._marks[self._done].set()

    async def reached(self, done: int) -> None:
        self._marks[done] = asyncio.Event()
        await self._marks[done].wait()


async def send_all(
    client: Client, sender: str, count: int, record: Record, chance: random.Random, progress: Bars
) -> None:
    """Send `count` messages, each awaited until its turn has ended, up to 100 at a time."""
    room = asyncio.Semaphore(100)

    async def one(number: int) -> None:
        payload = {"number": number, "poison": chance.random() < POISON_RATE}
        to = WORKERS[number % len(WORKERS)]
        try:
            sent = await client.send(to, payload, from_=sender, wait="processed", timeout=PATIENCE)
            note(sent)
        finally:
            room.release()

    def note(sent: Sent) -> None:
        record.outcomes[sent.event_id] = sent.outcome or "unknown"
        progress.advance()

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await room.acquire()
            group.create_task(one(number))


async def kill_and_restart(gateway: GatewayProcess, bars: Bars, at: int, record: Record) -> None:
    await bars.reached(at)
    pid = gateway.pid
    await asyncio.to_thread(gateway.kill9)
    record.kills += 1
    console.print(f"  [red]kill -9 {pid}[/] with messages under way")
    await asyncio.sleep(0.5)
    await asyncio.to_thread(gateway.start)
    console.print(f"  the gateway is back as {gateway.pid}")


async def exchange(gateway: GatewayProcess, total: int, record: Record, seed: int) -> None:
    chance = random.Random(seed)
    state_dir = gateway.state_dir
    workers = [make_worker(name, state_dir, record, chance) for name in WORKERS]
    bar = Progress(
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with bar as progress:
        bars = Bars(progress, total)
        async with asyncio.TaskGroup() as group:
            serving = [group.create_task(worker.serve()) for worker in workers]
            await registered(gateway)
            await send_and_kill(gateway, bars, total, record, chance)
            for worker in workers:
                worker.end()
            await asyncio.wait(serving)


async def registered(gateway: GatewayProcess) -> None:
    while len(await asyncio.to_thread(gateway.get, "/v1/agents")) < len(WORKERS):
        await asyncio.sleep(0.05)


async def send_and_kill(
    gateway: GatewayProcess, bars: Bars, total: int, record: Record, chance: random.Random
) -> None:
    each = total // len(SENDERS)
    async with Client(state_dir=gateway.state_dir) as client, asyncio.TaskGroup() as group:
        for sender in SENDERS:
            group.create_task(send_all(client, sender, each, record, chance, bars))
        group.create_task(kill_and_restart(gateway, bars, total * 4 // 10, record))


def verdict(gateway: GatewayProcess, total: int, record: Record, seconds: float) -> bool:
    """Print the table; true if the sums are right."""
    status = gateway.get("/v1/status")
    processed, dead = record.count("ok"), record.count("dead_letter")
    lost = total - processed - dead
    never = sum(1 for id, o in record.outcomes.items() if o == "ok" and not record.turns[id])
    table = Table(title="What became of every message", title_justify="left")
    table.add_column("", justify="left")
    table.add_column("count", justify="right")
    for name, value in (
        ("sent", total),
        ("processed", processed),
        ("dead-lettered", dead),
        ("[bold]lost[/]", lost),
        ("[bold]doubled turns[/]", record.doubled()),
        ("[bold]pairs out of order[/]", record.out_of_order()),
        ("called processed, but no turn", never),
        ("failed turns, retried or dead-lettered", record.failures),
        ("gateway killed", record.kills),
        ("dead letters the gateway keeps", status["dead_letters"]),
        ("still waiting at the gateway", status["waiting"] + status["in_flight"]),
    ):
        table.add_row(name, f"{value:,}")
    console.print(table)
    wrong = lost, record.doubled(), record.out_of_order(), never, status["dead_letters"] - dead
    fine = not any(wrong) and record.kills == 1
    sums = f"{total:,} sent = {processed:,} processed + {dead:,} dead-lettered"
    console.print(f"[{'green' if fine else 'red'}]{sums}[/], in {seconds:.1f} s")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=4000, help="how many to send")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run's random choices")
    options = parser.parse_args()
    # Hundreds of turns fail on purpose; their tracebacks would bury the result.
    logging.getLogger("gatepost.client").setLevel(logging.CRITICAL)
    seed = random.randrange(2**32) if options.seed is None else options.seed
    total = options.messages // len(SENDERS) * len(SENDERS)
    record = Record()
    cache = Path(__file__).parent.parent / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="demo-") as folder:
        gateway = GatewayProcess(Path(folder) / "state", mailbox__base_backoff_secs=0.02)
        with gateway:
            console.print(f"Gateway {gateway.pid} at {gateway.url}; seed {seed}")
            started = time.monotonic()
            asyncio.run(exchange(gateway, total, record, seed))
            fine = verdict(gateway, total, record, time.monotonic() - started)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
