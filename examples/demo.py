"""End-to-end demo: three gateways, agents that exchange messages, and injected faults.

vps-jane founds a room; mbp-jane and lab-jane join by invite. Agents behind all three send each
other messages while turns fail at random, lab-jane sleeps and comes back, vps-jane is killed with
SIGKILL, and mbp-jane is switched off so that a fallback takes over for its agent. Then the dead
letters are replayed. In a second act, tasks are delegated between the gateways (delegation.py). The
journals are counted: every message sent must have been processed or dead-lettered, once, in order,
and every task must have one end. Finally the pipeline reads the archives, on Spark.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.delegation import DelegationAct, DelegationResult, build_table
from gatepost.client import Agent, Client, Message
from gatepost.connect.http_calls import HttpCalls
from gatepost.errors import GatepostError
from gatepost.events import NodeKey
from gatepost.pipeline.report.formatting import format_millis, spell_out
from gatepost.pipeline.report.model import PipelineReport
from gatepost.pipeline.report.terminal_summary import plain_spaces
from gatepost.testing import GatewayProcess
from simulation.history import HistoryVerdict, check_history, read_journal

HOMES = {"architect": "vps-jane", "builder": "mbp-jane", "tester": "lab-jane"}
SEED, SLEEPER, OFFLINE, FALLBACK = "vps-jane", "lab-jane", "mbp-jane", "lab-jane"
FAIL_RATE = 0.05
POISON_RATE = 0.005
TIMEOUT_SECS = 60.0
SETTINGS = {
    "log__level": "error",
    "mailbox__base_backoff_secs": 0.02,
    "delivery__accept_timeout_secs": 1.0,
    "delivery__base_backoff_secs": 0.2,
    "delivery__offline_secs": 1.0,
}

console = Console()


class DemoMesh:
    """The three gateways, and counters that the demo's agents keep."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.archive = folder / "archive"
        self.chance = random.Random(seed)
        self.gateways = {name: self._new_gateway(name) for name in HOMES.values()}
        self.turns: Counter[str] = Counter()
        self.taken_over = 0
        self.failures = 0
        self.repaired = False
        self.kills = 0

    def _new_gateway(self, name: str) -> GatewayProcess:
        archive = {
            "archive__uri": self.archive,
            "archive__max_age_secs": 0.2,
            "archive__every_secs": 0.5,
        }
        return GatewayProcess(self.folder / name, node__id=name, **SETTINGS, **archive)

    def call_api(self, name: str, method: str, path: str, body: object = None) -> Any:
        gateway = self.gateways[name]
        with HttpCalls(gateway.url, gateway.token, timeout=TIMEOUT_SECS) as calls:
            try:
                return calls.call(method, f"/v1{path}", dict, body=body)
            except GatepostError as error:
                raise SystemExit(f"{name}: {method} {path}: {error.message}") from None

    def join_gateways(self) -> None:
        """Join the room by invite; each token is good for one node and one use."""
        for name in HOMES.values():
            if name != SEED:
                invite = {"tier": "backbone", "node": name, "ttl_secs": 60}
                token = self.call_api(SEED, "POST", "/room/invites", invite)["token"]
                began = time.monotonic()
                seed = self.gateways[SEED].url
                self.call_api(name, "POST", "/room/join", {"seed": seed, "token": token})
                console.print(f"  {name} joined by invite in {time.monotonic() - began:.2f} s")

    def new_agent(self, name: str, home: str, standby: bool = False) -> Agent:
        gateway = self.gateways[home]
        agent = Agent(name, url=gateway.url, token=gateway.token, standby=standby)

        @agent.on_message
        async def handle(message: Message) -> str | None:
            await asyncio.sleep(self.chance.uniform(0, 0.002))
            if isinstance(message.payload, str):
                return None  # a reply
            unlucky = not self.repaired and self.chance.random() < FAIL_RATE
            if unlucky or (message.payload["poison"] and not self.repaired):
                self.failures += 1
                raise RuntimeError("a planned failure of the demo")
            self.turns[message.msg_id] += 1
            self.taken_over += standby
            return (
                f"done: {message.payload['number']}"
                if message.payload["number"] % 10 == 0
                else None
            )

        return agent


