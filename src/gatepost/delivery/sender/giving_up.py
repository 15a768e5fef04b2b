"""Giving up deliveries: a dead letter for the receiver, and the payload kept as undelivered."""

from gatepost.delivery.decisions import NOTHING, Decisions, DeliveryEnded, GiveUpDelivery
from gatepost.delivery.delivery_states import DeliveryInput, update_delivery
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.outgoing import EMPTY_PAYLOAD
from gatepost.delivery.sender.delivery_table import DeliveryTable, OpenDelivery
from gatepost.delivery.sender.payloads import PayloadEncryption, find_first_event
from gatepost.errors import GatepostError
from gatepost.events import DeadLetterNotice, EventKind, encode_payload, parse_event_id
from gatepost.journal.outbox import EventDraft
from gatepost.journal.transaction import Tx

_GIVE_UP = update_delivery(
    DeliveryInput.GIVE_UP,
    "outcome = 'dead_letter', reason = ?, processed_at = ?, next_at = NULL, content_key = NULL",
    returning="replies_to",
)
_KEEP_UNDELIVERED = """
INSERT OR IGNORE INTO undelivered (event_id, kind, from_agent, to_agent, corr_id, node, reason,
    attempts, failed_at, payload, digest, traceparent, ref_id, ordering, max_retries, verdict)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class GivingUp:
    def __init__(
        self,
        node: LocalNode,
        deliveries: DeliveryTable,
        encryption: PayloadEncryption,
        writer: OutboxWriter,
        incidents: IncidentLog,
    ) -> None:
        self._node = node
        self._deliveries = deliveries
        self._encryption = encryption
        self._writer = writer
        self._incidents = incidents

    def give_up_delivery(self, tx: Tx, decision: GiveUpDelivery) -> Decisions:
        delivery, reason, detail, verdict = decision
        if not self._deliveries.is_unchanged(tx, delivery):
            return NOTHING
        self._keep_undelivered(tx, delivery, reason, verdict)
        row = tx.fetch_one(_GIVE_UP, (reason, tx.now, delivery.event_id))
        replies_to = row[0] if row else "caller"
        own = self._writer.append(tx, self._draft_dead_letter(delivery, reason, detail))
        self._incidents.raise_(tx, "dead_letter", delivery.id, f"{reason}: {detail}")
        ended = DeliveryEnded(
            delivery.id, delivery.pair, "dead_letter", reason, replies_to, delivery.kind, None
        )
        return (*own, ended)

    def _draft_dead_letter(self, delivery: OpenDelivery, reason: str, detail: str) -> EventDraft:
        letter = DeadLetterNotice(
            reason=reason, detail=detail, attempts=delivery.attempt, pair_seq=delivery.pair_seq
        )
        return EventDraft(
            event_id=self._node.event_ids.next_id(),
            kind=EventKind.DEAD_LETTER,
            source_agent_id=delivery.from_agent,
            to_node_id=delivery.node,
            to_agent_id=delivery.to_agent,
            corr_id=delivery.corr_id,
            ref_event_id=delivery.id,
            origin_node_id=delivery.origin_node or None,
            payload=encode_payload(letter),
        )

    def _keep_undelivered(
        self, tx: Tx, delivery: OpenDelivery, reason: str, verdict: str | None
    ) -> None:
        """Keep the payload, for it may be sent again."""
        payload, trace, ref, terms = EMPTY_PAYLOAD, None, None, (None, None)
        try:
            first = find_first_event(tx, delivery.event_id)
            trace = first.trace and first.trace.traceparent
            terms = (first.order, first.max_retries)
            ref = first.ref_event_id and parse_event_id(first.ref_event_id)
            payload = self._encryption.decrypt_own(delivery, first)
        except GatepostError as error:
            self._incidents.raise_(tx, "payload_lost", delivery.id, error.message)
        ids = (
            delivery.event_id,
            delivery.kind,
            *delivery.pair[:2],
            delivery.corr_id,
            delivery.node,
        )
        kept = (reason, delivery.attempt, tx.now, payload, delivery.digest, trace, ref or None)
        tx.execute(_KEEP_UNDELIVERED, (*ids, *kept, *terms, verdict))
