"""Tables into what a report shows: executors make it small, the driver only sees what is drawn.

Counts are sums over the table `slo`. Percentiles cannot be made of percentiles, so those of the
whole period are taken from `deliveries`, in one pass over a few of their columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from msgspec import Struct

from gatepost import __version__
from gatepost.clock import Clock, SystemClock
from gatepost.errors import PipelineError
from gatepost.pipeline import small
from gatepost.pipeline.jobs import hourly
from gatepost.pipeline.jobs.apply import Tables
from gatepost.pipeline.jobs.hourly import Piece
from gatepost.pipeline.jobs.ledger import Ledger
from gatepost.pipeline.jobs.spreading import exchanged, packed, spread
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import read_file
from gatepost.pipeline.report import sums
from gatepost.pipeline.report.facts import (
    OTHERS,
    Audit,
    Edge,
    Eta,
    Incident,
    Lane,
    Level,
    Missed,
    Percentiles,
    Point,
    Report,
    Review,
    Top,
    Traffic,
    Violation,
)
from gatepost.pipeline.report.sums import Counts, Keys, Parts, Period, Row, Shown, Times
from gatepost.pipeline.sink import Held, files, files_since, largest, table_exists
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.arrow import schema_of
from gatepost.pipeline.tables.hours import Hour
from gatepost.pipeline.tables.schemas import HOUR_MS, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = "all"

_MINUTE = 60_000
_STEPS = tuple(
    _MINUTE * minutes for minutes in (5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7 * 1440)
)
_MOST_POINTS = 120
_MOST_ROWS = 50
_DAY_MS = 24 * HOUR_MS
_WRITTEN = ("node", "window_start", "events", "first_at", "last_at")
# About how many rows of a table one executor sums up in one go.
_A_SHARE = 1_000_000


def gather(
    spark: "SparkSession",
    tables: str,
    *,
    days: int = 30,
    clock: Clock | None = None,
) -> Report:
    """Everything about the last `days` that the tables know of."""
    objectives = Ledger(tables).objectives()
    return _Gatherer(spark, tables, days, objectives).report(clock or SystemClock())


def step_of(length: int) -> int:
    """The shortest step by which a period of this length has few enough points."""
    fitting = (step for step in _STEPS if length <= step * (_MOST_POINTS - 1))
    return next(fitting, -(-length // (_DAY_MS * (_MOST_POINTS - 1))) * _DAY_MS)


class _Activity(Struct, frozen=True):
    """What was written in a period, or in a part of it."""

    first: int
    last: int
    events: int
    nodes: set[str]

    @classmethod
    def of(cls, rows: pa.Table) -> "_Activity":
        first, last = (np.asarray(rows[name]) for name in ("first_at", "last_at"))
        events, nodes = int(np.sum(rows["events"])), set(rows["node"].unique().to_pylist())
        return cls(int(first.min()), int(last.max()), events, nodes)

    @classmethod
    def joined(cls, parts: Sequence["_Activity"]) -> "_Activity":
        return cls(
            min(part.first for part in parts),
            max(part.last for part in parts),
            sum(part.events for part in parts),
            set[str]().union(*(part.nodes for part in parts)),
        )


class _Gatherer:
    def __init__(
        self, spark: "SparkSession", tables: str, days: int, objectives: Objectives
    ) -> None:
        self._spark = spark
        self._tables = Tables(tables)
        self._objectives = objectives
        last = Ledger(tables).last()
        if last is None or not table_exists(self._tables.path(schemas.ACTIVITY)):
            raise PipelineError(f"{tables} holds no tables yet: gatepost pipeline run")
        self._batch = last.number
        self._found = self._activity(days)
        step = step_of(self._found.last - self._found.first)
        start = self._found.first - self._found.first % step
        self._period = Period(start, step, (self._found.last - start) // step + 1)

    def _activity(self, days: int) -> _Activity:
        path = self._tables.path(schemas.ACTIVITY)
        since = (largest(path, "last_at") or 0) - days * _DAY_MS

        def look(share: list[Held]) -> Iterator[_Activity]:
            for file in share:
                rows = read_file(file.uri, _WRITTEN)
                recent = rows.filter(pa.array(np.asarray(rows["window_start"]) > since))
                if recent.num_rows:
                    yield _Activity.of(recent)

        recent = files_since(path, "last_at", since)
        parts = spread(self._spark, packed(recent, _A_SHARE), look)
        if not parts:
            raise PipelineError("the tables hold no events: seal some, then gatepost pipeline run")
        return _Activity.joined(parts)

    def report(self, clock: Clock) -> Report:
        shown = self._summed()
        kinds, nodes = [row["kind"] for row in shown.kinds], [row["node"] for row in shown.nodes]
        keys = Keys(kinds, nodes, self._period)
        by_kind, by_node, by_step, of_all = keys.split(self._measured(keys))
        incidents, reviews, etas = self._incidents(), self._reviews(), self._etas()
        return Report(
            made_at=clock.now(),
            version=__version__,
            tables=self._tables.root,
            batch=self._batch,
            first_at=self._found.first,
            last_at=self._found.last,
            events=self._found.events,
            node_count=len(self._found.nodes),
            window_ms=self._objectives.window_ms,
            step=self._period.step,
            starts=self._period.starts,
            total=self._level(shown.total, ALL, of_all),
            kinds=list(map(self._level, shown.kinds, kinds, by_kind)),
            nodes=list(map(self._level, shown.nodes, nodes, by_node)),
            missed=[_missed(row) for row in shown.missed],
            latency=self._latency(by_step),
            lanes=self._lanes(shown),
            traffic=_traffic(shown),
            incidents=incidents[:_MOST_ROWS],
            reviews=reviews[: sums.TOP],
            etas=etas[:_MOST_ROWS],
            totals=Top(len(incidents), len(reviews), len(etas)),
            audit=audited(self._tables.root),
        )

    def _recent(self, table: Table) -> list[Held]:
        path = self._tables.path(table)
        held = files(path, "hour") if table_exists(path) else []
        return [file for file in held if file.value >= self._period.start // HOUR_MS]

    # -- what executors make

    def _summed(self) -> Shown:
        period, node_count = self._period, len(self._found.nodes)

        def part(share: tuple[Table, list[Held]]) -> Iterator[tuple[int, Parts]]:
            if share[0] == schemas.SLO:
                yield 0, sums.of_slo(_table(*share, sums.LEVELS), period)
            else:
                yield 0, sums.of_traffic(_table(*share, sums.TRAFFIC))

        def whole(parts: Iterable[Parts]) -> Iterator[Shown]:
            yield Shown.of(sums.added(list(parts)), node_count)

        shares = [
            (table, share)
            for table in (schemas.SLO, schemas.TRAFFIC)
            # One without files still has columns.
            for share in packed(self._recent(table), _A_SHARE) or [[]]
        ]
        (shown,) = exchanged(self._spark, shares, part, 1, whole)
        return shown

    def _measured(self, keys: Keys) -> list[Times]:
        online_ms = self._objectives.online * 1000

        def part(share: list[Piece]) -> Iterator[tuple[int, Counts]]:
            total = keys.nothing()
            for piece in share:
                total += sums.counted(Hour(piece.hour, hourly.read(piece, sums.TIMES)), keys)
            yield 0, Counts.of(total)

        def whole(parts: Iterable[Counts]) -> Iterator[Times]:
            total = keys.nothing()
            for each in parts:
                total[each.places] += each.counts
            yield from sums.measured(total, online_ms)

        shares = hourly.shares(self._spark, self._recent(schemas.DELIVERIES))
        found = exchanged(self._spark, shares, part, 1, whole)
        return found or sums.measured(keys.nothing(), online_ms)

    # -- what is drawn of it

    def _level(self, row: Row, name: str, times: Times) -> Level:
        return Level(
            name=name,
            **{count: row.get(count, 0) for count in (*sums.COUNTS, "windows", "met")},
            accept=Percentiles(*times.accept),
            process=Percentiles(*times.process),
            online_p95=times.online,
            objective_ms=row.get("objective_ms") or int(self._objectives.delivery_p95 * 1000),
        )

    def _latency(self, steps: Sequence[Times]) -> list[Point]:
        return [
            Point(at, Percentiles(*times.accept), Percentiles(*times.process))
            for at, times in zip(self._period.starts, steps, strict=True)
        ]

    def _lanes(self, shown: Shown) -> list[Lane]:
        """Each node's, or the busiest and all others together."""
        others = len(self._found.nodes) - sums.MOST_LANES
        found = {(row["node"], row["at"]): row for row in shown.lanes}

        def steps(node: str, what: str) -> list[int]:
            every = range(self._period.steps)
            return [found[node, at][what] if (node, at) in found else 0 for at in every]

        lanes = [Lane(name, steps(name, "sent"), steps(name, "dead")) for name in shown.alone]
        rest = Lane(OTHERS, steps("", "sent"), steps("", "dead"), others + 1)
        return [*lanes, rest] if others > 0 else lanes

    # -- what a person should look at

    def _incidents(self) -> list[Incident]:
        """What goes on comes first, then what concerns most deliveries."""
        found = [
            Incident(
                row["incident_id"],
                row["class"],
                row["node"],
                row["agent"],
                row["started_at"],
                row["ended_at"],
                row["count"],
                row["samples"],
                row["sentence"],
            )
            for row in small.rows(self._tables.root, schemas.INCIDENTS)
            if row["ended_at"] is None or row["ended_at"] >= self._period.start
        ]
        return sorted(found, key=lambda i: (i.ended_at is not None, -i.count, i.started_at, i.id))

    def _reviews(self) -> list[Review]:
        found = [
            Review(
                row["review_id"],
                row["class"],
                row["capability_id"],
                row["capability_version"],
                row["delegation_version"],
                row["executor_version"],
                row["count"],
                row["tasks"],
                row["last_at"],
                row["samples"],
            )
            for row in small.rows(self._tables.root, schemas.REVIEWS)
            if row["last_at"] >= self._period.start
        ]
        return sorted(found, key=lambda review: (-review.count, review.id))

    def _etas(self) -> list[Eta]:
        found = [
            Eta(
                row["capability_id"],
                row["capability_version"],
                row["completed"],
                row["p50_seconds"],
                row["p95_seconds"],
                row["promised_seconds"],
                row["kept_rate"],
                row["recommended_eta_seconds"],
            )
            for row in small.rows(self._tables.root, schemas.ETA)
        ]
        return sorted(found, key=lambda eta: (-eta.completed, eta.capability_id or ""))


def audited(tables: str) -> Audit | None:
    """What the last audit found; None if there never was one."""
    table = small.open_table(tables, schemas.VIOLATIONS)
    if table is None:
        return None
    rows = small.first(table, _MOST_ROWS)
    samples = [
        Violation(row["rule"], row["sentence"], row["node"], row["seq"], row["detail"])
        for row in rows
    ]
    samples.sort(key=lambda found: (found.rule, found.node or "", found.seq or 0))
    return Audit(small.made_at(table), small.counts(table, "rule"), samples)


def _missed(row: Row) -> Missed:
    names = ("window_start", "node", "kind", "sent", "online_p95", "objective_ms")
    return Missed(*(row[name] for name in names))


def _traffic(shown: Shown) -> Traffic:
    def edges(rows: Sequence[Row]) -> list[Edge]:
        return [Edge(**row) for row in rows]

    return Traffic(shown.ends, shown.ends_merged, edges(shown.edges), edges(shown.pairs))


def _table(table: Table, held: Sequence[Held], columns: Sequence[str]) -> pa.Table:
    empty = schema_of(table).empty_table().select(list(columns))
    return pa.concat_tables([empty, *(read_file(file.uri, columns) for file in held)])
