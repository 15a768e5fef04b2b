"""The events a sender appends for its deliveries: the first attempt, retries, re-routes."""

from typing import Any

from gatepost.delivery.outgoing import OutgoingEvent
from gatepost.delivery.sender.delivery_table import OpenDelivery
from gatepost.delivery.sender.pairs import PairNumber
from gatepost.delivery.sender.payloads import EncryptedContent
from gatepost.events import Trace
from gatepost.journal.outbox import EventDraft
from gatepost.routing import Route

UNNUMBERED = PairNumber(0, 1)


def draft_event(
    out: OutgoingEvent,
    content: EncryptedContent,
    expires: int,
    trace: Trace,
    number: PairNumber = UNNUMBERED,
    *,
    to_node: str | None = None,
    priority: int = 0,
    offer: int = 0,
) -> EventDraft:
    """The first attempt of an event."""
    return EventDraft(
        event_id=out.event_id,
        kind=out.kind,
        source_agent_id=out.from_agent,
        to_node_id=to_node,
        to_agent_id=out.to_agent,
        pair_seq=number.number,
        pair_base=number.base,
        corr_id=out.corr_id,
        ref_event_id=out.ref_event_id,
        causation_id=out.causation_id,
        origin_event_id=out.origin_event_id,
        origin_node_id=out.origin_node or None,
        expires_at=expires,
        priority=priority,
        order=out.order,
        not_before=out.not_before,
        max_retries=out.max_retries,
        offer=offer,
        payload=content.payload,
        payload_ref=content.ref,
        task=out.task,
        trace=trace,
    )


def draft_retry(delivery: OpenDelivery) -> EventDraft:
    """The same event again, without its payload: that is in the log already."""
    return EventDraft(
        event_id=delivery.id,
        kind=delivery.kind,
        source_agent_id=delivery.from_agent,
        to_node_id=delivery.node,
        to_agent_id=delivery.to_agent,
        pair_seq=delivery.pair_seq,
        corr_id=delivery.corr_id,
        origin_node_id=delivery.origin_node or None,
        expires_at=delivery.expires_at,
        attempt=delivery.attempt + 1,
        offer=delivery.offer,
        trace=Trace(attempt=delivery.attempt + 1, route_decision="retry"),
    )


def draft_reroute(
    delivery: OpenDelivery,
    route: Route,
    first: Any,
    content: EncryptedContent,
    base: int,
    offer: int,
) -> EventDraft:
    """The same event, whole, for another node. `first` is its first attempt."""
    return EventDraft(
        event_id=delivery.id,
        kind=delivery.kind,
        source_agent_id=delivery.from_agent,
        to_node_id=route.node,
        to_agent_id=delivery.to_agent,
        pair_seq=delivery.pair_seq,
        pair_base=base,
        corr_id=delivery.corr_id,
        ref_event_id=first.ref_event_id,
        causation_id=first.causation_id,
        origin_event_id=first.origin_event_id,
        origin_node_id=delivery.origin_node or None,
        expires_at=delivery.expires_at,
        attempt=delivery.attempt + 1,
        priority=first.priority,
        order=first.order,
        not_before=first.not_before,
        max_retries=first.max_retries,
        offer=offer,
        payload=content.payload,
        payload_ref=content.ref,
        task=first.task,
        trace=Trace(
            attempt=delivery.attempt + 1,
            route_decision=route.decision if route.decision != "owner" else "moved",
            policy_version=route.version,
            traceparent=first.trace and first.trace.traceparent,
        ),
    )
