"""Tables into what a report shows: Spark makes it small, the driver only sees what is drawn.

Counts are sums over the table `slo`. Percentiles cannot be made of percentiles, so those of the
whole period are taken from `deliveries`, in one pass over a few of their columns.
"""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from gatepost import __version__
from gatepost.clock import Clock, SystemClock
from gatepost.errors import PipelineError
from gatepost.pipeline import small
from gatepost.pipeline.jobs.apply import Tables
from gatepost.pipeline.jobs.ledger import Ledger
from gatepost.pipeline.objectives import Objectives
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
from gatepost.pipeline.sink import table_exists
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import HOUR_MS

ALL = "all"

_MINUTE = 60_000
_STEPS = tuple(
    _MINUTE * minutes for minutes in (5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7 * 1440)
)
_MOST_POINTS = 120
_MOST_LANES = 12
_MOST_LEVELS = 30
_MOST_GROUPS = 10_000
_MOST_NODES = 30
_MOST_EDGES = 1000
_MOST_ROWS = 50
_TOP = 15
_DAY_MS = 24 * HOUR_MS
_COUNTS = ("sent", "processed", "failed", "dead", "retried", "open")
_FLOWS = ("sent", "bytes", "failed", "dead", "open")
_POINTS = (0.5, 0.95, 0.99)

# By what they are percentiles of: ("kind", "message"), ("at", 1772490600000), …
Measured = dict[tuple[str, Any], Row]


