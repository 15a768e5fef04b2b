"""Traffic metrics: counted in the commit group, or read from journal and room on each scrape.

`CommitObserver` is the last participant of every commit group. During a group it only collects;
it counts once the group is on disk. `TrafficCollector` reads everything the journal and the room
store anyway when /metrics is scraped. Labels are kinds, states, reasons and room members, so
there are few.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gatepost.delivery import Messages
from gatepost.delivery.sender import Counted
from gatepost.events import KNOWN_KINDS, TRACKED_KINDS, Envelope
from gatepost.journal import Tx
from gatepost.journal.outbox import EventDraft
from gatepost.journal.writer import JobOutcome

if TYPE_CHECKING:
    from gatepost.gateway.core import Core
    from gatepost.gateway.pipes import Pipes
    from gatepost.gateway.room import RoomKeeper
    from gatepost.gateway.telemetry import Telemetry

# Upper bounds of the histogram buckets. The delivery objective, 5 s, is one of them.
BOUNDS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
# Label for unknown event kinds: peers choose their names, so they must not become labels.
_OTHER = "other"


class Latency(Struct):
    """A histogram of latencies in milliseconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: int = 0

    def observe(self, millis: int) -> None:
        self.counts[bisect_left(BOUNDS, millis)] += 1
        self.total += millis

    def buckets(self) -> list[tuple[str, float]]:
        bounds = [*(str(bound / 1000) for bound in BOUNDS), "+Inf"]
        below, found = 0, []
        for bound, count in zip(bounds, self.counts, strict=True):
            below += count
            found.append((bound, float(below)))
        return found


class Observer:
    """Counts events and receipts in the writer's thread; a scrape only reads numbers."""

    def __init__(self, messages: Messages, telemetry: "Telemetry | None" = None) -> None:
        self.emitted: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        self.latencies = {
            (kind, stage): Latency()
            for kind in sorted(TRACKED_KINDS)
            for stage in ("accepted", "processed")
        }
        # Source → age of its last event, by the emitter's clock, when it was sent here.
        self.source_lags: dict[str, int] = {}
        self._telemetry = telemetry
        self._drafts: list[EventDraft] = []
        self._kinds: list[str] = []
        self._lags: dict[str, int] = {}
        self._receipts: list[Counted] = []
        self._now = 0
        messages.sender.on_receipt = self._receipts.append
        messages.receiver.on_taken = self._batch
        if telemetry is not None:
            messages.dispatcher.on_leased = telemetry.leased

    def _batch(self, source: str, new: list[tuple[Envelope, bytes]], now: int) -> None:
        self._kinds += [envelope.kind for envelope, _ in new]
        if new:
            self._lags[source] = max(0, now - new[-1][0].created_at)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        self._drafts = tx.appended_drafts
        self._now = tx.now

    def after_commit(self) -> list[JobOutcome]:
        self.emitted.update(draft.kind for draft in self._drafts)
        self.taken.update(self._kinds)
        self.source_lags |= self._lags
        for kind, stage, millis, _ in self._receipts:
            # Nothing may fail here: the group is on disk, and its callers wait for the outcome.
            if (latency := self.latencies.get((kind, stage))) is not None:
                # A clock that was set back is not a negative latency.
                latency.observe(max(0, millis))
        if self._telemetry is not None:
            self._telemetry.committed(self._drafts, list(self._receipts), self._now)
        self._forget()
        return []

    def rolled_back(self) -> None:
        self._forget()
        if self._telemetry is not None:
            self._telemetry.rolled_back()

    def next_due(self, tx: Tx) -> int | None:
        return None

    def _forget(self) -> None:
        self._drafts, self._kinds, self._lags = [], [], {}
        self._receipts.clear()


class Reading(Struct, frozen=True):
    """Counts read from the journal for one scrape."""

    undelivered: dict[str, int]
    open: dict[str, int]
    held: dict[str, int]
    readers: dict[str, tuple[int, int]]  # node → (last seq for it, last seq it acked)
    incidents: dict[str, int]


_COUNTS = (
    "SELECT reason, count(*) FROM undelivered WHERE replayed_as IS NULL GROUP BY reason",
    "SELECT state, count(*) FROM delivery WHERE processed_at IS NULL GROUP BY state",
    "SELECT why, count(*) FROM held WHERE event_id IS NOT NULL GROUP BY why",
)
_READERS = "SELECT node_id, last_seq, acked_seq FROM recipient WHERE node_id <> '*'"
_INCIDENTS = "SELECT class, count(*) FROM incident GROUP BY class"


def read(tx: Tx) -> Reading:
    undelivered, open, held = (dict(map(_pair, tx.fetch_all(query))) for query in _COUNTS)
    readers = {row[0]: (row[1], row[2]) for row in tx.fetch_all(_READERS)}
    return Reading(undelivered, open, held, readers, dict(map(_pair, tx.fetch_all(_INCIDENTS))))


def _pair(row: tuple[str, int]) -> tuple[str, int]:
    return row[0], row[1]


