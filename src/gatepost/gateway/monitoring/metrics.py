"""Prometheus metrics of the gateway, for /metrics."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from gatepost.core.gateway_core import Core
from gatepost.gateway.monitoring.traffic import MAX_LABELS, OTHERS, TrafficCollector
from gatepost.journal.transaction import Row
from gatepost.mailbox import browse


class Metrics:
    """Reads counts from the journal on each scrape, and keeps the others itself."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._registry = CollectorRegistry()
        self._mailboxes = _MailboxCollector()
        self._registry.register(self._mailboxes)
        self._registry.register(_JournalCollector(core))
        self._session_gauge = Gauge(
            "gatepost_sessions", "Clients connected by WebSocket.", registry=self._registry
        )
        self.session_count = 0
        self._peer_gauge = Gauge(
            "gatepost_room_peers", "Nodes connected to the room here.", registry=self._registry
        )
        self.traffic = TrafficCollector(core)
        self._registry.register(self.traffic)
        self._incidents = _IncidentCollector()
        self._registry.register(self._incidents)

    def show_incident_counts(self, incidents: Mapping[str, int]) -> None:
        """Show these counts from now on: violations of the room by rule."""
        self._incidents.counts = incidents

    def add_collector(self, collector: Collector) -> None:
        """Show further metrics from now on."""
        self._registry.register(collector)

    @contextlib.contextmanager
    def track_peer(self) -> Iterator[None]:
        with self._peer_gauge.track_inprogress():
            yield

    @contextlib.contextmanager
    def track_session(self) -> Iterator[None]:
        self.session_count += 1
        self._session_gauge.inc()
        try:
            yield
        finally:
            self.session_count -= 1
            self._session_gauge.dec()

    async def render_text(self) -> tuple[bytes, str]:
        self._mailboxes.rows = await self._core.read(browse.mailbox_counts)
        await self.traffic.refresh_counts()
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _MailboxCollector(Collector):
    """The mailboxes with the most mail by name, and all others together."""

    rows: Sequence[Row] = ()

    def collect(self) -> Iterator[Metric]:
        busiest = sorted(self.rows, key=lambda row: sum(row[1:4]), reverse=True)
        shown, others = busiest[:MAX_LABELS], busiest[MAX_LABELS:]
        if others:
            shown.append((OTHERS, *(sum(row[column] for row in others) for column in (1, 2, 3))))
        names = ("waiting", "in_flight", "dead_letters")
        texts = ("Messages waiting.", "Messages leased.", "Dead letters kept.")
        for column, (name, text) in enumerate(zip(names, texts, strict=True), 1):
            family = GaugeMetricFamily(f"gatepost_mailbox_{name}", text, labels=["mailbox"])
            for row in sorted(shown):
                family.add_metric([row[0]], row[column])
            yield family


class _IncidentCollector(Collector):
    counts: Mapping[str, int] = MappingProxyType({})

    def collect(self) -> Iterator[Metric]:
        text = "Peers that broke a rule of the room and were cut off."
        family = CounterMetricFamily("gatepost_room_incidents", text, labels=["rule"])
        for rule, count in sorted(self.counts.items()):
            family.add_metric([rule], count)
        yield family


class _JournalCollector(Collector):
    def __init__(self, core: Core) -> None:
        self._core = core

    def collect(self) -> Iterator[Metric]:
        writer = self._core.writer
        yield CounterMetricFamily(
            "gatepost_journal_commits", "Commit groups, one fsync each.", value=writer.group_count
        )
        yield CounterMetricFamily(
            "gatepost_journal_operations", "Operations committed.", value=writer.operation_count
        )
        yield GaugeMetricFamily(
            "gatepost_journal_waiting",
            "Operations waiting for a group.",
            value=writer.queued_jobs(),
        )
        yield GaugeMetricFamily(
            "gatepost_journal_accepting",
            "1 while the disk takes writes.",
            value=float(writer.failure is None),
        )
        yield GaugeMetricFamily(
            "gatepost_journal_busy_seconds",
            "How long the present commit group has been running.",
            value=writer.busy_secs(),
        )
        yield GaugeMetricFamily(
            "gatepost_journal_bytes",
            "Size of the journal with its write-ahead log.",
            value=self._core.state.journal_size(),
        )
