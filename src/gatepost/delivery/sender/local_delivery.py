"""Delivery to an agent of this gateway: one transaction does what two gateways do in two.

Event, mail, delivery record and `accepted` receipt are written at once, for owner and sender are
the same journal.
"""

import msgspec

from gatepost.delivery.blob_records import find_blob, use_blob
from gatepost.delivery.delivery_states import DeliveryState
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outbox_writer import ACCEPTED, KEPT, OutboxWriter
from gatepost.delivery.outgoing import OutgoingEvent
from gatepost.delivery.receiver.acceptance import mailbox_capacity
from gatepost.delivery.receiver.held_events import FullMailboxes
from gatepost.delivery.retry_policy import RetryPolicy
from gatepost.delivery.sender.delivery_table import DeliveryTable
from gatepost.delivery.sender.drafts import UNNUMBERED, draft_event
from gatepost.delivery.sender.pairs import PairNumber, SenderPairs
from gatepost.delivery.sender.payloads import PayloadEncryption
from gatepost.errors import IdempotencyConflict
from gatepost.events import Trace
from gatepost.journal.transaction import Tx
from gatepost.mailbox import Dispatcher, NewMail
from gatepost.routing import Route
from gatepost.wire import EventInfo


class LocalDelivery:
    def __init__(
        self,
        node: LocalNode,
        policy: RetryPolicy,
        dispatcher: Dispatcher,
        deliveries: DeliveryTable,
        pairs: SenderPairs,
        encryption: PayloadEncryption,
        writer: OutboxWriter,
        full: FullMailboxes,
    ) -> None:
        self._node = node
        self._policy = policy
        self._dispatcher = dispatcher
        self._deliveries = deliveries
        self._pairs = pairs
        self._encryption = encryption
        self._writer = writer
        self._full = full

    def is_local(self, route: Route) -> bool:
        return route.node == self._node.id

    def has_no_order(self, tx: Tx, agent: str) -> bool:
        """Whether messages for an agent of this gateway have no order unless they ask for it."""
        return self._dispatcher.is_unordered(tx, agent)

    def can_deliver(self, tx: Tx, out: OutgoingEvent, route: Route) -> bool:
        """Whether an event is for this node, and overtakes none of its pair by going there now."""
        here = self._node.id
        if route.node != here or self._goes_behind_held(tx, out.to_agent):
            return False
        return out.is_unordered or self._pairs.is_only_at(tx, out.pair, here)

    def _goes_behind_held(self, tx: Tx, mailbox: str) -> bool:
        """Whether events that were held for a full mailbox are about to be released."""
        if not self._full.has_mailbox(tx, mailbox):
            return False
        return mailbox_capacity(tx, self._dispatcher, mailbox) > 0

    def deliver_event(self, tx: Tx, out: OutgoingEvent, route: Route) -> int:
        """Deliver an event; returns how much mail waits for its agent."""
        waiting = self._enqueue_mail(tx, out, route)
        number = self._assign_pair_number(tx, out)
        expires = out.expires_at(tx.now, self._policy.ttl)
        self._append_event(tx, out, number, expires, route)
        due = out.due_at(tx.now) + self._policy.sla
        self._deliveries.open(
            tx, out, DeliveryState.ACCEPTED, route, number.number, expires, due, None
        )
        # The delivery is open as accepted, so the receipt changes nothing: it is for the record.
        receipt = (out.to_agent, self._node.id, out.event_id, out.corr_id)
        tx.append_event(self._writer.draft_receipt(*receipt, ACCEPTED))
        return waiting

    def deliver_unordered(self, tx: Tx, events: list[OutgoingEvent], route: Route) -> None:
        """Deliver events without order, all of one pair."""
        mails = [self._build_mail(tx, out, route) for out in events]
        self._enqueue(tx, events, mails)
        for out in events:
            expires = out.expires_at(tx.now, self._policy.ttl)
            self._append_event(tx, out, UNNUMBERED, expires, route)
            receipt = (out.to_agent, self._node.id, out.event_id, out.corr_id)
            tx.append_event(self._writer.draft_receipt(*receipt, ACCEPTED))
        policy = self._policy
        self._deliveries.open_accepted(tx, events, route, policy.ttl, policy.sla)

    def append_kept_reply(self, tx: Tx, out: OutgoingEvent) -> None:
        """Append a reply that is kept with its message, with both receipts: it needs no mailbox.

        It has no pair number either: another node with numbers of its pair would wait for it.
        """
        route = Route(self._node.id, "local")
        self._append_event(tx, out, UNNUMBERED, tx.now + self._policy.ttl, route)
        receipt = (out.to_agent, self._node.id, out.event_id, out.corr_id)
        tx.append_event(self._writer.draft_receipt(*receipt, ACCEPTED))
        tx.append_event(self._writer.draft_receipt(*receipt, KEPT))

    def _assign_pair_number(self, tx: Tx, out: OutgoingEvent) -> PairNumber:
        if out.is_unordered:
            return UNNUMBERED
        return self._pairs.next_number(tx, out.pair, self._node.id)

    def _append_event(
        self, tx: Tx, out: OutgoingEvent, number: PairNumber, expires: int, route: Route
    ) -> None:
        content = self._encryption.encrypt_for(tx, out, self._node.id)
        trace = Trace(
            route_decision="local", policy_version=route.version, traceparent=out.traceparent
        )
        priority = route.priority if out.priority is None else out.priority
        tx.append_event(
            draft_event(out, content, expires, trace, number, to_node=route.node, priority=priority)
        )

    def _enqueue_mail(self, tx: Tx, out: OutgoingEvent, route: Route) -> int:
        return self._enqueue(tx, [out], [self._build_mail(tx, out, route)])

    def _build_mail(self, tx: Tx, out: OutgoingEvent, route: Route) -> NewMail:
        size = find_blob(tx, out.digest)[1] if out.digest else None
        priority = route.priority if out.priority is None else out.priority
        info = EventInfo(
            out.event_id,
            out.kind,
            out.corr_id,
            out.ref_event_id,
            out.traceparent,
            out.digest,
            size,
            priority=priority,
            order=out.order,
            not_before=out.not_before,
            max_retries=out.max_retries,
        )
        return NewMail(
            out.event_id,
            out.payload,
            ttl=out.ttl,
            meta=msgspec.json.encode(info),
            priority=priority,
            ordered=not out.is_unordered,
            not_before=out.not_before or 0,
            max_retries=out.max_retries,
        )

    def _enqueue(self, tx: Tx, events: list[OutgoingEvent], mails: list[NewMail]) -> int:
        """Enqueue the mail of events of one pair; returns how much mail waits for their agent."""
        first = events[0]
        acks = self._dispatcher.enqueue(tx, first.to_agent, first.from_agent, mails)
        for out, ack in zip(events, acks, strict=True):
            if ack.error is not None:
                raise ack.error.to_error()
            if not ack.queued:
                raise IdempotencyConflict(f"{out.event_id} is already in the mailbox")
            if out.digest:
                use_blob(tx, out.digest, out.to_agent, out.event_id)
        return acks[-1].pending
