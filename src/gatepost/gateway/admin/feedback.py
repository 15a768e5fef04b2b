"""Incidents, reviews and ETA advice: kept here, raised here or posted by the pipeline.

The pipeline sees the events of all gateways. It posts its findings to one gateway, with a token
that allows nothing else. A finding posted twice is stored once. Reviews concern every gateway, so
they are also published in the room, without their details.
"""

import contextlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import Meta, Struct, field

from gatepost.access import Scope, require_scope
from gatepost.errors import Conflict, NotFound, Unauthorized
from gatepost.events import AgentId, EventId, MsgId
from gatepost.events.envelope import EpochMs, NonNegativeInt
from gatepost.gateway.admin.external_agents import ExternalAgents
from gatepost.gateway.api.local_auth import LocalTokenAuth
from gatepost.gateway.api.report_views import (
    EtaAdviceView,
    IncidentPage,
    IncidentView,
    NotedCounts,
    ReviewDecision,
    ReviewId,
    ReviewStatus,
    ReviewView,
)
from gatepost.gateway.api.route_decorators import get, post
from gatepost.gateway.api.route_parameters import AnyRequest, PageSize, PathName
from gatepost.gateway.monitoring.incident_counts import count_incidents
from gatepost.gateway.peers.record_publisher import RecordPublisher
from gatepost.journal import Tx
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Row
from gatepost.room import ReviewRecord, claim_key
from gatepost.room.records import SkillVersion

SinceMs = Annotated[int, QueryParameter(ge=0, le=2**53)]
IncidentClass = Annotated[str | None, QueryParameter(name="class", max_length=100)]
DurationSecs = Annotated[float, Meta(ge=0, le=10 * 365 * 86_400)]
IncidentId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}\Z", max_length=200)]
ShortText = Annotated[str, Meta(max_length=500)]
CorrIds = Annotated[list[MsgId], Meta(max_length=100)]
EventIds = Annotated[list[EventId], Meta(max_length=100)]
FailureClass = Literal[
    "eta_breach", "sla_breach", "terminal_error", "contract_mismatch", "routing_miss"
]
# Classes of incidents the pipeline raises, from all outboxes together and from its audit.
PipelineClass = Literal[
    "sla_breach",
    "backlog",
    "backlog_growth",
    "dead_letter_burst",
    "routing_miss",
    "silent_node",
    "objective_missed",
    "audit_violation",
]
_PIPELINE_SOURCE = "pipeline"
_NO_LOCAL_TOKEN = {"open": True}
# Maximum number of a review's samples, and of own reviews, that go into the room.
_MAX_ROOM_SAMPLES = 8
_MAX_ROOM_REVIEWS = 500

