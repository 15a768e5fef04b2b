"""The benchmark measures what it says, and refuses to count what went wrong."""

import asyncio
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from gatepost.bench import MailboxBenchOptions, MailboxBenchResult, bench_mailbox, render_result
from gatepost.bench.fsync import percentile
from gatepost.bench.mailbox import CheckingConsumer
from gatepost.bench.redis import RedisResult
from gatepost.errors import BenchFailed


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> MailboxBenchResult:
    options = MailboxBenchOptions(messages=2000, outstanding=64, senders=3, singles=50, fsyncs=50)
    return bench_mailbox(tmp_path_factory.mktemp("bench"), options)


def test_every_phase_has_its_figures(result: MailboxBenchResult) -> None:
    assert result.throughput.messages == 2000
    assert result.throughput.per_sec > 0
    assert 0 < result.single.p50_ms <= result.single.p99_ms
    assert 0 < result.fsync.p50_ms <= result.fsync.p99_ms
    work = result.work_queue
    assert min(work.per_sec, work.busy_per_sec, work.busy_in_order_per_sec) > 0


def test_the_client_coalesced(result: MailboxBenchResult) -> None:
    assert result.throughput.frames < 2000


def test_it_reads_as_a_table_and_as_json(result: MailboxBenchResult) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render_result(result))
    text = console.export_text()
    assert "64 outstanding, 3 senders" in text
    assert "4 workers, one sender, in order, 2 ms of work" in text
    assert "fsync before the answer" in text
    again = msgspec.json.decode(msgspec.json.encode(result), type=MailboxBenchResult)
    assert again == result


def test_the_ratio_to_redis_is_shown(result: MailboxBenchResult) -> None:
    per_sec, p50_ms = result.throughput.per_sec, result.single.p50_ms
    redis = RedisResult("7.0", per_sec * 2, p50_ms / 3, p50_ms)
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(render_result(replace(result, redis=redis)))
    shown = "Gatepost has 0.50 of its rate, and 3.00 of its time for one message."
    assert shown in console.export_text()


def test_the_gateways_state_is_gone_afterwards(tmp_path: Path) -> None:
    """The smallest bench, whose warm-up would be a tenth of one message."""
    bench_mailbox(tmp_path, MailboxBenchOptions(messages=1, outstanding=8, singles=1, fsyncs=1))
    assert list(tmp_path.iterdir()) == []


def test_percentiles_are_of_the_ordered_list() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 3.0
    assert percentile([1.0], 99) == 1.0


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arrivals", "why"),
    [([0, 0], "twice"), ([1, 0], "out of order")],
)
async def test_a_doubled_or_overtaken_message_fails_the_run(arrivals: list[int], why: str) -> None:
    unused: Any = None
    consumer = CheckingConsumer(unused, total=2)
    for number in arrivals:
        consumer._check_order("sender", number)
    with pytest.raises(BenchFailed, match=why):
        await asyncio.wait_for(consumer.finished, 1)
