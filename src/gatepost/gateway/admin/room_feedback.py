"""Incidents, reviews and ETA advice in the room: publishes ours and shows all.

The room holds them without their details. A backbone gateway may settle a review or an incident
that was posted to another one: it writes its own settled claim, and the gateway that holds the
details follows. An edge gateway may settle only those that were posted to itself.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from gatepost.errors import Forbidden
from gatepost.room import (
    EtaAdviceRecord,
    IncidentRecord,
    RecordRetention,
    ReviewRecord,
    RoomRecord,
    SharedRoom,
    claim_key,
)
from gatepost.room.findings import choose_advice, choose_reports
from gatepost.room.records import REFERENCE_PATTERN, key_subject
from gatepost.room.roles import Act
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.wire.report_views import EtaAdviceView, IncidentView, ReviewView

# Maximum number of samples of a record, and of own records in each of the maps. A node needs keys
# for other records too.
_MAX_SAMPLES = 8
_MAX_RECORDS = 500
_UNSETTLED = {"status", "settled_at", "settled_by"}

_is_reference = re.compile(REFERENCE_PATTERN).match


V = TypeVar("V", ReviewView, IncidentView)


class SharedFinding(NamedTuple, Generic[V]):
    """A report in the room, and the node that claims it.

    `is_trusted`: its writer may settle reports of others.
    """

    writer: str
    is_trusted: bool
    view: V


class RoomFeedback:
    def __init__(self, announcer: RecordAnnouncer) -> None:
        self._announcer = announcer
        self._node = announcer.replica.core.node
        self._clock = announcer.replica.core.clock

    @property
    def _room(self) -> SharedRoom | None:
        return self._announcer.replica.room

    # -- the findings of all gateways

    def reviews(self) -> dict[str, SharedFinding[ReviewView]]:
        found = {} if self._room is None else self._room.effective.reviews
        return {
            id: SharedFinding(claim.writer, claim.is_trusted, _review_view(id, claim.record))
            for id, claim in choose_reports(found, self._clock.now()).items()
        }

    def incidents(self) -> dict[str, SharedFinding[IncidentView]]:
        found = {} if self._room is None else self._room.effective.incidents
        return {
            claim.record.id: SharedFinding(
                claim.writer, claim.is_trusted, _incident_view(claim.record)
            )
            for claim in choose_reports(found, self._clock.now()).values()
        }

    def advice(self) -> dict[str, EtaAdviceView]:
        found = {} if self._room is None else self._room.effective.eta_advice
        now = self._clock.now()
        chosen = {id: choose_advice(claims, now) for id, claims in found.items()}
        return {id: _advice_view(id, record) for id, record in chosen.items() if record}

    def incident_counts(self) -> dict[str, dict[str, int]]:
        """Node → class → its own count of unresolved incidents."""
        room = self._room
        found = {} if room is None else room.effective.delivery
        return {node: dict(d.incident_counts) for node, d in found.items() if d.incident_counts}

    # -- decisions

    def check_review_decision(self, id: str) -> None:
        self._check_decision("reviews", id)

    def check_incident_decision(self, id: str) -> None:
        self._check_decision("incidents", incident_key(id))

    def may_settle_incident(self, id: str) -> bool:
        try:
            self.check_incident_decision(id)
        except Forbidden:
            return False
        return True

    def _check_decision(self, map: str, subject: str) -> None:
        """Refuse to settle a report that our claim would not settle in the room."""
        own = None if self._room is None else self._room.effective.nodes.get(self._node.id)
        if self._room is None or own is None or own.may(Act.SETTLE_ANY_REPORT):
            return
        claims = (s for s in self._room.document if s.map == map and key_subject(s.key) == subject)
        if any(claim.public_key != self._node.key.public for claim in claims):
            raise Forbidden(
                "an edge node cannot settle what was posted to another gateway: run this on a"
                " backbone node, see `gatepost nodes`"
            )

    # -- publishing

    async def publish_reviews(self, reviews: Iterable[ReviewView]) -> None:
        await self._publish("reviews", {each.id: _review_record(each) for each in reviews})

    async def publish_incidents(self, incidents: Iterable[IncidentView]) -> None:
        """Publish incidents, except old ones that the next sweep would remove."""
        since = self._announcer.replica.core.clock.now() - self._kept_ms()
        recent = [each for each in incidents if each.raised_at > since]
        records = {incident_key(each.id): _incident_record(each) for each in recent}
        await self._publish("incidents", records)

    def _kept_ms(self) -> int:
        claim = None if self._room is None else self._room.effective.coordination
        return (RecordRetention() if claim is None else claim.retention).review_ms

    async def publish_advice(self, advice: Iterable[EtaAdviceView]) -> None:
        await self._publish("eta", {each.capability_id: _advice_record(each) for each in advice})

    async def _publish(self, map: str, records: Mapping[str, RoomRecord]) -> None:
        """Publish our records, as long as there is capacity; without a room, do nothing."""
        if not self._announcer.is_ready or self._room is None:
            return
        own = self._node.key.public
        known = {s.key for s in self._room.document if s.map == map and s.public_key == own}
        by_key = {claim_key(id, self._node.id): record for id, record in records.items()}
        capacity = max(0, _MAX_RECORDS - len(known))
        allowed = {*known, *[key for key in by_key if key not in known][:capacity]}
        await self._announcer.publish_records(
            {(map, key): record for key, record in by_key.items() if key in allowed}
        )


def incident_key(id: str) -> str:
    """The key of an incident in the room, a digest because ids can contain other characters."""
    return sha256(id.encode()).hexdigest()[:32]


def _review_record(review: ReviewView) -> ReviewRecord:
    """Convert a review. Its values were checked when it was posted.

    Defaults are left out, because a reader verifies a record by encoding it again.
    """
    values = msgspec.to_builtins(review)
    for name in ("corr_ids", "event_ids"):
        values[name] = tuple(values[name][:_MAX_SAMPLES])
    return ReviewRecord(**_known_values(ReviewRecord, values))


def _incident_record(incident: IncidentView) -> IncidentRecord:
    values = msgspec.structs.asdict(incident)
    values["incident_class"] = incident.class_
    values["corr_ids"] = tuple(incident.corr_ids[:_MAX_SAMPLES])
    if not _is_reference(incident.subject):
        del values["subject"]
    known = _known_values(IncidentRecord, values)
    if incident.status == "open" and incident.ended_at is not None:
        known["settled_at"] = incident.ended_at
    return IncidentRecord(**known)


def _known_values(type: type[msgspec.Struct], values: dict[str, Any]) -> dict[str, Any]:
    names = {name for name in type.__struct_fields__ if name in values}
    if values["status"] == "open":
        names -= _UNSETTLED
    return {name: values[name] for name in names}


def _advice_record(advice: EtaAdviceView) -> EtaAdviceRecord:
    return EtaAdviceRecord(
        p50_ms=round(advice.p50_secs * 1000),
        p95_ms=round(advice.p95_secs * 1000),
        recommended_eta_seconds=advice.recommended_eta_seconds,
        samples=advice.samples,
        at=advice.at,
    )


def _review_view(id: str, record: ReviewRecord) -> ReviewView:
    values = msgspec.structs.asdict(record) | {"id": id, "note": ""}
    values |= {name: list(values[name]) for name in ("corr_ids", "event_ids")}
    return ReviewView(**values)


def _incident_view(record: IncidentRecord) -> IncidentView:
    is_open = record.status == "open"
    return IncidentView(
        record.id,
        record.incident_class,
        record.subject or "",
        "",
        record.raised_at,
        "pipeline",
        list(record.corr_ids),
        record.status,
        None if is_open else record.settled_at,
        record.settled_by,
        record.settled_at if is_open else None,
    )


def _advice_view(id: str, record: EtaAdviceRecord) -> EtaAdviceView:
    eta, samples = record.recommended_eta_seconds, record.samples
    return EtaAdviceView(id, record.p50_ms / 1000, record.p95_ms / 1000, eta, samples, record.at)