_SELECT_INCIDENTS = """
SELECT id, class, subject, detail, raised_at, source, corr_ids FROM incident
WHERE raised_at >= ? AND (?2 IS NULL OR class = ?2) ORDER BY raised_at DESC, id LIMIT ?
"""
_INSERT_INCIDENT = """
INSERT OR IGNORE INTO incident (id, class, subject, detail, raised_at, source, corr_ids)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_REVIEW_COLUMNS = """
id, capability_id, delegation_skill_version, executor_skill_version, failure_class, count,
corr_ids, event_ids, raised_at, status, settled_at, settled_by, note
"""
_SELECT_REVIEWS = f"""
SELECT {_REVIEW_COLUMNS} FROM review WHERE ?1 IS NULL OR status = ?1
ORDER BY raised_at DESC, id LIMIT ?
"""
_SELECT_REVIEW = f"SELECT {_REVIEW_COLUMNS} FROM review WHERE id = ?"
_UPSERT_REVIEW = f"""
INSERT INTO review ({_REVIEW_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', NULL, NULL, '')
ON CONFLICT (id) DO UPDATE SET count = max(count, excluded.count), corr_ids = excluded.corr_ids,
    event_ids = excluded.event_ids WHERE status = 'open'
"""
_CLOSE_REVIEW = """
UPDATE review SET status = ?, settled_at = ?, settled_by = ?, note = ?
WHERE id = ? AND status = 'open'
"""
_ADVICE_COLUMNS = "capability_id, p50_secs, p95_secs, recommended_eta_seconds, samples, at"
_UPSERT_ADVICE = f"""
INSERT INTO eta_advice ({_ADVICE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (capability_id) DO UPDATE SET
    p50_secs = excluded.p50_secs, p95_secs = excluded.p95_secs, samples = excluded.samples,
    recommended_eta_seconds = excluded.recommended_eta_seconds, at = excluded.at
WHERE excluded.at > at
"""
_SELECT_ADVICE = f"SELECT {_ADVICE_COLUMNS} FROM eta_advice ORDER BY capability_id"


_INCIDENT_JSON_NAMES = {"class_": "class", "raised_at": "raisedAt", "corr_ids": "corrIds"}


class NewIncident(Struct, frozen=True, rename=_INCIDENT_JSON_NAMES):
    """An incident posted by the pipeline. The same `id` again is the same incident."""

    id: IncidentId
    class_: PipelineClass
    subject: ShortText
    detail: ShortText
    raised_at: EpochMs
    corr_ids: CorrIds = field(default_factory=list)


class NewReview(Struct, frozen=True, rename="camel"):
    """A review posted by the pipeline. Posted again, count and samples change, not its status."""

    id: ReviewId
    capability_id: AgentId
    delegation_skill_version: SkillVersion
    executor_skill_version: SkillVersion
    failure_class: FailureClass
    raised_at: EpochMs
    count: NonNegativeInt = 1
    corr_ids: CorrIds = field(default_factory=list)
    event_ids: EventIds = field(default_factory=list)


class NewEtaAdvice(Struct, frozen=True, rename="camel"):
    capability_id: AgentId
    p50_secs: DurationSecs
    p95_secs: DurationSecs
    recommended_eta_seconds: Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)]
    samples: NonNegativeInt
    at: EpochMs


class Feedback:
    def __init__(self, publisher: RecordPublisher) -> None:
        self._publisher = publisher
        self._core = publisher.replica.core

    # -- incidents

    async def find_incidents(self, since: int, class_: str | None, limit: int) -> IncidentPage:
        def find(tx: Tx) -> IncidentPage:
            rows = tx.fetch_all(_SELECT_INCIDENTS, (since, class_, limit))
            return IncidentPage(list(map(_incident_view, rows)), count_incidents(tx, since))

        return await self._core.read(find)

    async def store_incidents(self, found: Sequence[NewIncident]) -> NotedCounts:
        counts = self._core.delivery.incidents.counts

        def store(tx: Tx) -> int:
            new = 0
            for each in found:
                # The prefix keeps the pipeline from replacing an incident that a gateway raised.
                id = f"{_PIPELINE_SOURCE}:{each.id}"
                row = (id, each.class_, each.subject, each.detail, each.raised_at, _PIPELINE_SOURCE)
                tx.execute(_INSERT_INCIDENT, (*row, _encode_list(each.corr_ids)))
                if tx.changed_rows():
                    new += 1
                    tx.add_effect(partial(counts.update, [each.class_]))
            return new

        return NotedCounts(len(found), await self._core.commit(store))

    # -- reviews

    async def find_reviews(self, status: str | None, limit: int) -> list[ReviewView]:
        rows = await self._core.read(lambda tx: tx.fetch_all(_SELECT_REVIEWS, (status, limit)))
        return [_review_view(row) for row in rows]

    async def store_reviews(self, found: Sequence[NewReview]) -> NotedCounts:
        def store(tx: Tx) -> int:
            known = {each.id for each in found if tx.fetch_one(_SELECT_REVIEW, (each.id,))}
            tx.execute_many(_UPSERT_REVIEW, map(_review_row, found))
            return len({each.id for each in found} - known)

        new = await self._core.commit(store)
        await self.publish_open_reviews()
        return NotedCounts(len(found), new)

    async def close_review(
        self, id: str, status: ReviewStatus, note: str, actor: str
    ) -> ReviewView:
        def close_review(tx: Tx) -> ReviewView:
            tx.execute(_CLOSE_REVIEW, (status, tx.now, actor, note, id))
            changed = tx.changed_rows()
            row = tx.fetch_one(_SELECT_REVIEW, (id,))
            if row is None:
                raise NotFound(f"no review {id} here; `gatepost reviews list` shows all")
            if not changed:
                raise Conflict(f"review {id} was {row[9]} before")
            record_audit_entry(tx, actor, f"review.{status}", id, note)
            return _review_view(row)

        review = await self._core.commit(close_review)
        await self._publish_reviews([review])
        return review

    async def publish_open_reviews(self) -> None:
        """Publish open reviews that are not in the room yet; without a room, do nothing."""
        await self._publish_reviews(await self.find_reviews("open", 1000))

    async def _publish_reviews(self, reviews: Iterable[ReviewView]) -> None:
        if not self._publisher.is_ready:
            return
        node, published = self._core.node, self._published_keys()
        by_key = {claim_key(each.id, node.id): each for each in reviews}
        # The number of keys a node may write is limited, and it needs some for other records.
        capacity = max(0, _MAX_ROOM_REVIEWS - len(published))
        allowed = {*published, *[key for key in by_key if key not in published][:capacity]}
        records = {("reviews", k): _review_record(r) for k, r in by_key.items() if k in allowed}
        await self._publisher.publish_records(records)

    def _published_keys(self) -> set[str]:
        room, own = self._publisher.replica.current_room, self._core.node.key.public
        return {s.key for s in room.document if s.map == "reviews" and s.public_key == own}

    # -- advice

    async def store_advice(self, found: Sequence[NewEtaAdvice]) -> NotedCounts:
        def store(tx: Tx) -> int:
            new = 0
            for each in found:
                tx.execute(_UPSERT_ADVICE, msgspec.structs.astuple(each))
                new += tx.changed_rows()
            return new

        return NotedCounts(len(found), await self._core.commit(store))

    async def find_advice(self) -> list[EtaAdviceView]:
        return await self._core.read(
            lambda tx: [EtaAdviceView(*row) for row in tx.fetch_all(_SELECT_ADVICE)]
        )


def _incident_view(row: Row) -> IncidentView:
    values = list(row)
    values[6] = msgspec.json.decode(values[6])
    return IncidentView(*values)


def _review_view(row: Row) -> ReviewView:
    values = list(row)
    values[6:8] = map(msgspec.json.decode, values[6:8])
    return ReviewView(*values)


def _review_row(new: NewReview) -> Row:
    versions = (new.delegation_skill_version, new.executor_skill_version)
    samples = (_encode_list(new.corr_ids), _encode_list(new.event_ids))
    head = (new.id, new.capability_id, *versions, new.failure_class)
    return (*head, new.count, *samples, new.raised_at)


def _review_record(review: ReviewView) -> ReviewRecord:
    """Convert a stored review to a room record. Its values were checked when it was posted.

    Defaults are left out, because a reader verifies a record by encoding it again.
    """
    values = msgspec.to_builtins(review)
    names = set(ReviewRecord.__struct_fields__)
    if review.status == "open":
        names -= {"status", "settled_at"}
    values |= {name: tuple(values[name][:_MAX_ROOM_SAMPLES]) for name in ("corr_ids", "event_ids")}
    return ReviewRecord(**{name: values[name] for name in names})


def _encode_list(values: list[str]) -> str:
    return msgspec.json.encode(values).decode()


class FeedbackGuard:
    """Lets the operator and sessions with the feedback scope post findings."""

    def __init__(self, local_auth: LocalTokenAuth, agents: ExternalAgents) -> None:
        self._local_auth = local_auth
        self._agents = agents

    async def require_access(self, request: AnyRequest) -> None:
        with contextlib.suppress(Unauthorized):
            self._local_auth.require_token(request.headers.get("authorization"))
            return
        self._agents.guard.require_tls(request)
        require_scope(await self._agents.authenticate_session(request), Scope.ADMIN_FEEDBACK)


def create_routes(feedback: Feedback, gate: FeedbackGuard) -> list[Any]:
    return [*_pipeline_routes(feedback, gate), *_read_routes(feedback), *_review_routes(feedback)]


def _pipeline_routes(feedback: Feedback, gate: FeedbackGuard) -> list[Any]:
    @post(
        "/v1/incidents",
        status_code=200,
        opt=_NO_LOCAL_TOKEN,
        summary="Note incidents seen elsewhere",
    )
    async def note_incidents(data: JSONBody[list[NewIncident]], request: AnyRequest) -> NotedCounts:
        await gate.require_access(request)
        return await feedback.store_incidents(data)

    @post(
        "/v1/reviews", status_code=200, opt=_NO_LOCAL_TOKEN, summary="Note misfires to be reviewed"
    )
    async def note_reviews(data: JSONBody[list[NewReview]], request: AnyRequest) -> NotedCounts:
        await gate.require_access(request)
        return await feedback.store_reviews(data)

    @post(
        "/v1/eta-advice",
        status_code=200,
        opt=_NO_LOCAL_TOKEN,
        summary="Note how long capabilities take",
    )
    async def note_advice(data: JSONBody[list[NewEtaAdvice]], request: AnyRequest) -> NotedCounts:
        await gate.require_access(request)
        return await feedback.store_advice(data)

    return [note_incidents, note_reviews, note_advice]


def _read_routes(feedback: Feedback) -> list[Any]:
    @get("/v1/incidents", summary="Incidents, newest first; `since` is in epoch milliseconds")
    async def incidents(
        since: SinceMs = 0, class_: IncidentClass = None, limit: PageSize = 100
    ) -> IncidentPage:
        return await feedback.find_incidents(since, class_, limit)

    @get("/v1/eta-advice", summary="How long capabilities take, and what to promise")
    async def advice() -> list[EtaAdviceView]:
        return await feedback.find_advice()

    return [incidents, advice]


def _review_routes(feedback: Feedback) -> list[Any]:
    @get("/v1/reviews", summary="Misfires to be reviewed, newest first")
    async def reviews(
        status: FromQuery[ReviewStatus | None] = None, limit: PageSize = 100
    ) -> list[ReviewView]:
        return await feedback.find_reviews(status, limit)

    @post("/v1/reviews/{review_id:str}/resolve", status_code=200, summary="It was dealt with")
    async def resolve(review_id: PathName, data: JSONBody[ReviewDecision]) -> ReviewView:
        return await feedback.close_review(review_id, "resolved", data.note, "operator")

    @post("/v1/reviews/{review_id:str}/dismiss", status_code=200, summary="It needs nothing")
    async def dismiss(review_id: PathName, data: JSONBody[ReviewDecision]) -> ReviewView:
        return await feedback.close_review(review_id, "dismissed", data.note, "operator")

    return [reviews, resolve, dismiss]
