"""Makes a report from the tables: executors aggregate, the driver receives only the shown rows.

Counts are sums over the table `slo`. Percentiles cannot be combined from percentiles, so those of
the whole period are taken from `deliveries`, in one pass over a few of its columns.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from gatepost import __version__
from gatepost.clock import Clock, SystemClock
from gatepost.errors import PipelineError
from gatepost.pipeline import small_tables
from gatepost.pipeline.audit.rules import RULE_ORDER, UNJUDGED
from gatepost.pipeline.delta_tables import (
    StoredFile,
    files_since,
    largest_value,
    list_files,
    table_exists,
)
from gatepost.pipeline.jobs import hourly_tables
from gatepost.pipeline.jobs.batch_ledger import BatchLedger
from gatepost.pipeline.jobs.executors import combine_on_executor, run_on_executors
from gatepost.pipeline.jobs.hourly_tables import HourPiece
from gatepost.pipeline.jobs.shares import pack_shares
from gatepost.pipeline.jobs.table_update import TableFolder
from gatepost.pipeline.kernels.hour_deliveries import HourDeliveries
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.report import aggregation
from gatepost.pipeline.report.aggregation import (
    DeliveryCounts,
    GroupPercentiles,
    LatencyGroups,
    MeasuredDeliveries,
    ReportPeriod,
    ReportSums,
    SumRow,
    SumTables,
)
from gatepost.pipeline.report.model import (
    OTHERS,
    AuditSummary,
    EtaStatistics,
    LatencyPercentiles,
    LatencyPoint,
    MissedWindow,
    NodeThroughput,
    PipelineReport,
    ReportIncident,
    ReportReview,
    ReportViolation,
    RowTotals,
    ServiceLevel,
    TrafficEdge,
    TrafficSummary,
    UnfinishedDeliveries,
)
from gatepost.pipeline.table_files import read_columns
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.arrow_schemas import arrow_schema
from gatepost.pipeline.tables.schemas import HOUR_MS, HOURS_A_DAY, TableSpec, day_number
from gatepost.pipeline.transport import Transport

ALL_DELIVERIES = "all"

_SECOND = 1000
_MINUTE = 60 * _SECOND
_STEP_CHOICES = tuple(
    _MINUTE * minutes for minutes in (5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7 * 1440)
)
# Steps for periods up to an hour, in which longer steps would leave only a few points.
_SHORT_STEPS = tuple(_SECOND * seconds for seconds in (1, 2, 5, 10, 15, 30, 60))
_SHORT_PERIOD_MS = HOUR_MS
_MAX_POINTS = 120
_MAX_ROWS = 50
_SAMPLES_PER_RULE = 10
_DAY_MS = 24 * HOUR_MS
_ACTIVITY_COLUMNS = ("node", "window_start", "events", "first_at", "last_at")
# Number of table rows that one executor sums up in one go, roughly.
_ROWS_PER_SHARE = 1_000_000


def gather_report(
    transport: Transport,
    tables: str,
    *,
    days: int = 30,
    clock: Clock | None = None,
) -> PipelineReport:
    """Make the report on the last `days` days up to the latest event in the tables."""
    objectives = BatchLedger(tables).agreed_objectives()
    return _ReportGatherer(transport, tables, days, objectives).build_report(clock or SystemClock())


def choose_step(length: int) -> int:
    """The shortest step that divides a period of this length (ms) into few enough points."""
    choices = (*_SHORT_STEPS, *_STEP_CHOICES) if length < _SHORT_PERIOD_MS else _STEP_CHOICES
    fitting = (step for step in choices if length <= step * (_MAX_POINTS - 1))
    return next(fitting, -(-length // (_DAY_MS * (_MAX_POINTS - 1))) * _DAY_MS)


class _PeriodActivity(Struct, frozen=True):
    """The events written in a period, or in a part of it."""

    first: int
    last: int
    events: int
    nodes: set[str]

    @classmethod
    def from_rows(cls, rows: pa.Table) -> "_PeriodActivity":
        first, last = (np.asarray(rows[name]) for name in ("first_at", "last_at"))
        events, nodes = int(np.sum(rows["events"])), set(rows["node"].unique().to_pylist())
        return cls(int(first.min()), int(last.max()), events, nodes)

    @classmethod
    def merge_parts(cls, parts: Sequence["_PeriodActivity"]) -> "_PeriodActivity":
        return cls(
            min(part.first for part in parts),
            max(part.last for part in parts),
            sum(part.events for part in parts),
            set[str]().union(*(part.nodes for part in parts)),
        )


class _ReportGatherer:
    """Reads the tables for one report."""

    def __init__(
        self, transport: Transport, tables: str, days: int, objectives: Objectives
    ) -> None:
        self._transport = transport
        self._tables = TableFolder(tables)
        self._objectives = objectives
        self._days = days
        last = BatchLedger(tables).last_batch()
        if last is None or not table_exists(self._tables.table_path(schemas.ACTIVITY)):
            raise PipelineError(f"{tables} holds no tables yet: run `gatepost pipeline run` first")
        self._batch, self._as_of = last.number, last.as_of
        self._activity = self._read_activity(days)
        step = choose_step(self._activity.last - self._activity.first)
        start = self._activity.first - self._activity.first % step
        self._period = ReportPeriod(start, step, (self._activity.last - start) // step + 1)
        self._hours = range(start // HOUR_MS, self._activity.last // HOUR_MS + 1)

    def _read_activity(self, days: int) -> _PeriodActivity:
        path = self._tables.table_path(schemas.ACTIVITY)
        # One clock that is far ahead must not stretch the period.
        until = self._as_of or largest_value(path, "last_at") or 0
        since, until = until - days * _DAY_MS, until + _DAY_MS

        def summarize_files(share: list[StoredFile]) -> Iterator[_PeriodActivity]:
            for file in share:
                rows = read_columns(schemas.ACTIVITY, file.uri, _ACTIVITY_COLUMNS)
                starts = np.asarray(rows["window_start"])
                recent = rows.filter(pa.array((starts > since) & (starts <= until)))
                if recent.num_rows:
                    yield _PeriodActivity.from_rows(recent)

        recent = files_since(path, "last_at", since)
        parts = run_on_executors(
            self._transport, pack_shares(recent, _ROWS_PER_SHARE), summarize_files
        )
        if not parts:
            raise PipelineError(
                "the tables hold no events: archive some, then run `gatepost pipeline run`"
            )
        return _PeriodActivity.merge_parts(parts)

    def build_report(self, clock: Clock) -> PipelineReport:
        shown = self._sum_tables()
        kinds, nodes = [row["kind"] for row in shown.kinds], [row["node"] for row in shown.nodes]
        groups = LatencyGroups(kinds, nodes, self._period)
        measured = self._measure_deliveries(groups)
        by_kind, by_node, by_step, of_all = groups.split_percentiles(measured.percentiles)
        if self._period.step < self._objectives.window_ms:
            # The table `slo` has one row for each window, which is longer than a step here.
            lanes = aggregation.throughput_rows(measured.lanes, shown.throughput_nodes)
            shown = replace(shown, throughput=lanes)
        known = self._read_incidents()
        incidents = [each for each in known if self._is_in_period(each)]
        reviews, etas = self._read_reviews(), self._read_etas()
        return PipelineReport(
            made_at=clock.now(),
            version=__version__,
            tables=self._tables.root,
            batch=self._batch,
            days=self._days,
            incident_days=self._objectives.days,
            first_at=self._activity.first,
            last_at=self._activity.last,
            events=self._activity.events,
            node_count=len(self._activity.nodes),
            window_ms=self._objectives.window_ms,
            step=self._period.step,
            starts=self._period.starts,
            ledger=measured.ledger,
            total=self._service_level(shown.total, ALL_DELIVERIES, of_all),
            kinds=list(map(self._service_level, shown.kinds, kinds, by_kind)),
            nodes=list(map(self._service_level, shown.nodes, nodes, by_node)),
            missed=[_missed_window(row) for row in shown.missed],
            latency=self._latency_points(by_step),
            lanes=self._node_throughputs(shown),
            traffic=_traffic_summary(shown),
            unfinished=[UnfinishedDeliveries(**row) for row in measured.unfinished],
            incidents=incidents[:_MAX_ROWS],
            reviews=reviews[: aggregation.TOP_ROWS],
            etas=etas[:_MAX_ROWS],
            totals=RowTotals(len(incidents), len(reviews), len(etas), len(known)),
            audit=read_last_audit(self._tables.root),
        )

    def _files_in_period(self, table: TableSpec) -> list[StoredFile]:
        path = self._tables.table_path(table)
        if not table_exists(path):
            return []
        if table.partition == "hour":
            return [f for f in list_files(path, "hour") if f.value in self._hours]
        first, last = (hour // HOURS_A_DAY for hour in (self._hours[0], self._hours[-1]))
        return [f for f in list_files(path, "day") if first <= day_number(f.value) <= last]

    # -- aggregation on the executors

    def _sum_tables(self) -> ReportSums:
        period, hours, node_count = self._period, self._hours, len(self._activity.nodes)

        def sum_share(share: tuple[TableSpec, list[StoredFile]]) -> SumTables:
            if share[0] == schemas.SLO:
                rows = _read_files(*share, aggregation.SLO_COLUMNS, hours)
                return aggregation.sum_slo(rows, period)
            return aggregation.sum_traffic(_read_files(*share, aggregation.TRAFFIC_COLUMNS, hours))

        def combine_parts(parts: list[SumTables]) -> ReportSums:
            return ReportSums.from_sums(aggregation.add_parts(parts), node_count)

        shares = [
            (table, share)
            for table in (schemas.SLO, schemas.TRAFFIC)
            # A table without files gets one empty share, so that its columns exist.
            for share in pack_shares(self._files_in_period(table), _ROWS_PER_SHARE) or [[]]
        ]
        shown = combine_on_executor(self._transport, shares, sum_share, combine_parts)
        assert shown is not None, "each table has a share"
        return shown

    def _measure_deliveries(self, groups: LatencyGroups) -> MeasuredDeliveries:
        online_ms = self._objectives.online * 1000

        def count_share(share: list[HourPiece]) -> DeliveryCounts:
            hours = (
                HourDeliveries(
                    piece.hour, hourly_tables.read_piece(piece, aggregation.DELIVERY_COLUMNS)
                )
                for piece in share
            )
            return aggregation.count_deliveries(hours, groups)

        def combine_counts(parts: list[DeliveryCounts]) -> MeasuredDeliveries:
            return aggregation.measure_deliveries(parts, groups, online_ms)

        shares = hourly_tables.plan_shares(
            self._transport, self._files_in_period(schemas.DELIVERIES)
        )
        found = combine_on_executor(self._transport, shares, count_share, combine_counts)
        return found or aggregation.measure_deliveries([], groups, online_ms)

    # -- service levels and charts

    def _service_level(self, row: SumRow, name: str, times: GroupPercentiles) -> ServiceLevel:
        return ServiceLevel(
            name=name,
            **{
                count: row.get(count, 0) for count in (*aggregation.COUNT_COLUMNS, "windows", "met")
            },
            accept=LatencyPercentiles(*times.accept),
            process=LatencyPercentiles(*times.process),
            online_p95=times.online,
            objective_ms=row.get("objective_ms") or int(self._objectives.delivery_p95 * 1000),
        )

    def _latency_points(self, steps: Sequence[GroupPercentiles]) -> list[LatencyPoint]:
        return [
            LatencyPoint(at, LatencyPercentiles(*times.accept), LatencyPercentiles(*times.process))
            for at, times in zip(self._period.starts, steps, strict=True)
        ]

    def _node_throughputs(self, shown: ReportSums) -> list[NodeThroughput]:
        """One row for each node; or for the busiest, with one more row for all others together."""
        others = len(self._activity.nodes) - aggregation.MAX_THROUGHPUT_NODES
        found = {(row["node"], row["at"]): row for row in shown.throughput}

        def count_steps(node: str, column: str) -> list[int]:
            steps = range(self._period.steps)
            return [found[node, at][column] if (node, at) in found else 0 for at in steps]

        lanes = [
            NodeThroughput(name, count_steps(name, "sent"), count_steps(name, "dead"))
            for name in shown.throughput_nodes
        ]
        rest = NodeThroughput(OTHERS, count_steps("", "sent"), count_steps("", "dead"), others + 1)
        return [*lanes, rest] if others > 0 else lanes

    # -- incidents, reviews and ETA advice

    def _read_incidents(self) -> list[ReportIncident]:
        """Ongoing incidents first, then those with the most deliveries."""
        found = [
            ReportIncident(
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
            for row in small_tables.read_rows(self._tables.root, schemas.INCIDENTS)
        ]
        return sorted(found, key=lambda i: (i.ended_at is not None, -i.count, i.started_at, i.id))

    def _is_in_period(self, incident: ReportIncident) -> bool:
        return incident.ended_at is None or incident.ended_at >= self._period.start

    def _read_reviews(self) -> list[ReportReview]:
        found = [
            ReportReview(
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
            for row in small_tables.read_rows(self._tables.root, schemas.REVIEWS)
            if row["last_at"] >= self._period.start
        ]
        return sorted(found, key=lambda review: (-review.count, review.id))

    def _read_etas(self) -> list[EtaStatistics]:
        found = [
            EtaStatistics(
                row["capability_id"],
                row["capability_version"],
                row["completed"],
                row["p50_seconds"],
                row["p95_seconds"],
                row["promised_seconds"],
                row["kept_rate"],
                row["recommended_eta_seconds"],
            )
            for row in small_tables.read_rows(self._tables.root, schemas.ETA)
        ]
        return sorted(found, key=lambda eta: (-eta.completed, eta.capability_id or ""))


def read_last_audit(tables: str) -> AuditSummary | None:
    """Read the result of the last audit; None if no audit has run."""
    table = small_tables.open_table(tables, schemas.VIOLATIONS)
    if table is None:
        return None
    samples = [
        ReportViolation(row["rule"], row["sentence"], row["node"], row["seq"], row["detail"])
        for row in small_tables.sample_rows(table, "rule", _SAMPLES_PER_RULE)
    ]
    samples.sort(key=lambda found: (RULE_ORDER[found.rule], found.node or "", found.seq or 0))
    counts = small_tables.count_values(table, "rule")
    unjudged = counts.pop(UNJUDGED, 0)
    ordered = dict(sorted(counts.items(), key=lambda count: RULE_ORDER[count[0]]))
    return AuditSummary(small_tables.last_written_at(table), ordered, unjudged, samples)


def _missed_window(row: SumRow) -> MissedWindow:
    names = ("window_start", "node", "kind", "sent", "online_p95", "objective_ms")
    return MissedWindow(*(row[name] for name in names))


def _traffic_summary(shown: ReportSums) -> TrafficSummary:
    edges = [TrafficEdge(**row) for row in shown.edges]
    pairs = [TrafficEdge(**row) for row in shown.pairs]
    return TrafficSummary(shown.graph_nodes, shown.merged_nodes, edges, pairs)


def _read_files(
    table: TableSpec, held: Sequence[StoredFile], columns: Sequence[str], hours: range
) -> pa.Table:
    """Read columns of a table in these hours, from some of its files or from none."""
    empty = arrow_schema(table).empty_table().select(["hour", *columns])
    read = (read_columns(table, file.uri, ["hour", *columns]) for file in held)
    rows = pa.concat_tables([empty, *read])
    hour = np.asarray(rows["hour"])
    mine = (hour >= hours.start) & (hour < hours.stop)
    return rows.filter(pa.array(mine)).drop_columns(["hour"])
