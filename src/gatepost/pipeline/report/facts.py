"""What a report shows. Its size does not depend on how much there is to report on."""

from msgspec import Struct

OTHERS = "others"


class Percentiles(Struct, frozen=True):
    """Milliseconds; None where nothing happened."""

    p50: int | None
    p95: int | None
    p99: int | None


class Level(Struct, frozen=True):
    """Service levels over the whole period, of one kind, one sending node, or of all.

    `windows` are those in which something was accepted, `met` those within the objective.
    """

    name: str
    sent: int
    processed: int
    failed: int
    dead: int
    retried: int
    open: int
    windows: int
    met: int
    accept: Percentiles
    process: Percentiles
    online_p95: int | None
    objective_ms: int

    @property
    def is_met(self) -> bool | None:
        """None if nothing was accepted. What was below the objective may be rounded up to it."""
        return None if self.online_p95 is None else self.online_p95 <= self.objective_ms


class Point(Struct, frozen=True):
    """All deliveries sent in one step of time."""

    at: int
    accept: Percentiles
    process: Percentiles


class Lane(Struct, frozen=True):
    """What one node sent and gave up on, step by step; or `others`, so many nodes together."""

    node: str
    sent: list[int]
    dead: list[int]
    others: int = 0


class Missed(Struct, frozen=True):
    """A window that did not keep its objective."""

    at: int
    node: str
    kind: str
    sent: int
    online_p95: int
    objective_ms: int


class Edge(Struct, frozen=True):
    """What one sends to another: nodes, or agents with their nodes."""

    source: str
    target: str
    sent: int
    bytes: int
    failed: int
    dead: int
    open: int
    process_ms: float | None


class Traffic(Struct, frozen=True):
    """Who talks to whom. `merged` nodes are one, called OTHERS; `pairs` are the busiest agents."""

    nodes: list[str]
    merged: int
    edges: list[Edge]
    pairs: list[Edge]


class Incident(Struct, frozen=True, rename={"class_": "class"}):
    id: str
    class_: str
    node: str | None
    agent: str | None
    started_at: int
    ended_at: int | None
    count: int
    samples: list[str]
    sentence: str


class Review(Struct, frozen=True, rename={"class_": "class"}):
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


class Eta(Struct, frozen=True):
    """Seconds."""

    capability_id: str | None
    capability_version: str | None
    completed: int
    p50: float
    p95: float
    promised: float | None
    kept_rate: float | None
    recommended: int


class Violation(Struct, frozen=True):
    rule: str
    sentence: str
    node: str | None
    seq: int | None
    detail: str | None


class Audit(Struct, frozen=True):
    """`counts` by rule; `samples` are a few of them."""

    at: int
    counts: dict[str, int]
    samples: list[Violation]


class Top(Struct, frozen=True):
    """How many there are of what only the first are shown."""

    incidents: int
    reviews: int
    etas: int


class Report(Struct, frozen=True, kw_only=True):
    """Times are epoch milliseconds; `step` is how long one point of a chart lasts."""

    made_at: int
    version: str
    tables: str
    batch: int
    first_at: int
    last_at: int
    events: int
    node_count: int
    window_ms: int
    step: int
    starts: list[int]
    total: Level
    kinds: list[Level]
    nodes: list[Level]
    missed: list[Missed]
    latency: list[Point]
    lanes: list[Lane]
    traffic: Traffic
    incidents: list[Incident]
    reviews: list[Review]
    etas: list[Eta]
    totals: Top
    audit: Audit | None
