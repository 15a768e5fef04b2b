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
from gatepost.pipeline.tables.slo import HOUR_MS, ended_at

ALL = "all"

_MINUTE = 60_000
_STEPS = tuple(
    _MINUTE * minutes for minutes in (5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7 * 1440)
)
_MOST_POINTS = 120
_MOST_LANES = 12
_MOST_LEVELS = 30
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
    objectives: Objectives | None = None,
    clock: Clock | None = None,
) -> Report:
    """Everything about the last `days` that the tables know of."""
    return _Gatherer(spark, tables, days, objectives or Objectives()).report(clock or SystemClock())


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
        kinds, nodes = self._busiest("kind"), self._busiest("node")
        names = [row.node for row in nodes]
        measured = self._measured(names)
        incidents, reviews, etas = self._read_incidents(), self._read_reviews(), self._read_etas()
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
            total=self._level(_only(self._summed()), ALL, measured.get((ALL, ""))),
            kinds=[self._level(r, r.kind, measured.get(("kind", r.kind))) for r in kinds],
            nodes=[self._level(r, r.node, measured.get(("node", r.node))) for r in nodes],
            missed=self._missed(),
            latency=self._latency(measured),
            lanes=self._lanes(names),
            traffic=self._traffic(),
            incidents=incidents[1],
            reviews=reviews[1],
            etas=etas[1],
            totals=Top(incidents[0], reviews[0], etas[0]),
            audit=audited(self._spark, self._tables.root),
        )

    def _recent(self, table: schemas.Table) -> DataFrame:
        """Partitions are pruned by the hour."""
        frame = self._tables.read(self._spark, table)
        return frame.where(F.col("hour") >= self._start // HOUR_MS)

    # -- service levels

    def _summed(self, *keys: str) -> DataFrame:
        frame = self._recent(schemas.SLO)
        return frame.groupBy(*keys).agg(
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS),
            F.count("met").alias("windows"),
            F.count_if("met").alias("met"),
            F.max("objective_ms").alias("objective_ms"),
        )

    def _busiest(self, key: str) -> list[Row]:
        return self._summed(key).orderBy(F.desc("sent"), key).limit(_MOST_LEVELS).collect()

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
                (ended_at() - F.col("sent_at")).alias("process"),
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
        # A set bit says that the column is not part of the group.
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
        count = busiest.count()
        most = count if count <= _MOST_NODES else _MOST_NODES - 1
        rows = busiest.orderBy(F.desc("sent"), "node").limit(most).collect()
        names = [row.node for row in rows]

        def end(name: str) -> Column:
            column = F.coalesce(F.col(name), F.lit(""))
            known = column.isin(*names, "")
            return F.when(known, column).otherwise(OTHERS)

        edges = _edges(traffic, end("node"), end("to_node"), _MOST_EDGES)
        pairs = _edges(traffic, _at("from_agent", "node"), _at("to_agent", "to_node"), _TOP)
        return Traffic(names, count - len(names), edges, pairs)

    # -- what a person should look at

    def _read_incidents(self) -> tuple[int, list[Incident]]:
        frame = self._tables.read(self._spark, schemas.INCIDENTS)
        recent = frame.where(F.coalesce("ended_at", F.lit(self._found.last)) >= self._start)
        order = (F.desc(F.col("ended_at").isNull()), F.desc("count"), "started_at", "incident_id")
        return recent.count(), [
            Incident(
                r.incident_id, r["class"], r.node, r.agent, r.started_at, r.ended_at, r["count"],
                list(r.samples), r.sentence,
            )
            for r in recent.orderBy(*order).limit(_MOST_ROWS).collect()
        ]  # fmt: skip

    def _read_reviews(self) -> tuple[int, list[Review]]:
        frame = self._tables.read(self._spark, schemas.REVIEWS)
        recent = frame.where(F.col("last_at") >= self._start)
        return recent.count(), [
            Review(
                r.review_id, r["class"], r.capability_id, r.capability_version,
                r.delegation_version, r.executor_version, r["count"], r.tasks, r.last_at,
                list(r.samples),
            )
            for r in recent.orderBy(F.desc("count"), "review_id").limit(_TOP).collect()
        ]  # fmt: skip

    def _read_etas(self) -> tuple[int, list[Eta]]:
        frame = self._tables.read(self._spark, schemas.ETA)
        order = (F.desc("completed"), "capability_id", "capability_version")
        return frame.count(), [
            Eta(
                r.capability_id, r.capability_version, r.completed, r.p50_seconds, r.p95_seconds,
                r.promised_seconds, r.kept_rate, r.recommended_eta_seconds,
            )
            for r in frame.orderBy(*order).limit(_MOST_ROWS).collect()
        ]  # fmt: skip


def audited(spark: SparkSession, tables: str) -> Audit | None:
    """What the last audit found; None if there never was one."""
    from deltalake import DeltaTable

    path = Tables(tables).path(schemas.VIOLATIONS)
    if not table_exists(path):
        return None
    frame = Tables(tables).read(spark, schemas.VIOLATIONS)
    counts = frame.groupBy("rule").count().orderBy("rule").collect()
    samples = frame.orderBy("rule", "node", "seq").limit(_MOST_ROWS).collect()
    return Audit(
        DeltaTable(path).history(1)[0]["timestamp"],
        {row.rule: row["count"] for row in counts},
        [Violation(r.rule, r.sentence, r.node, r.seq, r.detail) for r in samples],
    )


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


def _at(agent: str, node: str) -> Column:
    return F.concat_ws(" @ ", agent, F.coalesce(F.col(node), F.lit("nowhere")))


def _percentiles(found: Iterable[int] | None) -> Percentiles:
    return Percentiles(*found) if found else Percentiles(None, None, None)


def _only(frame: DataFrame) -> Row:
    """The one row of an aggregation without groups."""
    return frame.collect()[0]
