"""What /metrics says of both planes."""

import asyncio
from pathlib import Path

import httpx
from msgspec import Raw
from prometheus_client.parser import text_string_to_metric_families

from gatepost.core.commit_observer import LATENCY_BOUNDS_MS, CommitObserver, LatencyHistogram
from gatepost.delivery.close import apply_receipt
from gatepost.delivery.coordinator import CountedReceipt
from gatepost.delivery.decisions import ReceiptArrived
from gatepost.delivery.outbox_writer import ACCEPTED, PROCESSED
from gatepost.events import Envelope
from gatepost.gateway.monitoring.metrics import Metrics
from gatepost.testing import ManualClock
from gatepost.wire.operations import Ack, Dequeue, NewSend, Register, Send
from tests.delivery.mesh import Gate, Mesh
from tests.gateway.tools import opened

Samples = dict[tuple[str, ...], float]


def samples(text: str) -> Samples:
    """By name and the values of its labels."""
    return {
        (sample.name.removeprefix("gatepost_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Watched:
    """A gate with an observer, which is a participant like in a gateway."""

    def __init__(self, gate: Gate) -> None:
        self.observer = CommitObserver(gate.core)
        gate.writer._participants += (self.observer,)


def test_latencies_are_by_the_senders_clock_and_by_kind() -> None:
    mesh = Mesh("a", "b")
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    mesh.flow()
    watched = Watched(a).observer
    id = a.send(b).event_id
    mesh.clock.advance(40)
    mesh.flow()
    mesh.clock.advance(2_000)
    b.settle()
    mesh.flow()
    assert a.state(id) == "processed"
    accepted = watched.latencies["message", "accepted"]
    processed = watched.latencies["message", "processed"]
    assert (sum(accepted.counts), accepted.total) == (1, 40)
    assert (sum(processed.counts), processed.total) == (1, 2_040)
    assert (
        dict(processed.cumulative_buckets())["2.5"] == 1
        and dict(processed.cumulative_buckets())["1.0"] == 0
    )


def test_events_are_counted_by_kind_once_they_are_on_disk() -> None:
    mesh = Mesh("a", "b")
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    mesh.flow()
    one, other = Watched(a).observer, Watched(b).observer
    a.send_many(b, 5)
    mesh.clock.advance(700)
    mesh.flow()
    b.settle()
    mesh.flow()
    assert (dict(one.emitted), dict(one.received)) == ({"message": 5}, {"ack": 10})
    assert (dict(other.emitted), dict(other.received)) == ({"ack": 10}, {"message": 5})


def test_a_source_is_behind_by_the_age_of_what_it_sends() -> None:
    mesh = Mesh("a", "b")
    a, b = mesh["a"], mesh["b"]
    watched = Watched(b).observer
    a.send(b)
    mesh.clock.advance(9_000)
    mesh.link("a", "b")
    mesh.flow()
    assert watched.source_lags == {"a": 9_000}
    a.send(b)
    mesh.flow()
    assert watched.source_lags == {"a": 0}


def test_a_group_that_is_undone_is_not_counted() -> None:
    mesh = Mesh("a", "b")
    watched = Watched(mesh["a"]).observer
    watched._receipts.append(CountedReceipt("message", "accepted", 5, "x"))
    watched.rolled_back()
    watched.after_commit()
    assert not sum(watched.latencies["message", "accepted"].counts)


def test_a_receipt_that_repeats_what_is_known_is_not_ignored() -> None:
    mesh = Mesh("a", "b")
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    mesh.flow()
    id = a.send(b).event_id
    mesh.flow()
    b.settle()
    mesh.flow()
    parts = a.core.parts
    a.do(lambda tx: apply_receipt(parts, tx, ReceiptArrived("b", id, ACCEPTED)))
    a.do(lambda tx: apply_receipt(parts, tx, ReceiptArrived("b", id, PROCESSED)))
    assert parts.counts.ignored_receipts == 0
    a.do(lambda tx: apply_receipt(parts, tx, ReceiptArrived("c", id, PROCESSED)))
    assert parts.counts.ignored_receipts == 1, "from a node it was never routed to"


def test_buckets_cover_every_latency() -> None:
    latency = LatencyHistogram()
    for millis in (0, 5, 6, 5_000, 10**9):
        latency.add_observation(millis)
    counts = dict(latency.cumulative_buckets())
    assert (counts["0.005"], counts["0.01"], counts["5.0"], counts["+Inf"]) == (2, 3, 4, 5)
    assert len(latency.counts) == len(LATENCY_BOUNDS_MS) + 1


def test_a_kind_nobody_knows_is_no_label(state: Path, clock: ManualClock) -> None:
    async def scenario() -> Samples:
        async with opened(state, clock) as operations:
            core = operations.core
            for number in range(20):
                draft = Envelope(
                    event_id=core.node.event_ids.next_id(),
                    kind=f"strange-{number}",
                    source_agent_id="gateway",
                )
                await core.commit(lambda tx, draft=draft: tx.append_event(draft))  # type: ignore[misc]
            content, _ = await Metrics(core).render_text()
        return samples(content.decode())

    assert asyncio.run(scenario())["events_emitted_total", "other"] == 20


def test_a_gateway_alone_shows_its_deliveries(state: Path, clock: ManualClock) -> None:
    async def scenario() -> Samples:
        async with opened(state, clock) as operations:
            await operations.perform(Register(agent="bob"))
            news = [NewSend("al", "bob", Raw(b"1")) for _ in range(3)]
            await operations.perform(Send(messages=news))
            clock.advance(300)
            (first,) = (await operations.perform(Dequeue(mailbox="bob"))).messages
            await operations.perform(Ack(mailbox="bob", receipts=[first.receipt]))
            content, _ = await Metrics(operations.core).render_text()
        return samples(content.decode())

    shown = asyncio.run(scenario())
    assert shown["deliveries_open", "accepted"] == 2
    assert shown["events_emitted_total", "message"] == 3
    assert shown["delivery_seconds_count", "message", "processed"] == 1
    assert shown["delivery_seconds_sum", "message", "processed"] == 0.3
    assert shown["delivery_seconds_bucket", "message", "0.5", "processed"] == 1
    zero = ("retries_total", "duplicates_total", "receipts_ignored_total", "link_errors_total")
    assert [shown[name,] for name in zero] == [0, 0, 0, 0]


def test_metrics_are_well_formed(http: httpx.Client) -> None:
    shown = samples(http.get("/metrics").text)
    assert shown["journal_accepting",] == 1
    assert ("blobs_fetched_total",) in shown