def gather(
    spark: SparkSession,
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


class _Gatherer:
    def __init__(self, spark: SparkSession, tables: str, days: int, objectives: Objectives) -> None:
        self._spark = spark
        self._tables = Tables(tables)
        self._objectives = objectives
        last = Ledger(tables).last()
        if last is None or not table_exists(self._tables.path(schemas.ACTIVITY)):
            raise PipelineError(f"{tables} holds no tables yet: gatepost pipeline run")
        self._batch = last.number
        self._bound(days)

    def _bound(self, days: int) -> None:
        activity = self._tables.read(self._spark, schemas.ACTIVITY)
        latest = F.lit(_only(activity.agg(F.max("last_at").alias("at"))).at)
        recent = activity.where(F.col("window_start") > latest - days * _DAY_MS)
        found = _only(
            recent.agg(
                F.min("first_at").alias("first"),
                F.max("last_at").alias("last"),
                F.sum("events").alias("events"),
                F.count_distinct("node").alias("nodes"),
            )
        )
        if found.first is None:
            raise PipelineError("the tables hold no events: seal some, then gatepost pipeline run")
        self._found = found
        self._step = step_of(found.last - found.first)
        self._start = found.first - found.first % self._step
        self._starts = list(range(self._start, found.last + 1, self._step))

    def report(self, clock: Clock) -> Report:
        summed = self._summed()
        kinds, nodes = summed["kind"], summed["node"][:_MOST_LEVELS]
        names = [row.node for row in nodes]
        measured = self._measured(names)
        incidents, reviews, etas = self._incidents(), self._reviews(), self._etas()
        return Report(
            made_at=clock.now(),
            version=__version__,
            tables=self._tables.root,
            batch=self._batch,
            first_at=self._found.first,
            last_at=self._found.last,
            events=self._found.events,
            node_count=self._found.nodes,
            window_ms=self._objectives.window_ms,
            step=self._step,
            starts=self._starts,
            total=self._level(summed[ALL][0], ALL, measured.get((ALL, ""))),
            kinds=[self._level(r, r.kind, measured.get(("kind", r.kind))) for r in kinds],
            nodes=[self._level(r, r.node, measured.get(("node", r.node))) for r in nodes],
            missed=self._missed(),
            latency=self._latency(measured),
            lanes=self._lanes(names),
            traffic=self._traffic(),
            incidents=incidents[:_MOST_ROWS],
            reviews=reviews[:_TOP],
            etas=etas[:_MOST_ROWS],
            totals=Top(len(incidents), len(reviews), len(etas)),
            audit=audited(self._tables.root),
        )

    def _recent(self, table: schemas.Table) -> DataFrame:
        """Partitions are pruned by the hour."""
        frame = self._tables.read(self._spark, table)
        return frame.where(F.col("hour") >= self._start // HOUR_MS)

    # -- service levels

    def _summed(self) -> dict[str, list[Row]]:
        """Of all, by kind and by node, the busiest first."""
        keys = [F.col("kind"), F.col("node")]
        found = (
            self._recent(schemas.SLO)
            .groupingSets([[], *([key] for key in keys)], *keys)
            .agg(
                F.grouping_id().alias("which"),
                *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS),
                F.count("met").alias("windows"),
                F.count_if("met").alias("met"),
                F.max("objective_ms").alias("objective_ms"),
            )
            .orderBy(F.col("which") == 0b10, F.desc("sent"), "kind", "node")
            .limit(_MOST_GROUPS)
        )
        # A set bit says that the column is not part of the group.
        names = {0b11: ALL, 0b01: "kind", 0b10: "node"}
        rows: dict[str, list[Row]] = {name: [] for name in names.values()}
        for row in found.collect():
            rows[names[row.which]].append(row)
        return rows

    def _level(self, row: Row, name: str, measured: Row | None) -> Level:
        objective = row.objective_ms or int(self._objectives.delivery_p95 * 1000)
        return Level(
            name,
            row.sent,
            row.processed,
            row.failed,
            row.dead,
            row.retried,
            row.open,
            row.windows,
            row.met,
            _percentiles(measured and measured.accept),
            _percentiles(measured and measured.process),
            measured.online if measured else None,
            objective,
        )

    def _measured(self, nodes: list[str]) -> Measured:
        """Percentiles by kind, by each of these nodes, by step of time and of all, keyed so."""
        accept = F.col("accepted_at") - F.col("sent_at")
        online = self._objectives.online * 1000
        rows = (
            self._recent(schemas.DELIVERIES)
            .where("kind is not null")
            .select(
                "kind",
                F.when(F.col("node").isin(nodes), F.col("node")).alias("node"),
                self._step_of(F.col("sent_at")).alias("at"),
                accept.alias("accept"),
                _process_ms().alias("process"),
            )
        )
        keys = [F.col(name) for name in ("kind", "node", "at")]
        points = F.array(*(F.lit(point) for point in _POINTS))
        found = rows.groupingSets([*([key] for key in keys), []], *keys).agg(
            F.grouping_id().alias("which"),
            F.percentile_approx("accept", points, 10_000).alias("accept"),
            F.percentile_approx("process", points, 10_000).alias("process"),
            F.percentile_approx(
                F.when(F.col("accept") <= online, F.col("accept")), 0.95, 10_000
            ).alias("online"),
        )
        names = {0b011: "kind", 0b101: "node", 0b110: "at"}
        return {
            (names[row.which], row[names[row.which]]) if row.which in names else (ALL, ""): row
            for row in found.collect()
        }

    def _step_of(self, at: Column) -> Column:
        """Clocks that went wrong count where the period ends."""
        last = self._starts[-1]
        return F.greatest(
            F.lit(self._start), F.least(F.lit(last), at - F.pmod(at, F.lit(self._step)))
        )

    def _latency(self, measured: Measured) -> list[Point]:
        found = ((at, measured.get(("at", at))) for at in self._starts)
        return [
            Point(at, _percentiles(row and row.accept), _percentiles(row and row.process))
            for at, row in found
        ]

    def _missed(self) -> list[Missed]:
        rows = self._recent(schemas.SLO).where("met = false")
        worst = rows.orderBy(F.desc("online_p95"), "window_start", "node", "kind").limit(_TOP)
        return [
            Missed(r.window_start, r.node, r.kind, r.sent, r.online_p95, r.objective_ms)
            for r in worst.collect()
        ]

    def _lanes(self, names: list[str]) -> list[Lane]:
        """Each node's, or the busiest and all others together."""
        others = self._found.nodes - _MOST_LANES
        kept = names if others <= 0 else names[: _MOST_LANES - 1]
        lane = F.when(F.col("node").isin(kept), F.col("node")).otherwise("")
        rows = (
            self._recent(schemas.SLO)
            .groupBy(lane.alias("lane"), self._step_of(F.col("window_start")).alias("at"))
            .agg(F.sum("sent").alias("sent"), F.sum("dead").alias("dead"))
            .collect()
        )
        found = {(row.lane, row.at): row for row in rows}

        def steps(node: str, what: str) -> list[int]:
            return [found[node, at][what] if (node, at) in found else 0 for at in self._starts]

        lanes = [Lane(name, steps(name, "sent"), steps(name, "dead")) for name in kept]
        rest = Lane(OTHERS, steps("", "sent"), steps("", "dead"), others + 1)
        return [*lanes, rest] if others > 0 else lanes

    # -- traffic

    def _traffic(self) -> Traffic:
        traffic = self._recent(schemas.TRAFFIC)
        ends = F.explode(F.array_distinct(F.array("node", F.coalesce("to_node", F.lit("")))))
        busiest = (
            traffic.select(ends.alias("node"), "sent")
            .where("node <> ''")
            .groupBy("node")
            .agg(F.sum("sent").alias("sent"))
        )
        busiest = busiest.orderBy(F.desc("sent"), "node").limit(_MOST_GROUPS)
        every = [row.node for row in busiest.collect()]
        names = every if len(every) <= _MOST_NODES else every[: _MOST_NODES - 1]

        def end(name: str) -> Column:
            column = F.coalesce(F.col(name), F.lit(""))
            known = column.isin(*names, "")
            return F.when(known, column).otherwise(OTHERS)

        edges = _edges(traffic, end("node"), end("to_node"), _MOST_EDGES)
        pairs = _edges(traffic, _at("from_agent", "node"), _at("to_agent", "to_node"), _TOP)
        return Traffic(names, len(every) - len(names), edges, pairs)

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
            if row["ended_at"] is None or row["ended_at"] >= self._start
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
            if row["last_at"] >= self._start
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


def _edges(traffic: DataFrame, source: Column, target: Column, most: int) -> list[Edge]:
    weighed = F.sum(F.col("process_ms") * F.col("sent"))
    weight = F.sum(F.when(F.col("process_ms").isNotNull(), F.col("sent")))
    rows = (
        traffic.groupBy(source.alias("source"), target.alias("target"))
        .agg(*(F.sum(name).alias(name) for name in _FLOWS), (weighed / weight).alias("process_ms"))
        .orderBy(F.desc("sent"), "source", "target")
        .limit(most)
    )
    return [
        Edge(r.source, r.target, r.sent, r.bytes or 0, r.failed, r.dead, r.open, r.process_ms)
        for r in rows.collect()
    ]


def _process_ms() -> Column:
    """How long it took until it was done; null if it was not."""
    dropped = F.coalesce(F.col("outcome").isin("dead_letter", "expired"), F.lit(False))
    return F.when(~dropped, F.least("processed_at", "replied_at") - F.col("sent_at"))


def _at(agent: str, node: str) -> Column:
    return F.concat_ws(" @ ", agent, F.coalesce(F.col(node), F.lit("nowhere")))


def _percentiles(found: Iterable[int] | None) -> Percentiles:
    return Percentiles(*found) if found else Percentiles(None, None, None)


def _only(frame: DataFrame) -> Row:
    """The one row of an aggregation without groups."""
    return frame.collect()[0]
