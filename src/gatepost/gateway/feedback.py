"""Incidents, reviews and advice: what somebody should know, from here or from the pipeline.

The pipeline sees all gateways together and says what it found to one of them, with a token that is
good for that alone. Whatever it says twice is stored once. Reviews are for everybody, so they
stand in the room too, without their details.
"""

import contextlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from msgspec import Meta, Struct, field

from gatepost.access import Scope, require
from gatepost.errors import Conflict, NotFound, Unauthorized
from gatepost.events import AgentId, EventId, MsgId
from gatepost.events.envelope import Count, EpochMs
from gatepost.gateway.core import Core
from gatepost.gateway.door import Door
from gatepost.gateway.external_agents import ExternalAgents
from gatepost.gateway.reports import (
    EtaAdviceView,
    Incidents,
    IncidentView,
    Noted,
    ReviewId,
    ReviewStatus,
    ReviewView,
    Settling,
)
from gatepost.gateway.room import RoomKeeper
from gatepost.gateway.route import get, post
from gatepost.journal import Tx
from gatepost.journal.audit import audit
from gatepost.journal.tx import Row
from gatepost.room import Review as ReviewRecord
from gatepost.room import Room, claim_key
from gatepost.room.records import SkillVersion

AnyRequest = Request[Any, Any, Any]
PageSize = Annotated[int, QueryParameter(ge=1, le=1000)]
Since = Annotated[int, QueryParameter(ge=0, le=2**53)]
Class = Annotated[str | None, QueryParameter(name="class", max_length=100)]
Days = Annotated[float, Meta(ge=0, le=10 * 365 * 86_400)]
IncidentId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}\Z", max_length=200)]
Text = Annotated[str, Meta(max_length=500)]
CorrIds = Annotated[list[MsgId], Meta(max_length=100)]
EventIds = Annotated[list[EventId], Meta(max_length=100)]
FailureClass = Literal[
    "eta_breach", "sla_breach", "terminal_error", "contract_mismatch", "routing_miss"
]
# What the pipeline finds in all outboxes together, and what its audit finds.
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
_SOURCE = "pipeline"
_OPEN = {"open": True}
# What the room takes of a review's samples.
_SAMPLES = 8
_IN_ROOM = 500

