"""Incidents, reviews and ETA advice, raised here or posted by the pipeline.

The pipeline sees the events of all gateways. It posts its findings to one gateway, with a token
that allows nothing else. A finding posted twice is stored once. Findings concern every gateway, so
they are also published in the room, without their details (room_feedback.py).
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from litestar.params import FromQuery, JSONBody, QueryParameter
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from gatepost.access import Scope, require_scope
from gatepost.delivery import incident_table
from gatepost.errors import Conflict, NotFound
from gatepost.events import AgentId, EventId, MsgId
from gatepost.events.envelope import EpochMs, NonNegativeInt
from gatepost.gateway.admin.external_agents import ExternalAgents, has_session_token
from gatepost.gateway.admin.room_feedback import RoomFeedback
from gatepost.journal import Tx
from gatepost.journal.audit import record_audit_entry
from gatepost.listening.operator_access import OperatorAccess
from gatepost.listening.route_decorators import get, post
from gatepost.listening.route_parameters import AnyRequest, PageSize, PathName
from gatepost.room import RoomChange
from gatepost.room.findings import MAX_AHEAD_MS, share_page
from gatepost.room.records import SkillVersion
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.tasks.capabilities import reviews
from gatepost.wire.operations import Count
from gatepost.wire.report_views import (
    EtaAdviceView,
    IncidentDecision,
    IncidentPage,
    IncidentSweep,
    IncidentView,
    NotedCounts,
    ReviewDecision,
    ReviewId,
    ReviewStatus,
    ReviewView,
)

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
    "clock_skew",
    "bad_archive",
    "objective_missed",
    "audit_violation",
]
_PIPELINE_SOURCE = "pipeline"
_NO_LOCAL_TOKEN = {"open": True}
_SHARE_MS = 60_000

_ADVICE_COLUMNS = "capability_id, p50_secs, p95_secs, recommended_eta_seconds, samples, at"
_UPSERT_ADVICE = f"""
INSERT INTO eta_advice ({_ADVICE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (capability_id) DO UPDATE SET
    p50_secs = excluded.p50_secs, p95_secs = excluded.p95_secs, samples = excluded.samples,
    recommended_eta_seconds = excluded.recommended_eta_seconds, at = excluded.at
WHERE excluded.at > at
"""
_SELECT_ADVICE = f"SELECT {_ADVICE_COLUMNS} FROM eta_advice ORDER BY capability_id"


_INCIDENT_JSON_NAMES = {
    "class_": "class",
    "raised_at": "raisedAt",
    "ended_at": "endedAt",
    "corr_ids": "corrIds",
}


PostedReport = TypeVar("PostedReport", IncidentView, ReviewView)


class NewIncident(Struct, frozen=True, rename=_INCIDENT_JSON_NAMES, forbid_unknown_fields=True):
    """An incident posted by the pipeline. Posted again, all but its class and status may change.

    `ended_at` is its end; None while it lasts. `count` is the number of affected deliveries.
    """

    id: IncidentId
    class_: PipelineClass
    subject: ShortText
    detail: ShortText
    raised_at: EpochMs
    ended_at: EpochMs | None = None
    count: NonNegativeInt | None = None
    corr_ids: CorrIds = field(default_factory=list)


class NewReview(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
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


class NewEtaAdvice(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    capability_id: AgentId
    p50_secs: DurationSecs
    p95_secs: DurationSecs
    recommended_eta_seconds: Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)]
    samples: NonNegativeInt
    at: EpochMs


class Feedback:
    def __init__(self, announcer: RecordAnnouncer) -> None:
        self._announcer = announcer
        self._core = announcer.replica.core
        self._room = RoomFeedback(announcer)
        self._shared_at = 0
        self._is_share_due = True
        announcer.replica.watch_changes(self._note_change)

    def _note_change(self, change: RoomChange | None) -> None:
        """Note that another gateway may have settled a finding, or that the document changed."""
        self._is_share_due |= change is None or (
            change.origin is not None
            and any(signed.map in ("reviews", "incidents") for signed in change.changed)
        )

    # -- incidents

    async def find_incidents(self, since: int, class_: str | None, limit: int) -> IncidentPage:
        """Incidents of this gateway, and those that were posted to others."""
        elsewhere = self._room.incidents()

        def find(tx: Tx) -> tuple[list[IncidentView], set[str], dict[str, int]]:
            newest = incident_table.list_newest(tx, since, class_, limit)
            known = {id for id in elsewhere if incident_table.find_incident(tx, id)}
            return newest, known, incident_table.count_incidents(tx, since)

        own, known, counts = await self._core.read(find)
        found = [(self._core.node.id, each) for each in own]
        found += [
            (writer, each)
            for id, (writer, _, each) in elsewhere.items()
            if id not in known and each.raised_at >= since and class_ in (None, each.class_)
        ]
        page = share_page(found, limit, _newest_first)
        return IncidentPage(page, counts, self._room.incident_counts())

    async def store_incidents(self, found: Sequence[NewIncident]) -> NotedCounts:
        counts = self._core.delivery.incidents.counts

        def store(tx: Tx) -> int:
            new = 0
            for each in found:
                incident = _describe_incident(tx, each)
                if incident_table.find_incident(tx, incident.id) is None:
                    new += 1
                    tx.add_effect(partial(counts.update, [each.class_]))
                incident_table.post_incident(tx, incident)
            return new

        new = await self._core.commit(store)
        await self._publish_incidents()
        return NotedCounts(len(found), new)

    async def resolve_incident(self, id: str, note: str, actor: str) -> IncidentView:
        """Resolve an incident of this gateway, or one that was posted to another."""
        self._room.check_incident_decision(id)
        elsewhere = self._room.incidents().get(id)

        def resolve(tx: Tx) -> IncidentView:
            shown = None if elsewhere is None else elsewhere.view
            known = incident_table.find_incident(tx, id) or shown
            known = _require_open(known, f"incident {id}", "gatepost incidents")
            by = self._core.node.id
            incident_table.close_incident(tx, id, "resolved", tx.now, by)
            record_audit_entry(tx, actor, "incident.resolve", id, note)
            return replace(known, status="resolved", settled_at=tx.now, settled_by=by)

        resolved = await self._core.commit(resolve)
        if resolved.source == _PIPELINE_SOURCE:
            await self._room.publish_incidents([resolved])
        return resolved

    async def resolve_incidents(self, wanted: IncidentSweep, actor: str) -> Count:
        """Resolve the open incidents of a class and an age, of this gateway and of the others.

        An incident that was posted to another gateway stays open if this one may not settle it.
        """
        before = self._core.clock.now() + 1 if wanted.before is None else wanted.before
        count = 0
        while resolved := await self._core.commit(
            partial(self._resolve_oldest, wanted=wanted, before=before, actor=actor)
        ):
            await self._room.publish_incidents(
                each for each in resolved if each.source == _PIPELINE_SOURCE
            )
            count += len(resolved)
        for _, _, each in self._room.incidents().values():
            is_wanted = wanted.class_ in (None, each.class_) and each.raised_at < before
            if each.status == "open" and is_wanted and self._room.may_settle_incident(each.id):
                await self.resolve_incident(each.id, wanted.note, actor)
                count += 1
        return Count(count=count)

    def _resolve_oldest(
        self, tx: Tx, wanted: IncidentSweep, before: int, actor: str
    ) -> list[IncidentView]:
        by, resolved = self._core.node.id, []
        for each in incident_table.list_oldest_open(tx, wanted.class_, before):
            incident_table.close_incident(tx, each.id, "resolved", tx.now, by)
            record_audit_entry(tx, actor, "incident.resolve", each.id, wanted.note)
            resolved.append(replace(each, status="resolved", settled_at=tx.now, settled_by=by))
        return resolved

    async def _publish_incidents(self) -> None:
        posted = await self._core.read(lambda tx: incident_table.list_posted(tx, _PIPELINE_SOURCE))
        await self._room.publish_incidents(posted)

    # -- reviews

    async def find_reviews(self, status: str | None, limit: int) -> list[ReviewView]:
        """Reviews of this gateway, and those that were posted to others."""
        elsewhere = self._room.reviews()

        def find(tx: Tx) -> tuple[list[ReviewView], set[str]]:
            known = {id for id in elsewhere if reviews.find_review(tx, id)}
            return reviews.list_reviews(tx, status, limit), known

        own, known = await self._core.read(find)
        found = [(self._core.node.id, each) for each in own]
        found += [
            (writer, each)
            for id, (writer, _, each) in elsewhere.items()
            if id not in known and status in (None, each.status)
        ]
        return share_page(found, limit, _newest_first)

    async def store_reviews(self, found: Sequence[NewReview]) -> NotedCounts:
        def store(tx: Tx) -> int:
            known = {each.id for each in found if reviews.find_review(tx, each.id)}
            reviews.post_reviews(tx, [_describe_review(tx, each) for each in found])
            return len({each.id for each in found} - known)

        new = await self._core.commit(store)
        await self._publish_reviews()
        return NotedCounts(len(found), new)

    async def close_review(
        self, id: str, status: ReviewStatus, note: str, actor: str
    ) -> ReviewView:
        """Close a review of this gateway, or one that was posted to another."""
        self._room.check_review_decision(id)
        elsewhere = self._room.reviews().get(id)

        def close(tx: Tx) -> ReviewView:
            shown = None if elsewhere is None else elsewhere.view
            known = reviews.find_review(tx, id) or shown
            known = _require_open(known, f"review {id}", "gatepost reviews list")
            reviews.close_review(tx, id, status, tx.now, actor, note)
            record_audit_entry(tx, actor, f"review.{status}", id, note)
            return replace(known, status=status, settled_at=tx.now, settled_by=actor, note=note)

        review = await self._core.commit(close)
        by = self._core.node.id
        await self._room.publish_reviews([replace(review, settled_by=by)])
        return review

    async def _publish_reviews(self) -> None:
        await self._room.publish_reviews(
            await self._core.read(lambda tx: reviews.list_reviews(tx, "open", 1000))
        )

    # -- findings shared with other gateways

    async def share_when_due(self) -> None:
        """Share after a change in the room, and periodically."""
        now = self._core.clock.now()
        if self._is_share_due or not self._shared_at <= now < self._shared_at + _SHARE_MS:
            self._is_share_due, self._shared_at = False, now
            await self.share_findings()

    async def share_findings(self) -> None:
        """Follow the decisions of other gateways, and publish our findings."""
        await self._follow_decisions()
        await self._publish_reviews()
        await self._publish_incidents()
        await self._room.publish_advice(await self._core.read(_read_advice))

    async def _follow_decisions(self) -> None:
        """Settle reviews and incidents in the journal that backbone gateways have settled.

        The room may lack our claim, so that an edge node seems to have raised the report alone.
        """
        own = self._core.node.id
        decided_reviews = [
            each.view
            for each in self._room.reviews().values()
            if each.is_trusted and each.view.settled_by not in (None, own)
        ]
        decided_incidents = [
            each.view
            for each in self._room.incidents().values()
            if each.is_trusted and each.view.settled_by not in (None, own)
        ]

        def find_open(tx: Tx) -> tuple[list[ReviewView], list[IncidentView]]:
            return (
                [each for each in decided_reviews if _is_open(reviews.find_review(tx, each.id))],
                [
                    each
                    for each in decided_incidents
                    if _is_open(incident_table.find_incident(tx, each.id))
                ],
            )

        def settle(tx: Tx) -> None:
            for r in open_reviews:
                reviews.close_review(tx, r.id, r.status, r.settled_at, r.settled_by)
            for i in open_incidents:
                incident_table.close_incident(tx, i.id, i.status, i.settled_at, i.settled_by)

        open_reviews, open_incidents = await self._core.read(find_open)
        if open_reviews or open_incidents:
            await self._core.commit(settle)
        # Publish the decision in our claims too, which may outlive those of the deciding gateway.
        await self._room.publish_reviews(open_reviews)
        await self._room.publish_incidents(open_incidents)

    # -- advice

    async def store_advice(self, found: Sequence[NewEtaAdvice]) -> NotedCounts:
        def store(tx: Tx) -> int:
            new = 0
            for each in found:
                row = replace(each, at=_bound_time(tx, each.at))
                tx.execute(_UPSERT_ADVICE, msgspec.structs.astuple(row))
                new += tx.changed_rows()
            return new

        new = await self._core.commit(store)
        await self._room.publish_advice(await self._core.read(_read_advice))
        return NotedCounts(len(found), new)

    async def find_advice(self) -> list[EtaAdviceView]:
        """The latest advice on each capability, posted to any gateway."""
        found = self._room.advice()
        for own in await self._core.read(_read_advice):
            known = found.get(own.capability_id)
            if known is None or known.at <= own.at:
                found[own.capability_id] = own
        return [found[id] for id in sorted(found)]


def _newest_first(each: IncidentView | ReviewView) -> tuple[int, str]:
    return -each.raised_at, each.id


def _bound_time(tx: Tx, at: int) -> int:
    """The time of a finding; a time too far ahead of our clock counts as now."""
    return at if at <= tx.now + MAX_AHEAD_MS else tx.now


def _read_advice(tx: Tx) -> list[EtaAdviceView]:
    return [EtaAdviceView(*row) for row in tx.fetch_all(_SELECT_ADVICE)]


def _require_open(known: PostedReport | None, name: str, listing: str) -> PostedReport:
    if known is None:
        raise NotFound(f"no {name} here; `{listing}` shows all")
    if known.status != "open":
        raise Conflict(f"{name} was {known.status} before")
    return known


def _is_open(known: IncidentView | ReviewView | None) -> bool:
    return known is not None and known.status == "open"


def _describe_incident(tx: Tx, new: NewIncident) -> IncidentView:
    return IncidentView(
        # The prefix keeps the pipeline from replacing an incident that a gateway raised.
        id=f"{_PIPELINE_SOURCE}:{new.id}",
        class_=new.class_,
        subject=new.subject,
        detail=new.detail,
        raised_at=_bound_time(tx, new.raised_at),
        source=_PIPELINE_SOURCE,
        corr_ids=new.corr_ids,
        ended_at=None if new.ended_at is None else _bound_time(tx, new.ended_at),
        count=new.count,
    )


def _describe_review(tx: Tx, new: NewReview) -> ReviewView:
    return ReviewView(
        id=new.id,
        capability_id=new.capability_id,
        delegation_skill_version=new.delegation_skill_version,
        executor_skill_version=new.executor_skill_version,
        failure_class=new.failure_class,
        count=new.count,
        corr_ids=new.corr_ids,
        event_ids=new.event_ids,
        raised_at=_bound_time(tx, new.raised_at),
        status="open",
        settled_at=None,
        settled_by=None,
        note="",
    )


class FeedbackGuard:
    """Lets the operator and sessions with the feedback scope post findings."""

    def __init__(self, access: OperatorAccess, agents: ExternalAgents) -> None:
        self._access = access
        self._agents = agents

    async def require_access(self, request: AnyRequest) -> None:
        if not has_session_token(request) and self._access.identify_operator(request):
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

    @post("/v1/incidents/resolve", status_code=200, summary="An incident was dealt with")
    async def resolve_incident(data: JSONBody[IncidentDecision]) -> IncidentView:
        return await feedback.resolve_incident(data.id, data.note, "operator")

    @post("/v1/incidents/resolve-all", status_code=200, summary="Incidents were dealt with")
    async def resolve_incidents(data: JSONBody[IncidentSweep]) -> Count:
        return await feedback.resolve_incidents(data, "operator")

    @get("/v1/eta-advice", summary="How long capabilities take, and what to promise")
    async def advice() -> list[EtaAdviceView]:
        return await feedback.find_advice()

    return [incidents, resolve_incident, resolve_incidents, advice]


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
