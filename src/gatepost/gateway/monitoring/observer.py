"""Traffic metrics: counted in the commit group, or read from journal and room on each scrape.

`CommitObserver` is the last participant of every commit group. During a group it only collects;
it counts once the group is on disk. `TrafficCollector` reads everything the journal and the room
store anyway when /metrics is scraped. Labels are kinds, states, reasons and room members, so
there are few.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from msgspec import Struct, field
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gatepost.delivery import DeliveryCore
from gatepost.delivery.coordinator import CountedReceipt
from gatepost.events import KNOWN_KINDS, TRACKED_KINDS, Envelope
from gatepost.gateway.monitoring.incident_counts import count_incidents
from gatepost.journal import Tx
from gatepost.journal.outbox import EventDraft
from gatepost.journal.writer import JobOutcome

if TYPE_CHECKING:
    from gatepost.gateway.core import Core
    from gatepost.gateway.monitoring.spans import SpanRecorder
    from gatepost.gateway.peers.connection_links import ConnectionLinks
    from gatepost.gateway.peers.room_replica import RoomReplica

# Upper bounds of the histogram buckets. The delivery objective, 5 s, is one of them.
LATENCY_BOUNDS_MS = (
    5,
    10,
    25,
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    30_000,
    60_000,
    300_000,
)
# A label has at most so many values, the largest ones, and one for all others together. No name can
# begin with an underscore.
MAX_LABELS = 200
OTHERS = "_others"
# Label for unknown event kinds: peers choose their names, so they must not become labels.
_OTHER_KIND = "other"


class LatencyHistogram(Struct):
    """A histogram of latencies in milliseconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))
    total: int = 0

    def add_observation(self, millis: int) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_MS, millis)] += 1
        self.total += millis

    def cumulative_buckets(self) -> list[tuple[str, float]]:
        bounds = [*(str(bound / 1000) for bound in LATENCY_BOUNDS_MS), "+Inf"]
        below, found = 0, []
        for bound, count in zip(bounds, self.counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found


class CommitObserver:
    """Counts events and receipts in the writer's thread; a scrape only reads numbers."""

    def __init__(self, delivery: DeliveryCore, telemetry: "SpanRecorder | None" = None) -> None:
        self.emitted: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.latencies = {
            (kind, stage): LatencyHistogram()
            for kind in sorted(TRACKED_KINDS)
            for stage in ("accepted", "processed")
        }
        # Source → age of its last event, by the emitter's clock, when it was sent here.
        self.source_lags: dict[str, int] = {}
        self._telemetry = telemetry
        self._drafts: list[EventDraft] = []
        self._kinds: list[str] = []
        self._lags: dict[str, int] = {}
        self._receipts: list[CountedReceipt] = []
        self._now = 0
        delivery.coordinator.observe(on_receipt=self._receipts.append, on_batch=self._note_received)
        if telemetry is not None:
            delivery.dispatcher.on_leased = telemetry.add_leased

    def _note_received(self, source: str, new: list[tuple[Envelope, bytes]], now: int) -> None:
        self._kinds += [envelope.kind for envelope, _ in new]
        if new:
            self._lags[source] = max(0, now - new[-1][0].created_at)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        self._drafts = tx.appended_drafts
        self._now = tx.now

    def after_commit(self) -> list[JobOutcome]:
        self.emitted.update(draft.kind for draft in self._drafts)
        self.received.update(_merge_unknown_kinds(Counter(self._kinds)))
        self.source_lags |= self._lags
        for kind, stage, millis, _ in self._receipts:
            # Nothing may fail here: the group is on disk, and its callers wait for the outcome.
            if (latency := self.latencies.get((kind, stage))) is not None:
                # A clock that was set back is not a negative latency.
                latency.add_observation(max(0, millis))
        if self._telemetry is not None:
            self._telemetry.submit_group(self._drafts, list(self._receipts), self._now)
        self._clear_group()
        return []

    def rolled_back(self) -> None:
        self._clear_group()
        if self._telemetry is not None:
            self._telemetry.discard_leased()

    def next_due(self, tx: Tx) -> int | None:
        return None

    def _clear_group(self) -> None:
        self._drafts, self._kinds, self._lags = [], [], {}
        self._receipts.clear()


class JournalCounts(Struct, frozen=True):
    """Counts read from the journal for one scrape."""

    undelivered: dict[str, int]
    open_deliveries: dict[str, int]
    held: dict[str, int]
    readers: dict[str, tuple[int, int]]  # node → (last seq for it, last seq it acked)
    incidents: dict[str, int]


_SELECT_COUNTS = (
    "SELECT reason, count(*) FROM undelivered WHERE replayed_as IS NULL GROUP BY reason",
    "SELECT state, count(*) FROM delivery WHERE processed_at IS NULL GROUP BY state",
    "SELECT why, count(*) FROM held WHERE event_id IS NOT NULL GROUP BY why",
)
_SELECT_READERS = "SELECT node_id, last_seq, acked_seq FROM recipient WHERE node_id <> '*'"


def read_journal_counts(tx: Tx) -> JournalCounts:
    undelivered, open, held = (
        dict(map(_key_and_count, tx.fetch_all(query))) for query in _SELECT_COUNTS
    )
    readers = {row[0]: (row[1], row[2]) for row in tx.fetch_all(_SELECT_READERS)}
    return JournalCounts(undelivered, open, held, readers, count_incidents(tx))


def _key_and_count(row: tuple[str, int]) -> tuple[str, int]:
    return row[0], row[1]


class TrafficCollector(Collector):
    """Traffic, incidents and room members on /metrics. Call `refresh_counts` before a scrape."""

    def __init__(self, core: "Core") -> None:
        self._core = core
        self._counts = JournalCounts({}, {}, {}, {}, {})
        self._room: tuple[RoomReplica, ConnectionLinks] | None = None
        # Returns the backlogs that keep growing, as (what, name).
        self.growing_backlogs: Callable[[], Iterable[tuple[str, str]]] = tuple

    def watch_room(self, replica: "RoomReplica", links: "ConnectionLinks") -> None:
        """Include the room and its links from now on."""
        self._room = (replica, links)

    async def refresh_counts(self) -> None:
        self._counts = await self._core.read(read_journal_counts)

    def collect(self) -> Iterator[Metric]:
        yield from self._traffic_metrics()
        yield from self._delivery_metrics()
        yield from self._incident_metrics()
        if self._room is not None:
            yield from self._member_metrics(*self._room)

    def _traffic_metrics(self) -> Iterator[Metric]:
        observer, receiver = self._core.observer, self._core.delivery.receiver
        yield _labelled_counters(
            "events_emitted", "Events appended.", "kind", _merge_unknown_kinds(observer.emitted)
        )
        yield _labelled_counters(
            "events_taken",
            "Events taken from others.",
            "kind",
            _merge_unknown_kinds(observer.received),
        )
        yield _counter_metric("duplicates", "Events that came again.", receiver.duplicates)
        sender = self._core.delivery.sender
        yield _counter_metric(
            "receipts_ignored", "Receipts that did not count.", sender.receipts.ignored
        )
        yield _counter_metric("retries", "Messages sent again, unanswered.", sender.timers.retries)
        yield _counter_metric("blobs_fetched", "Blobs fetched from others.", receiver.blobs)
        if self._core.telemetry is not None:
            text = "Commit groups and sends without spans."
            yield _counter_metric("telemetry_dropped", text, self._core.telemetry.dropped)
        yield self._latency_metric()

    def _latency_metric(self) -> Metric:
        text = "From sending to a receipt, by the sender's clock."
        family = HistogramMetricFamily("gatepost_delivery_seconds", text, labels=["kind", "until"])
        for key, latency in self._core.observer.latencies.items():
            if any(latency.counts):
                family.add_metric([*key], latency.cumulative_buckets(), latency.total / 1000)
        return family

    def _delivery_metrics(self) -> Iterator[Metric]:
        counts = self._counts
        yield _labelled_gauges(
            "deliveries_open", "Deliveries not processed.", "state", counts.open_deliveries
        )
        yield _labelled_gauges("held", "Events taken and not accepted yet.", "why", counts.held)
        text = "Messages given up and kept."
        yield _labelled_gauges("undelivered", text, "reason", counts.undelivered)

    def _incident_metrics(self) -> Iterator[Metric]:
        counts = self._core.delivery.incidents.counts
        yield _labelled_counters("incidents", "Incidents since the start.", "class", dict(counts))
        yield _counter_metric("link_errors", "Links that broke a rule.", counts["link_error"])
        yield _labelled_gauges(
            "incidents_kept", "Incidents on record.", "class", self._counts.incidents
        )
        yield self._abuse_metric()
        family = GaugeMetricFamily(
            "gatepost_backlog_growing",
            "1 while a backlog grows and does not stop.",
            labels=["what", "name"],
        )
        for what, name in islice(self.growing_backlogs(), MAX_LABELS):
            family.add_metric([what, name], 1)
        yield family

    def _abuse_metric(self) -> Metric:
        text = "Refused because the source may not do this."
        family = CounterMetricFamily("gatepost_abuse", text, labels=["source", "kind"])
        for (source, kind), count in sorted(self._core.abuse.counts().items()):
            family.add_metric([source, kind], count)
        return family

    def _member_metrics(self, replica: "RoomReplica", links: "ConnectionLinks") -> Iterator[Metric]:
        if replica.room is None:
            return
        room, own = replica.room, self._core.node.id
        others = sorted(node for node in room.effective.nodes if node != own)
        linked = links.linked_peers()
        yield _gauge_metric("room_members", "Nodes in the room.", len(room.effective.nodes))
        yield _gauge_metric("room_records", "Records in the room.", len(room.document))
        size = sum(len(signed.text) for signed in room.document)
        yield _gauge_metric("room_bytes", "Size of all records in the room.", size)
        yield _gauge_metric("links", "Links that are up.", len(linked))
        up = {node: int(node in linked) for node in others}
        yield _labelled_gauges("link_up", "1 while there is a link.", "node", up)
        ages = {node: links.seconds_silent(node) for node in others}
        yield _labelled_gauges("node_silence_seconds", "Since its last sign of life.", "node", ages)
        yield from self._lag_metrics(others, links)

    def _lag_metrics(self, others: list[str], links: "ConnectionLinks") -> Iterator[Metric]:
        readers, lags = self._counts.readers, self._core.observer.source_lags
        behind = {
            node: max(0, readers[node][0] - max(readers[node][1], links.acked_seq(node)))
            for node in others
            if node in readers
        }
        yield _labelled_gauges("reader_lag", "Seqs of ours it has not taken.", "node", behind)
        late = {node: lags[node] / 1000 for node in others if node in lags}
        text = "How old its last event was, by its clock, when it was sent here."
        yield _labelled_gauges("source_lag_seconds", text, "node", late)


def _merge_unknown_kinds(counts: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for kind, count in list(counts.items()):
        found[kind if kind in KNOWN_KINDS else _OTHER_KIND] += count
    return found


def _counter_metric(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"gatepost_{name}", text, value=value)


def _gauge_metric(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gatepost_{name}", text, value=value)


def _labelled_counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    return _fill_family(CounterMetricFamily(f"gatepost_{name}", text, labels=[label]), values)


def _labelled_gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _fill_family(GaugeMetricFamily(f"gatepost_{name}", text, labels=[label]), values)


def _fill_family(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]
) -> Metric:
    shown = dict(nlargest(MAX_LABELS, values.items(), key=itemgetter(1)))
    # The sum of all silences, or of all lags, would mean nothing.
    if len(shown) < len(values) and family._labelnames != ("node",):
        shown[OTHERS] = sum(values.values()) - sum(shown.values())
    for value, count in sorted(shown.items()):
        family.add_metric([value], count)
    return family