class Observing(Collector):
    """Traffic, incidents and room members on /metrics. Call `refresh_counts` before a scrape."""

    def __init__(self, core: "Core") -> None:
        self._core = core
        self._reading = Reading({}, {}, {}, {}, {})
        self._room: tuple[RoomKeeper, Pipes] | None = None
        # Returns the backlogs that keep growing, as (what, name).
        self.growing: Callable[[], Iterable[tuple[str, str]]] = tuple

    def watch(self, replica: "RoomKeeper", links: "Pipes") -> None:
        """Include the room and its links from now on."""
        self._room = (replica, links)

    async def refresh(self) -> None:
        self._reading = await self._core.read(read)

    def collect(self) -> Iterator[Metric]:
        yield from self._data_plane()
        yield from self._deliveries()
        yield from self._control_plane()
        if self._room is not None:
            yield from self._members(*self._room)

    def _data_plane(self) -> Iterator[Metric]:
        observer, receiver = self._core.observer, self._core.messages.receiver
        yield _counters("events_emitted", "Events appended.", "kind", _known(observer.emitted))
        yield _counters("events_taken", "Events taken from others.", "kind", _known(observer.taken))
        yield _counter("duplicates", "Events that came again.", receiver.duplicates)
        sender = self._core.messages.sender
        yield _counter("receipts_ignored", "Receipts that did not count.", sender.ignored)
        yield _counter("retries", "Messages sent again, unanswered.", sender.retries)
        yield _counter("blobs_fetched", "Blobs fetched from others.", receiver.blobs)
        if self._core.telemetry is not None:
            text = "Commit groups and sends without spans."
            yield _counter("telemetry_dropped", text, self._core.telemetry.dropped)
        yield self._latencies()

    def _latencies(self) -> Metric:
        text = "From sending to a receipt, by the sender's clock."
        family = HistogramMetricFamily("gatepost_delivery_seconds", text, labels=["kind", "until"])
        for key, latency in self._core.observer.latencies.items():
            if any(latency.counts):
                family.add_metric([*key], latency.buckets(), latency.total / 1000)
        return family

    def _deliveries(self) -> Iterator[Metric]:
        counts = self._reading
        yield _gauges("deliveries_open", "Deliveries not processed.", "state", counts.open)
        yield _gauges("held", "Events taken and not accepted yet.", "why", counts.held)
        text = "Messages given up and kept."
        yield _gauges("undelivered", text, "reason", counts.undelivered)

    def _control_plane(self) -> Iterator[Metric]:
        counts = self._core.messages.incidents.counts
        yield _counters("incidents", "Incidents since the start.", "class", dict(counts))
        yield _counter("link_errors", "Links that broke a rule.", counts["link_error"])
        yield _gauges("incidents_kept", "Incidents on record.", "class", self._reading.incidents)
        family = GaugeMetricFamily(
            "gatepost_backlog_growing",
            "1 while a backlog grows and does not stop.",
            labels=["what", "name"],
        )
        for what, name in self.growing():
            family.add_metric([what, name], 1)
        yield family

    def _members(self, replica: "RoomKeeper", links: "Pipes") -> Iterator[Metric]:
        if replica.room is None:
            return
        room, own = replica.room, self._core.node.id
        others = sorted(node for node in room.effective.nodes if node != own)
        linked = links.linked()
        yield _gauge("room_members", "Nodes in the room.", len(room.effective.nodes))
        yield _gauge("room_records", "Records in the room.", len(room.document))
        size = sum(len(signed.text) for signed in room.document)
        yield _gauge("room_bytes", "Size of all records in the room.", size)
        yield _gauge("links", "Links that are up.", len(linked))
        up = {node: int(node in linked) for node in others}
        yield _gauges("link_up", "1 while there is a link.", "node", up)
        ages = {node: links.silence(node) for node in others}
        yield _gauges("node_silence_seconds", "Since its last sign of life.", "node", ages)
        yield from self._lags(others, links)

    def _lags(self, others: list[str], links: "Pipes") -> Iterator[Metric]:
        readers, lags = self._reading.readers, self._core.observer.source_lags
        behind = {
            node: max(0, readers[node][0] - max(readers[node][1], links.acked(node)))
            for node in others
            if node in readers
        }
        yield _gauges("reader_lag", "Seqs of ours it has not taken.", "node", behind)
        late = {node: lags[node] / 1000 for node in others if node in lags}
        text = "How old its last event was, by its clock, when it was sent here."
        yield _gauges("source_lag_seconds", text, "node", late)


def _known(counts: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for kind, count in list(counts.items()):
        found[kind if kind in KNOWN_KINDS else _OTHER] += count
    return found


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"gatepost_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gatepost_{name}", text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    return _filled(CounterMetricFamily(f"gatepost_{name}", text, labels=[label]), values)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _filled(GaugeMetricFamily(f"gatepost_{name}", text, labels=[label]), values)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float]) -> Metric:
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family