@contextlib.asynccontextmanager
async def run_agents(town: DemoMesh) -> AsyncIterator[None]:
    """Run all agents, and the standby of builder."""
    agents = [town.new_agent(name, home) for name, home in HOMES.items()]
    agents.append(town.new_agent("builder", FALLBACK, standby=True))
    serving = [asyncio.create_task(agent.serve()) for agent in agents]
    rule = {"owner": OFFLINE, "fallbacks": [FALLBACK]}
    await asyncio.to_thread(town.call_api, SEED, "PUT", "/room/routes/builder", rule)
    try:
        yield
    finally:
        for agent in agents:
            agent.end()
        await asyncio.wait(serving, timeout=TIMEOUT_SECS)


class SentBar:
    """A progress bar of sent messages, on which tasks can wait for a count."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("messages sent", total=total)
        self._marks: dict[int, asyncio.Event] = {}
        self.done = 0

    def count_sent(self) -> None:
        self.done += 1
        self._progress.advance(self._task)
        for mark, event in self._marks.items():
            if self.done >= mark:
                event.set()

    async def wait_for_count(self, done: int) -> None:
        event = self._marks.setdefault(done, asyncio.Event())
        await event.wait()


async def send_all(town: DemoMesh, sender: str, count: int, bar: SentBar) -> None:
    """Send `count` messages to the other agents; each is on disk when its send returns."""
    gateway = town.gateways[HOMES[sender]]
    others = [name for name in HOMES if name != sender]
    async with Client(sender, url=gateway.url, token=gateway.token) as client:
        for number in range(count):
            poison = town.chance.random() < POISON_RATE
            payload = {"number": number, "poison": poison}
            await send_when_known(client, others[number % len(others)], payload)
            bar.count_sent()
            await asyncio.sleep(town.chance.uniform(0, 0.008))


async def send_when_known(client: Client, to: str, payload: object) -> None:
    """Send, and retry while a gateway that just started does not know the receiver yet."""
    deadline = time.monotonic() + TIMEOUT_SECS
    while True:
        try:
            await client.send(to, payload, timeout=TIMEOUT_SECS)
        except GatepostError as error:
            if error.code != "unknown_agent" or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            return


async def sleep_and_wake(town: DemoMesh, bar: SentBar, at: int) -> None:
    await bar.wait_for_count(at)
    gateway = town.gateways[SLEEPER]
    await asyncio.to_thread(gateway.stop)
    console.print(f"  {SLEEPER} is stopped; its mail waits")
    await asyncio.sleep(1.5)
    await asyncio.to_thread(gateway.start)
    console.print(f"  {SLEEPER} is back")


async def kill_and_restart(town: DemoMesh, bar: SentBar, at: int) -> None:
    await bar.wait_for_count(at)
    gateway = town.gateways[SEED]
    pid = gateway.pid
    await asyncio.to_thread(gateway.kill9)
    town.kills += 1
    console.print(f"  [red]kill -9 {pid}[/]: {SEED}, with messages under way")
    await asyncio.sleep(0.5)
    await asyncio.to_thread(gateway.start)
    console.print(f"  {SEED} is back as {gateway.pid}")


async def switch_off_owner(town: DemoMesh, bar: SentBar, at: int, count: int) -> None:
    """Switch builder's gateway off and let a scout send to builder: the standby takes the mail.

    Senders with an open delivery to builder are held back, to keep their messages in order.
    """
    await bar.wait_for_count(at)
    gateway, seed = town.gateways[OFFLINE], town.gateways[SEED]
    await asyncio.to_thread(gateway.stop)
    console.print(
        f"  {OFFLINE} is switched off; a stand-in at {FALLBACK} works for its agent, builder"
    )
    async with Client("scout", url=seed.url, token=seed.token) as client:
        for number in range(count):
            await send_when_known(client, "builder", {"number": number, "poison": False})
            bar.count_sent()
    deadline = time.monotonic() + TIMEOUT_SECS
    while town.taken_over < count and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    await asyncio.to_thread(gateway.start)
    console.print(f"  {OFFLINE} is back; mail for builder goes to it again")


async def exchange_messages(town: DemoMesh, total: int) -> None:
    bar = Progress(
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with bar as progress:
        sent = SentBar(progress, total)
        async with asyncio.TaskGroup() as group:
            scouts = total // 10
            for sender in HOMES:
                group.create_task(send_all(town, sender, (total - scouts) // len(HOMES), sent))
            group.create_task(sleep_and_wake(town, sent, total * 2 // 10))
            group.create_task(kill_and_restart(town, sent, total * 4 // 10))
            group.create_task(switch_off_owner(town, sent, total * 6 // 10, scouts))
    took = await wait_until_drained(town)
    console.print(f"  all are sent; {took:,.1f} s later every one has ended")


async def wait_until_drained(town: DemoMesh) -> float:
    """Wait until no delivery is open and no mail waits; returns the seconds it took."""
    began = time.monotonic()
    async with asyncio.timeout(TIMEOUT_SECS):
        while True:
            states = [await asyncio.to_thread(g.get, "/v1/status") for g in town.gateways.values()]
            if not any(s["deliveries_open"] + s["waiting"] + s["in_flight"] for s in states):
                return time.monotonic() - began
            await asyncio.sleep(0.1)


async def replay_dead_letters(town: DemoMesh) -> int:
    """Fix the cause of the failures and replay all dead letters; returns their number."""
    town.repaired = True
    replayed = 0
    for home in set(HOMES.values()):
        for agent in HOMES:
            path = f"/mailboxes/{agent}/dead-letters/replay"
            acks = await asyncio.to_thread(town.call_api, home, "POST", path, {"limit": 1000})
            replayed += len(acks["results"])
    await wait_until_drained(town)
    return replayed


async def run_scenario(town: DemoMesh, total: int) -> tuple[int, DelegationResult, HistoryVerdict]:
    async with run_agents(town):
        await exchange_messages(town, total)
        died = sum(g.get("/v1/status")["dead_letters"] for g in town.gateways.values())
        replayed = await replay_dead_letters(town)
        console.print(
            f"  {died} messages failed four times and became dead letters, kept with their reason;"
            f" the cause is repaired, and {replayed} of them are sent again"
        )
        delegated = await DelegationAct(town, ["architect", "builder"]).play()
        await wait_until_drained(town)
    await wait_until_archived(town)
    for gateway in town.gateways.values():
        await asyncio.to_thread(gateway.stop)
    journals = [_read_gateway_journal(gateway) for gateway in town.gateways.values()]
    return replayed, delegated, check_history(journals)


async def wait_until_archived(town: DemoMesh) -> None:
    """Wait until every event written so far is in the archive."""
    async with asyncio.timeout(TIMEOUT_SECS):
        for name, gateway in town.gateways.items():
            seq = (await asyncio.to_thread(gateway.get, "/v1/status"))["outbox_seq"]
            manifest = town.archive / f"node={name}" / "_manifest.json"
            while (
                not manifest.exists() or json.loads(manifest.read_text())["archivedThrough"] < seq
            ):
                await asyncio.sleep(0.1)


def run_pipeline(town: DemoMesh, page_at: Path) -> bool:
    """Run the pipeline on the archives, in one Spark session; whether the audit was clean."""
    from gatepost.pipeline.engine_use import SparkUse
    from gatepost.pipeline.jobs.audit import audit_archive
    from gatepost.pipeline.jobs.pipeline import update_tables
    from gatepost.pipeline.report.gatherer import gather_report
    from gatepost.pipeline.report.html_page import render_page
    from gatepost.pipeline.session import spark_session
    from gatepost.pipeline.transport import SparkTransport

    archive, tables = str(town.archive), str(town.folder / "tables")
    console.print("Spark starts, to read the archives of the three gateways")
    started = time.monotonic()
    with spark_session(brief=True) as spark:
        transport = SparkTransport(spark)
        use = SparkUse(transport, time.monotonic() - started)
        update_tables(transport, archive, tables)
        audited = audit_archive(transport, archive, tables)
        made = gather_report(transport, tables, days=1)
        console.print(f"  {use.measure().describe()}; {time.monotonic() - started:.1f} s in all")
    print_times(made)
    page_at.write_text(render_page(made), encoding="utf-8")
    console.print(
        f"Audit: {audited.events:,} signed events were checked against every rule of the protocol;"
        f" {sum(audited.violations.values()):,} break one"
    )
    return not audited.violations


def print_times(made: PipelineReport) -> None:
    """Print how long deliveries took, from the tables of the pipeline."""
    table = Table(title="How long it took, from the send", title_justify="left")
    columns = ("", "count", "95 % accepted within", "95 % processed within")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for level in (made.total, *made.kinds):
        times = (format_millis(level.accept.p95), format_millis(level.process.p95))
        table.add_row(spell_out(level.name), f"{level.sent:,}", *map(plain_spaces, times))
    console.print(table)
    console.print(
        "  Accepted: on disk at the receiver's gateway. Processed: the receiver's turn has ended."
        " The times include the waiting for gateways that were stopped on purpose."
    )


def _read_gateway_journal(gateway: GatewayProcess) -> Any:
    key = NodeKey((gateway.state_dir / "node.key").read_bytes())
    return read_journal(gateway.state_dir / "journal.db", key.public)


def print_counts(
    town: DemoMesh, total: int, replayed: int, verdict: HistoryVerdict, seconds: float
) -> bool:
    """Print the counts; returns whether every message is accounted for."""
    truth = verdict.counts
    replies = truth.sent - total - replayed - truth.task_requests
    doubled = sum(1 for turns in town.turns.values() if turns > 1)
    table = Table(title="Every message, counted from the gateways' journals", title_justify="left")
    table.add_column("", justify="left")
    table.add_column("count", justify="right")
    for name, value in (
        ("messages that agents sent", total),
        ("replies to them", replies),
        ("dead letters sent again, as new messages", replayed),
        ("requests and cancellations of tasks", truth.task_requests),
        ("[bold]sent in all[/]", truth.sent),
        ("processed: the receiver's turn has ended", truth.processed),
        ("dead letters: failed four times, kept with their reason", truth.dead_lettered),
        ("still waiting", truth.waiting),
        ("[bold]lost[/]", truth.lost),
        ("[bold]done twice[/]", truth.doubled + doubled),
        ("[bold]broken rules of the protocol[/]", len(verdict.violations)),
        ("turns that failed on purpose and were tried again", town.failures),
        ("turns of the stand-in for builder", town.taken_over),
    ):
        table.add_row(name, f"{value:,}")
    console.print(table)
    for violation in verdict.violations[:10]:
        console.print(f"[red]{violation}[/]")
    ledger = verdict.ledger
    console.print(f"  {ledger}, in {seconds:.1f} s; a reply is no entry of its own")
    adds_up = ledger.adds_up and ledger.sent >= total
    fine = verdict.ok and adds_up and not truth.lost and not doubled
    return fine and town.kills == 1 and town.taken_over > 0


def print_verdict(
    counted: bool, audited: bool | None, page_at: Path, delegated: bool = True
) -> bool:
    """Print the path of the report, and last of all whether everything went well."""
    if audited is not None:
        console.print(f"Report: {page_at}")
    if counted and delegated and audited is not False:
        more = "" if audited is None else ", and the audit found every promise kept"
        console.print(
            f"[green]Every message is accounted for: none lost, none done twice{more}.[/]"
        )
        return True
    found = [] if counted else ["the count above does not add up"]
    found += [] if delegated else ["the delegated work did not go as it should"]
    found += ["the audit found broken promises"] if audited is False else []
    console.print(f"[red]Something went wrong: {'; '.join(found)}.[/]")
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=3000, help="number of messages to send")
    parser.add_argument("--seed", type=int, default=None, help="repeat the random choices of a run")
    parser.add_argument("--no-pipeline", action="store_true", help="stop after the count")
    options = parser.parse_args()
    # Hundreds of turns fail on purpose; their tracebacks would bury the result.
    logging.getLogger("gatepost.client").setLevel(logging.CRITICAL)
    seed = random.randrange(2**32) if options.seed is None else options.seed
    total = options.messages // 60 * 60
    cache = Path(__file__).parent.parent / ".cache"
    cache.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=cache, prefix="demo-") as folder,
        contextlib.ExitStack() as running,
    ):
        town = DemoMesh(Path(folder), seed)
        for gateway in town.gateways.values():
            running.enter_context(gateway)
        console.print(
            f"Three gateways, one for each machine: {', '.join(town.gateways)}."
            f" Behind each lives one agent. Random choices: --seed {seed}"
        )
        town.join_gateways()
        started = time.monotonic()
        replayed, delegated, verdict = asyncio.run(run_scenario(town, total))
        counted = print_counts(town, total, replayed, verdict, time.monotonic() - started)
        console.print(build_table(delegated))
        page_at = cache / "demo-report.html"
        audited = None if options.no_pipeline else run_pipeline(town, page_at)
        fine = print_verdict(counted, audited, page_at, delegated.fine)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
