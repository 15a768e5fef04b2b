"""What goes through the pipes, counted beside the traffic, and how both planes are, when asked.

The observer takes part in every commit group, last of all. In a group it only keeps what it is
handed; it counts once the group is on disk. What the journal and the room know anyway is read when
somebody scrapes. Labels are kinds, states, reasons and members of the room, so there are few.
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

from gatepost.delivery import DeliveryCore
from gatepost.delivery.coordinator import CountedReceipt
from gatepost.events import KNOWN, TRACKED, Envelope
from gatepost.journal import Tx
from gatepost.journal.outbox import Draft
from gatepost.journal.writer import Outcome

if TYPE_CHECKING:
    from gatepost.gateway.core import Core
    from gatepost.gateway.pipes import Pipes
    from gatepost.gateway.room import RoomKeeper
    from gatepost.gateway.telemetry import Telemetry

# Upper bounds of the buckets, in milliseconds. The objective, 5 s, is one of them.
BOUNDS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000)
# A kind nobody knows must not become a label, for others choose its name.
_OTHER = "other"


class Latency(Struct):
    """One histogram."""

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
    """All of it runs in the writer's thread; whoever scrapes reads numbers only."""

    def __init__(self, delivery: DeliveryCore, telemetry: "Telemetry | None" = None) -> None:
        self.emitted: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        self.latencies = {
            (kind, stage): Latency()
            for kind in sorted(TRACKED)
            for stage in ("accepted", "processed")
        }
        # How old, by its emitter's clock, the last event of each source was when it was sent.
        self.source_lags: dict[str, int] = {}
        self._telemetry = telemetry
        self._drafts: list[Draft] = []
        self._kinds: list[str] = []
        self._lags: dict[str, int] = {}
        self._receipts: list[CountedReceipt] = []
        self._now = 0
        delivery.coordinator.observe(on_receipt=self._receipts.append, on_batch=self._batch)
        if telemetry is not None:
            delivery.dispatcher.on_leased = telemetry.leased

    def _batch(self, source: str, new: list[tuple[Envelope, bytes]], now: int) -> None:
        self._kinds += [envelope.kind for envelope, _ in new]
        if new:
            self._lags[source] = max(0, now - new[-1][0].created_at)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        self._drafts = tx.appended
        self._now = tx.now

    def after_commit(self) -> list[Outcome]:
        self.emitted.update(draft.kind for draft in self._drafts)
        self.taken.update(self._kinds)
        self.source_lags |= self._lags
        for kind, stage, millis, _ in self._receipts:
            # Nothing may fail here: the group is on disk, and others wait to hear of it.
            if (latency := self.latencies.get((kind, stage))) is not None:
                # A clock that was set back is no latency.
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
    """What the journal knew when it was asked."""

    undelivered: dict[str, int]
    open: dict[str, int]
    held: dict[str, int]
    readers: dict[str, tuple[int, int]]  # last seq for it, what it has taken
    incidents: dict[str, int]


_COUNTS = (
    "SELECT reason, count(*) FROM undelivered WHERE replayed_as IS NULL GROUP BY reason",
    "SELECT state, count(*) FROM delivery WHERE processed_at IS NULL GROUP BY state",
    "SELECT why, count(*) FROM held WHERE event_id IS NOT NULL GROUP BY why",
)
_READERS = "SELECT node_id, last_seq, acked_seq FROM recipient WHERE node_id <> '*'"
_INCIDENTS = "SELECT class, count(*) FROM incident GROUP BY class"


def read(tx: Tx) -> Reading:
    undelivered, open, held = (dict(map(_pair, tx.rows(query))) for query in _COUNTS)
    readers = {row[0]: (row[1], row[2]) for row in tx.rows(_READERS)}
    return Reading(undelivered, open, held, readers, dict(map(_pair, tx.rows(_INCIDENTS))))


def _pair(row: tuple[str, int]) -> tuple[str, int]:
    return row[0], row[1]


class Observing(Collector):
    """Everything the two planes show on /metrics. `refresh` it before it is collected."""

    def __init__(self, core: "Core") -> None:
        self._core = core
        self._reading = Reading({}, {}, {}, {}, {})
        self._room: tuple[RoomKeeper, Pipes] | None = None
        # Which backlogs grow and do not stop, as (what, name).
        self.growing: Callable[[], Iterable[tuple[str, str]]] = tuple

    def watch(self, keeper: "RoomKeeper", pipes: "Pipes") -> None:
        """Show the room and the links too, from now on."""
        self._room = (keeper, pipes)

    async def refresh(self) -> None:
        self._reading = await self._core.read(read)

    def collect(self) -> Iterator[Metric]:
        yield from self._data_plane()
        yield from self._deliveries()
        yield from self._control_plane()
        if self._room is not None:
            yield from self._members(*self._room)

    def _data_plane(self) -> Iterator[Metric]:
        observer, receiver = self._core.observer, self._core.delivery.receiver
        yield _counters("events_emitted", "Events appended.", "kind", _known(observer.emitted))
        yield _counters("events_taken", "Events taken from others.", "kind", _known(observer.taken))
        yield _counter("duplicates", "Events that came again.", receiver.duplicates)
        sender = self._core.delivery.sender
        yield _counter("receipts_ignored", "Receipts that did not count.", sender.receipts.ignored)
        yield _counter("retries", "Messages sent again, unanswered.", sender.timers.retries)
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
        now = self._reading
        yield _gauges("deliveries_open", "Deliveries not settled.", "state", now.open)
        yield _gauges("held", "Events taken and not accepted yet.", "why", now.held)
        yield _gauges("undelivered", "Messages given up and kept.", "reason", now.undelivered)

    def _control_plane(self) -> Iterator[Metric]:
        counts = self._core.delivery.incidents.counts
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

    def _members(self, keeper: "RoomKeeper", pipes: "Pipes") -> Iterator[Metric]:
        if keeper.room is None:
            return
        room, own = keeper.room, self._core.node.id
        others = sorted(node for node in room.view.nodes if node != own)
        linked = pipes.linked()
        yield _gauge("room_members", "Nodes in the room.", len(room.view.nodes))
        yield _gauge("room_records", "Records in the room.", len(room.document))
        size = sum(len(signed.text) for signed in room.document)
        yield _gauge("room_bytes", "Size of all records in the room.", size)
        yield _gauge("links", "Links that are up.", len(linked))
        up = {node: int(node in linked) for node in others}
        yield _gauges("link_up", "1 while there is a link.", "node", up)
        ages = {node: pipes.silence(node) for node in others}
        yield _gauges("node_silence_seconds", "Since its last sign of life.", "node", ages)
        yield from self._lags(others, pipes)

    def _lags(self, others: list[str], pipes: "Pipes") -> Iterator[Metric]:
        readers, lags = self._reading.readers, self._core.observer.source_lags
        behind = {
            node: max(0, readers[node][0] - max(readers[node][1], pipes.acked(node)))
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
        found[kind if kind in KNOWN else _OTHER] += count
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
