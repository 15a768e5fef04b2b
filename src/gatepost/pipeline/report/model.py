"""The content of a report. Its size is bounded, however many events the tables hold."""

from msgspec import Struct

from gatepost.ledger import Ledger

OTHERS = "others"


class LatencyPercentiles(Struct, frozen=True):
    """Latencies in milliseconds; None where there were no deliveries."""

    p50: int | None
    p95: int | None
    p99: int | None


class ServiceLevel(Struct, frozen=True):
    """The service level over the whole period: of one kind, one sending node, or all deliveries.

    `windows` counts the windows with accepted deliveries, `met` those within the objective.
    """

    name: str
    sent: int
    processed: int
    dead: int
    retried: int
    open: int
    windows: int
    met: int
    accept: LatencyPercentiles
    process: LatencyPercentiles
    online_p95: int | None
    objective_ms: int

    @property
    def is_met(self) -> bool | None:
        """None if nothing was accepted. A p95 just below the objective is rounded up to it."""
        return None if self.online_p95 is None else self.online_p95 <= self.objective_ms


class LatencyPoint(Struct, frozen=True):
    """The latency of all deliveries sent in one step of time."""

    at: int
    accept: LatencyPercentiles
    process: LatencyPercentiles


class NodeThroughput(Struct, frozen=True):
    """Deliveries sent and dead letters of one node, per step.

    Where `others` is not 0, the row sums up that many nodes.
    """

    node: str
    sent: list[int]
    dead: list[int]
    others: int = 0


class MissedWindow(Struct, frozen=True):
    """A window whose online p95 missed the objective."""

    at: int
    node: str
    kind: str
    sent: int
    online_p95: int
    objective_ms: int


class TrafficEdge(Struct, frozen=True):
    """Deliveries from `source` to `target`: both nodes, or both agents (`agent @ node`)."""

    source: str
    target: str
    sent: int
    bytes: int
    dead: int
    open: int
    process_ms: float | None


class TrafficSummary(Struct, frozen=True):
    """Deliveries between nodes (`edges`) and between the busiest agents (`pairs`).

    The `merged` least busy nodes appear in `edges` as one node, called OTHERS.
    """

    nodes: list[str]
    merged: int
    edges: list[TrafficEdge]
    pairs: list[TrafficEdge]


class ReportIncident(Struct, frozen=True, rename={"class_": "class"}):
    """A row of the table `incidents`; `ended_at` is None while it goes on."""

    id: str
    class_: str
    node: str | None
    agent: str | None
    started_at: int
    ended_at: int | None
    count: int
    samples: list[str]
    sentence: str


class ReportReview(Struct, frozen=True, rename={"class_": "class"}):
    """A row of the table `reviews`: `count` of `tasks` tasks went wrong in the same way."""

    id: str
    class_: str
    capability_id: str | None
    capability_version: str | None
    delegation_version: str | None
    executor_version: str | None
    count: int
    tasks: int
    last_at: int
    samples: list[str]


class EtaStatistics(Struct, frozen=True):
    """A row of the table `eta`; all durations are in seconds."""

    capability_id: str | None
    capability_version: str | None
    completed: int
    p50: float
    p95: float
    promised: float | None
    kept_rate: float | None
    recommended: int


class ReportViolation(Struct, frozen=True):
    """A broken promise, or a reason not to judge a node, as the last audit found it."""

    rule: str
    sentence: str
    node: str | None
    seq: int | None
    detail: str | None


class AuditSummary(Struct, frozen=True):
    """The last audit: the number of violations by rule, causes first, and some as `samples`.

    `unjudged` is the number of reasons why the audit could not judge a node.
    """

    at: int
    counts: dict[str, int]
    unjudged: int
    samples: list[ReportViolation]


class UnfinishedDeliveries(Struct, frozen=True):
    """Deliveries between two agents that are `dead` letters or still `open`, and why."""

    state: str
    from_agent: str
    to_agent: str
    to_node: str
    reason: str
    count: int


class RowTotals(Struct, frozen=True):
    """Number of rows in each table of which the report shows only the first.

    `all_incidents` counts those before its period too.
    """

    incidents: int
    reviews: int
    etas: int
    all_incidents: int


class PipelineReport(Struct, frozen=True, kw_only=True):
    """Everything a report shows.

    Times are epoch milliseconds. `starts` are the points of the charts, `step` ms apart. `ledger`
    is of the messages that were sent in the period, the last `days`. The table `incidents` looks
    back `incident_days`.
    """

    made_at: int
    version: str
    tables: str
    batch: int
    days: int
    incident_days: int
    first_at: int
    last_at: int
    events: int
    node_count: int
    window_ms: int
    step: int
    starts: list[int]
    ledger: Ledger
    total: ServiceLevel
    kinds: list[ServiceLevel]
    nodes: list[ServiceLevel]
    missed: list[MissedWindow]
    latency: list[LatencyPoint]
    lanes: list[NodeThroughput]
    traffic: TrafficSummary
    unfinished: list[UnfinishedDeliveries]
    incidents: list[ReportIncident]
    reviews: list[ReportReview]
    etas: list[EtaStatistics]
    totals: RowTotals
    audit: AuditSummary | None

    @property
    def is_audit_outdated(self) -> bool:
        """Whether the last audit is older than the latest event of the report."""
        return self.audit is not None and self.audit.at < self.last_at
