"""Traffic metrics: what `CommitObserver` counted, and what journal and room hold.

`TrafficCollector` reads everything the journal and the room store anyway when /metrics is scraped.
Labels are kinds, states, reasons and room members, so there are few.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import islice
from operator import itemgetter

from msgspec import Struct
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gatepost.core.commit_observer import merge_unknown_kinds
from gatepost.core.gateway_core import Core
from gatepost.delivery.delivery_reads import open_by_state, undelivered_by_reason
from gatepost.delivery.inbox.inbox_reads import held_by_reason
from gatepost.delivery.incident_table import count_incidents
from gatepost.journal import Tx, recipients
from gatepost.links.service.connection_links import ConnectionLinks
from gatepost.room.service.room_replica import RoomReplica

# The most values of one label: the largest ones; another value counts all others together. No name
# can begin with an underscore.
MAX_LABELS = 200
OTHERS = "_others"


class JournalCounts(Struct, frozen=True):
    """Counts read from the journal for one scrape."""

    undelivered: dict[str, int]
    open_deliveries: dict[str, int]
    held: dict[str, int]
    readers: dict[str, tuple[int, int]]  # node → (last seq for it, last seq it acked)
    incidents: dict[str, int]


def read_journal_counts(tx: Tx) -> JournalCounts:
    readers = recipients.reader_positions(tx)
    return JournalCounts(
        undelivered_by_reason(tx),
        open_by_state(tx),
        held_by_reason(tx),
        readers,
        count_incidents(tx),
    )


class TrafficCollector(Collector):
    """Traffic, incidents and room members on /metrics. Call `refresh_counts` before a scrape."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._counts = JournalCounts({}, {}, {}, {}, {})
        self._room: tuple[RoomReplica, ConnectionLinks] | None = None
        # Returns the backlogs that keep growing, as (what, name).
        self.growing_backlogs: Callable[[], Iterable[tuple[str, str]]] = tuple

    def watch_room(self, replica: RoomReplica, links: ConnectionLinks) -> None:
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
        observer, counts = self._core.observer, self._core.delivery.parts.counts
        yield _labelled_counters(
            "events_emitted", "Events appended.", "kind", merge_unknown_kinds(observer.emitted)
        )
        yield _labelled_counters(
            "events_taken",
            "Events taken from others.",
            "kind",
            merge_unknown_kinds(observer.received),
        )
        yield _counter_metric("duplicates", "Events that came again.", counts.duplicates)
        yield _counter_metric(
            "receipts_ignored", "Receipts that did not count.", counts.ignored_receipts
        )
        yield _counter_metric("retries", "Messages sent again, unanswered.", counts.retries)
        yield _counter_metric("blobs_fetched", "Blobs fetched from others.", counts.blobs)
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
        yield _labelled_gauges("incidents_open", "Open incidents.", "class", self._counts.incidents)
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

    def _member_metrics(self, replica: RoomReplica, links: ConnectionLinks) -> Iterator[Metric]:
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
        ages = {node: links.presence.seconds_silent(node) for node in others}
        yield _labelled_gauges("node_silence_seconds", "Since its last sign of life.", "node", ages)
        yield from self._lag_metrics(others, links)

    def _lag_metrics(self, others: list[str], links: ConnectionLinks) -> Iterator[Metric]:
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
    # A sum of silences or lags is meaningless.
    if len(shown) < len(values) and family._labelnames != ("node",):
        shown[OTHERS] = sum(values.values()) - sum(shown.values())
    for value, count in sorted(shown.items()):
        family.add_metric([value], count)
    return family