_FIND = """
SELECT id, class, subject, detail, raised_at, source, corr_ids FROM incident
WHERE raised_at >= ? AND (?2 IS NULL OR class = ?2) ORDER BY raised_at DESC, id LIMIT ?
"""
_COUNTS = "SELECT class, count(*) FROM incident WHERE raised_at >= ? GROUP BY class ORDER BY class"
_RAISE = """
INSERT OR IGNORE INTO incident (id, class, subject, detail, raised_at, source, corr_ids)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_REVIEW = """
id, capability_id, delegation_skill_version, executor_skill_version, failure_class, count,
corr_ids, event_ids, raised_at, status, settled_at, settled_by, note
"""
_REVIEWS = f"""
SELECT {_REVIEW} FROM review WHERE ?1 IS NULL OR status = ?1 ORDER BY raised_at DESC, id LIMIT ?
"""
_ONE_REVIEW = f"SELECT {_REVIEW} FROM review WHERE id = ?"
_KEEP_REVIEW = f"""
INSERT INTO review ({_REVIEW}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', NULL, NULL, '')
ON CONFLICT (id) DO UPDATE SET count = max(count, excluded.count), corr_ids = excluded.corr_ids,
    event_ids = excluded.event_ids WHERE status = 'open'
"""
_SETTLE = """
UPDATE review SET status = ?, settled_at = ?, settled_by = ?, note = ?
WHERE id = ? AND status = 'open'
"""
_ADVISE = """
INSERT INTO eta_advice VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (capability_id) DO UPDATE SET
    p50_secs = excluded.p50_secs, p95_secs = excluded.p95_secs, samples = excluded.samples,
    recommended_eta_seconds = excluded.recommended_eta_seconds, at = excluded.at
WHERE excluded.at > at
"""
_ADVICE = "SELECT * FROM eta_advice ORDER BY capability_id"


_NAMES = {"class_": "class", "raised_at": "raisedAt", "corr_ids": "corrIds"}


class NewIncident(Struct, frozen=True, rename=_NAMES):
    """As the pipeline says it. The same `id` again is the same incident."""

    id: IncidentId
    class_: PipelineClass
    subject: Text
    detail: Text
    raised_at: EpochMs
    corr_ids: CorrIds = field(default_factory=list)


class NewReview(Struct, frozen=True, rename="camel"):
    """As the pipeline says it. Said again, its count and samples are renewed, not its status."""

    id: ReviewId
    capability_id: AgentId
    delegation_skill_version: SkillVersion
    executor_skill_version: SkillVersion
    failure_class: FailureClass
    raised_at: EpochMs
    count: Count = 1
    corr_ids: CorrIds = field(default_factory=list)
    event_ids: EventIds = field(default_factory=list)


class NewEtaAdvice(Struct, frozen=True, rename="camel"):
    capability_id: AgentId
    p50_secs: Days
    p95_secs: Days
    recommended_eta_seconds: Annotated[int, Meta(ge=1, le=10 * 365 * 86_400)]
    samples: Count
    at: EpochMs


class Feedback:
    def __init__(self, core: Core, keeper: RoomKeeper) -> None:
        self._core = core
        self._keeper = keeper

    # -- incidents

    async def incidents(self, since: int, class_: str | None, limit: int) -> Incidents:
        def find(tx: Tx) -> Incidents:
            rows = tx.rows(_FIND, (since, class_, limit))
            counts = {row[0]: row[1] for row in tx.rows(_COUNTS, (since,))}
            return Incidents(list(map(_incident, rows)), counts)

        return await self._core.read(find)

    async def raise_(self, found: Sequence[NewIncident]) -> Noted:
        counts = self._core.delivery.incidents.counts

        def store(tx: Tx) -> int:
            new = 0
            for each in found:
                # A name of its own, so that nobody can take the place of what a gateway finds.
                id = f"{_SOURCE}:{each.id}"
                row = (id, each.class_, each.subject, each.detail, each.raised_at, _SOURCE)
                tx.run(_RAISE, (*row, _list(each.corr_ids)))
                if tx.changes():
                    new += 1
                    tx.effect(partial(counts.update, [each.class_]))
            return new

        return Noted(len(found), await self._core.commit(store))

    # -- reviews

    async def reviews(self, status: str | None, limit: int) -> list[ReviewView]:
        rows = await self._core.read(lambda tx: tx.rows(_REVIEWS, (status, limit)))
        return [_review(row) for row in rows]

    async def review(self, found: Sequence[NewReview]) -> Noted:
        def store(tx: Tx) -> int:
            known = {each.id for each in found if tx.one(_ONE_REVIEW, (each.id,))}
            tx.many(_KEEP_REVIEW, map(_review_row, found))
            return len({each.id for each in found} - known)

        new = await self._core.commit(store)
        await self.publish()
        return Noted(len(found), new)

    async def settle(self, id: str, status: ReviewStatus, note: str, actor: str) -> ReviewView:
        def settle(tx: Tx) -> ReviewView:
            tx.run(_SETTLE, (status, tx.now, actor, note, id))
            changed = tx.changes()
            row = tx.one(_ONE_REVIEW, (id,))
            if row is None:
                raise NotFound(f"no review {id} here; `gatepost reviews list` shows all")
            if not changed:
                raise Conflict(f"review {id} was {row[9]} before")
            audit(tx, actor, f"review.{status}", id, note)
            return _review(row)

        review = await self._core.commit(settle)
        await self._say([review])
        return review

    async def publish(self) -> None:
        """Say in the room what is open and not said yet; until there is a room, nothing is."""
        await self._say(await self.reviews("open", 1000))

    async def _say(self, reviews: Iterable[ReviewView]) -> None:
        if self._keeper.room is None or not self._keeper.may_speak.is_set():
            return
        node, said = self._core.node, self._said(self._keeper.room)
        words = {claim_key(each.id, node.id): each for each in reviews}
        # A node may write so many keys and no more, and it has other things to say.
        fresh = [key for key in words if key not in said][: max(0, _IN_ROOM - len(said))]
        told = {("reviews", k): _record(r) for k, r in words.items() if k in said or k in fresh}
        await self._keeper.publish(told)

    def _said(self, room: Room) -> set[str]:
        own = self._core.node.key.public
        return {s.key for s in room.document if s.map == "reviews" and s.public_key == own}

    # -- advice

    async def advise(self, found: Sequence[NewEtaAdvice]) -> Noted:
        def store(tx: Tx) -> int:
            new = 0
            for each in found:
                tx.run(_ADVISE, msgspec.structs.astuple(each))
                new += tx.changes()
            return new

        return Noted(len(found), await self._core.commit(store))

    async def advice(self) -> list[EtaAdviceView]:
        return await self._core.read(lambda tx: [EtaAdviceView(*row) for row in tx.rows(_ADVICE)])


def _incident(row: Row) -> IncidentView:
    values = list(row)
    values[6] = msgspec.json.decode(values[6])
    return IncidentView(*values)


def _review(row: Row) -> ReviewView:
    values = list(row)
    values[6:8] = map(msgspec.json.decode, values[6:8])
    return ReviewView(*values)


def _review_row(new: NewReview) -> Row:
    versions = (new.delegation_skill_version, new.executor_skill_version)
    samples = (_list(new.corr_ids), _list(new.event_ids))
    head = (new.id, new.capability_id, *versions, new.failure_class)
    return (*head, new.count, *samples, new.raised_at)


def _record(review: ReviewView) -> ReviewRecord:
    """What was checked when it came in, so it has the types a record has.

    A default is left out, for a record is written as its reader would write it.
    """
    said = msgspec.to_builtins(review)
    names = set(ReviewRecord.__struct_fields__)
    if review.status == "open":
        names -= {"status", "settled_at"}
    said |= {name: tuple(said[name][:_SAMPLES]) for name in ("corr_ids", "event_ids")}
    return ReviewRecord(**{name: said[name] for name in names})


def _list(values: list[str]) -> str:
    return msgspec.json.encode(values).decode()


class Gate:
    """Who may say such things: the operator, or a session with the scope for it."""

    def __init__(self, door: Door, agents: ExternalAgents) -> None:
        self._door = door
        self._agents = agents

    async def check(self, request: AnyRequest) -> None:
        with contextlib.suppress(Unauthorized):
            self._door.check(request.headers.get("authorization"))
            return
        self._agents.threshold.check_plain(request)
        require(await self._agents.authenticate(request), Scope.ADMIN_FEEDBACK)


def routes(feedback: Feedback, gate: Gate) -> list[Any]:
    return [*_said_routes(feedback, gate), *_read_routes(feedback), *_review_routes(feedback)]


def _said_routes(feedback: Feedback, gate: Gate) -> list[Any]:
    @post("/v1/incidents", status_code=200, opt=_OPEN, summary="Note incidents seen elsewhere")
    async def note_incidents(data: JSONBody[list[NewIncident]], request: AnyRequest) -> Noted:
        await gate.check(request)
        return await feedback.raise_(data)

    @post("/v1/reviews", status_code=200, opt=_OPEN, summary="Note misfires to be reviewed")
    async def note_reviews(data: JSONBody[list[NewReview]], request: AnyRequest) -> Noted:
        await gate.check(request)
        return await feedback.review(data)

    @post("/v1/eta-advice", status_code=200, opt=_OPEN, summary="Note how long capabilities take")
    async def note_advice(data: JSONBody[list[NewEtaAdvice]], request: AnyRequest) -> Noted:
        await gate.check(request)
        return await feedback.advise(data)

    return [note_incidents, note_reviews, note_advice]


def _read_routes(feedback: Feedback) -> list[Any]:
    @get("/v1/incidents", summary="Incidents, newest first; `since` is in epoch milliseconds")
    async def incidents(since: Since = 0, class_: Class = None, limit: PageSize = 100) -> Incidents:
        return await feedback.incidents(since, class_, limit)

    @get("/v1/eta-advice", summary="How long capabilities take, and what to promise")
    async def advice() -> list[EtaAdviceView]:
        return await feedback.advice()

    return [incidents, advice]


def _review_routes(feedback: Feedback) -> list[Any]:
    @get("/v1/reviews", summary="Misfires to be reviewed, newest first")
    async def reviews(
        status: FromQuery[ReviewStatus | None] = None, limit: PageSize = 100
    ) -> list[ReviewView]:
        return await feedback.reviews(status, limit)

    @post("/v1/reviews/{review_id:str}/resolve", status_code=200, summary="It was dealt with")
    async def resolve(review_id: FromPath[str], data: JSONBody[Settling]) -> ReviewView:
        return await feedback.settle(review_id, "resolved", data.note, "operator")

    @post("/v1/reviews/{review_id:str}/dismiss", status_code=200, summary="It needs nothing")
    async def dismiss(review_id: FromPath[str], data: JSONBody[Settling]) -> ReviewView:
        return await feedback.settle(review_id, "dismissed", data.note, "operator")

    return [reviews, resolve, dismiss]
