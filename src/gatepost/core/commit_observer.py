"""Counts of traffic, taken in the commit group.

`CommitObserver` is the last participant of every commit group. During a group it only collects;
it counts once the group is on disk. Labels are kinds, states and stages, so there are few.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from gatepost.delivery import DeliveryCore
from gatepost.delivery.coordinator import CountedReceipt
from gatepost.events import KNOWN_KINDS, TRACKED_KINDS, Envelope
from gatepost.journal import Tx
from gatepost.journal.writer import JobOutcome, OutcomeCallback

if TYPE_CHECKING:
    from gatepost.core.spans import SpanRecorder

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


class CommittedEvents(Struct, frozen=True):
    """The events that a commit group appended to the outbox, and those it took from others."""

    drafts: list[Envelope]
    received: list[Envelope]
    at: int


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
        # Called with CommittedEvents where outcomes are delivered, after every commit group.
        self._commit_watchers: tuple[OutcomeCallback, ...] = ()
        self._telemetry = telemetry
        self._drafts: list[Envelope] = []
        self._received: list[Envelope] = []
        self._kinds: list[str] = []
        self._lags: dict[str, int] = {}
        self._receipts: list[CountedReceipt] = []
        self._now = 0
        delivery.coordinator.observe(on_receipt=self._receipts.append, on_batch=self._note_received)
        if telemetry is not None:
            delivery.dispatcher.on_leased = telemetry.add_leased

    def _note_received(self, source: str, new: list[tuple[Envelope, bytes]], now: int) -> None:
        self._kinds += [envelope.kind for envelope, _ in new]
        if self._commit_watchers:
            self._received += [envelope for envelope, _ in new]
        if new:
            self._lags[source] = max(0, now - new[-1][0].created_at)

    def watch_commits(self, watcher: OutcomeCallback) -> None:
        """Call it after every commit group, in the event loop. It may watch already."""
        if watcher not in self._commit_watchers:
            self._commit_watchers += (watcher,)

    def ignore_commits(self, watcher: OutcomeCallback) -> None:
        self._commit_watchers = tuple(w for w in self._commit_watchers if w != watcher)

    # -- the commit group

    def before_commit(self, tx: Tx) -> None:
        self._drafts = tx.appended_drafts
        self._now = tx.now

    def after_commit(self) -> list[JobOutcome]:
        self.emitted.update(draft.kind for draft in self._drafts)
        self.received.update(merge_unknown_kinds(Counter(self._kinds)))
        self.source_lags |= self._lags
        for kind, stage, millis, _ in self._receipts:
            # Nothing may fail here: the group is on disk, and its callers wait for the outcome.
            if (latency := self.latencies.get((kind, stage))) is not None:
                # A clock that was set back is not a negative latency.
                latency.add_observation(max(0, millis))
        if self._telemetry is not None:
            self._telemetry.submit_group(self._drafts, list(self._receipts), self._now)
        group = CommittedEvents(self._drafts, self._received, self._now)
        self._clear_group()
        return [(watcher, group, None) for watcher in self._commit_watchers]

    def rolled_back(self) -> None:
        self._clear_group()
        if self._telemetry is not None:
            self._telemetry.discard_leased()

    def next_due(self, tx: Tx) -> int | None:
        return None

    def _clear_group(self) -> None:
        self._drafts, self._received, self._kinds, self._lags = [], [], [], {}
        self._receipts.clear()


def merge_unknown_kinds(counts: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for kind, count in list(counts.items()):
        found[kind if kind in KNOWN_KINDS else _OTHER_KIND] += count
    return found
