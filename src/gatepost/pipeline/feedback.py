"""Posts incidents, reviews and ETA advice from the tables to a gateway, for people to see.

The tables give the same incident the same id every time, and a gateway stores each id once: posted
again, its end and its count change. So posting can be repeated at any time, and keeps no state.
"""

import re
from collections.abc import Callable, Sequence

import pyarrow.dataset as ds
from msgspec import Struct, field

from gatepost.errors import GatepostError, InvalidRequest
from gatepost.events import format_event_id
from gatepost.pipeline import small_tables
from gatepost.pipeline.gateway_api import GatewayApi
from gatepost.pipeline.jobs.batch_ledger import BatchLedger
from gatepost.pipeline.small_tables import Row
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import TableSpec

_BATCH_SIZE = 100
_MOST_ITEMS = 10_000
_MOST_CHARACTERS = 500
_HOUR_MS = 3_600_000


_INCIDENT_JSON_NAMES = {
    "class_": "class",
    "raised_at": "raisedAt",
    "ended_at": "endedAt",
    "corr_ids": "corrIds",
}


class IncidentFeedback(Struct, frozen=True, rename=_INCIDENT_JSON_NAMES):
    id: str
    class_: str
    subject: str
    detail: str
    raised_at: int
    ended_at: int | None
    count: int | None
    corr_ids: list[str]


class ReviewFeedback(Struct, frozen=True, rename="camel"):
    id: str
    capability_id: str
    delegation_skill_version: str
    executor_skill_version: str
    failure_class: str
    count: int
    corr_ids: list[str]
    event_ids: list[str]
    raised_at: int


class EtaAdvice(Struct, frozen=True, rename="camel"):
    capability_id: str
    p50_secs: float
    p95_secs: float
    recommended_eta_seconds: int
    samples: int
    at: int


class FeedbackAnswer(Struct, frozen=True):
    """How many a gateway was given, and how many of them were new to it."""

    given: int
    new: int


class FeedbackOutcome(Struct):
    """The result for all items of one sort.

    `skipped` counts items that lack a field the gateway needs. `refused` holds the gateway's reason
    for each item it refused.
    """

    what: str
    found: int
    given: int = 0
    new: int = 0
    skipped: int = 0
    refused: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def ok(self) -> bool:
        return not self.refused and self.error is None


def post_feedback(tables: str, gateway: GatewayApi) -> list[FeedbackOutcome]:
    """Post all three sorts; an error with one does not stop the others."""
    BatchLedger(tables).require_known_layout()
    return [
        _post_items(gateway, "incidents", "/v1/incidents", lambda: read_incidents(tables)),
        _post_items(gateway, "reviews", "/v1/reviews", lambda: read_reviews(tables)),
        _post_items(gateway, "ETA advice", "/v1/eta-advice", lambda: read_eta_advice(tables)),
    ]


def read_incidents(tables: str) -> list[Struct | None]:
    rows = _newest_rows(tables, schemas.INCIDENTS, "started_at")
    return [
        IncidentFeedback(
            row["incident_id"],
            row["class"],
            " / ".join(row[name] for name in ("node", "agent", "capability_id") if row[name]),
            row["sentence"][:_MOST_CHARACTERS],
            row["started_at"],
            row["ended_at"],
            row["count"],
            row["samples"],
        )
        for row in rows
    ]


def read_reviews(tables: str) -> list[Struct | None]:
    rows = _newest_rows(tables, schemas.REVIEWS, "last_at")
    events = _task_event_ids(tables, rows)
    return [_to_review(row, events) for row in rows]


def _to_review(row: Row, events: dict[str, str]) -> ReviewFeedback | None:
    """Build the review; None if its tasks did not name their skill versions."""
    capability = row["capability_id"]
    delegation, executor = row["delegation_version"], row["executor_version"]
    if not (capability and delegation and executor):
        return None
    ids = [events[corr_id] for corr_id in row["samples"] if corr_id in events]
    return ReviewFeedback(
        row["review_id"],
        capability,
        delegation,
        executor,
        row["class"],
        row["count"],
        row["samples"],
        ids,
        row["first_at"],
    )


def read_eta_advice(tables: str) -> list[Struct | None]:
    """Read the ETA advice for the latest version of each capability."""
    latest: dict[str, Row] = {}
    for row in _newest_rows(tables, schemas.ETA, "completed"):
        name = row["capability_id"]
        if name and (name not in latest or _is_newer(row, latest[name])):
            latest[name] = row
    at = _written_at(tables, schemas.ETA)
    return [
        EtaAdvice(
            name,
            row["p50_seconds"],
            row["p95_seconds"],
            max(1, row["recommended_eta_seconds"]),
            row["completed"],
            at,
        )
        for name, row in sorted(latest.items())
    ]


def _is_newer(row: Row, than: Row) -> bool:
    return _version_key(row["capability_version"]) > _version_key(than["capability_version"])


def _version_key(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "")]


def _post_items(
    gateway: GatewayApi, what: str, path: str, find: Callable[[], list[Struct | None]]
) -> FeedbackOutcome:
    found = find()
    items = [item for item in found if item is not None]
    posted = FeedbackOutcome(what, len(found), skipped=len(found) - len(items))
    try:
        for start in range(0, len(items), _BATCH_SIZE):
            _post_batch(gateway, path, items[start : start + _BATCH_SIZE], posted)
    except GatepostError as error:
        posted.error = error.message
    return posted


def _post_batch(
    gateway: GatewayApi, path: str, items: Sequence[Struct], posted: FeedbackOutcome
) -> None:
    """Post one batch; if the gateway refuses it, halve it until the bad item is alone."""
    try:
        answer = gateway.post(path, items, FeedbackAnswer)
    except InvalidRequest as error:
        if len(items) == 1:
            posted.refused.append(error.message)
            return
        middle = len(items) // 2
        _post_batch(gateway, path, items[:middle], posted)
        _post_batch(gateway, path, items[middle:], posted)
    else:
        posted.given += answer.given
        posted.new += answer.new


def _newest_rows(tables: str, table: TableSpec, by: str) -> list[Row]:
    """The table's rows, highest `by` first, up to the most that are posted."""
    return sorted(small_tables.read_rows(tables, table), key=lambda row: -row[by])[:_MOST_ITEMS]


def _written_at(tables: str, table: TableSpec) -> int:
    opened = small_tables.open_table(tables, table)
    return small_tables.last_written_at(opened) if opened else 0


def _task_event_ids(tables: str, rows: Sequence[Row]) -> dict[str, str]:
    """`corr_id` → event id of the task, for all samples of these rows."""
    opened = small_tables.open_table(tables, schemas.TASKS)
    samples = [corr_id for row in rows for corr_id in row["samples"]]
    if opened is None or not samples:
        return {}
    since = min(row["first_at"] for row in rows) // _HOUR_MS - 1
    wanted = (ds.field("hour") >= since) & ds.field("corr_id").isin(samples)
    found = small_tables.open_dataset(opened).to_table(["corr_id", "event_id"], filter=wanted)
    return {row["corr_id"]: format_event_id(row["event_id"]) for row in found.to_pylist()}
