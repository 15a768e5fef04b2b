"""Appending this gateway's own receipts and signals, and noticing events that are for itself."""

from gatepost.delivery.decisions import NOTHING, Decisions, OwnEvent, ReceiptArrived
from gatepost.delivery.local_node import LocalNode
from gatepost.events import EventKind, Receipt, Signal, encode_payload
from gatepost.journal.outbox import EVERYBODY, EventDraft, Outbox
from gatepost.journal.transaction import Tx

ACCEPTED = Receipt(status="accepted")
PROCESSED = Receipt(status="processed", outcome="ok")
REPLIED = Receipt(status="processed", outcome="ok", replied=True)
KEPT = Receipt(status="processed", outcome="kept")
_ENCODED = {receipt: encode_payload(receipt) for receipt in (ACCEPTED, PROCESSED, REPLIED, KEPT)}

# The name under which a gateway itself speaks, when no agent does.
GATEWAY = "gateway"


def draft_acceptance(offer: int) -> Receipt:
    """The receipt for an accepted event, or for this offer of it."""
    return Receipt(status="accepted", offer=offer) if offer else ACCEPTED


class OutboxWriter:
    def __init__(self, node: LocalNode, outbox: Outbox) -> None:
        self._node = node
        self._outbox = outbox

    def sends_at_once_to(self, node: str) -> bool:
        """Whether an event for this node goes over a link as soon as it is on disk."""
        live = self._outbox.live_nodes
        return node in live or EVERYBODY in live

    def append(self, tx: Tx, draft: EventDraft) -> Decisions:
        """Append an event; one for this gateway itself is to be taken at once."""
        tx.append_event(draft)
        return (OwnEvent(draft),) if draft.to_node_id == self._node.id else NOTHING

    def append_signal(self, tx: Tx, node: str, ref: str | None, signal: Signal) -> Decisions:
        draft = EventDraft(
            event_id=self._node.event_ids.next_id(),
            kind=EventKind.SIGNAL,
            source_agent_id=signal.from_agent or GATEWAY,
            to_node_id=node,
            ref_event_id=ref,
            payload=encode_payload(signal),
        )
        return self.append(tx, draft)

    def append_receipt(
        self, tx: Tx, by: str, source: str, ref: str, corr_id: str, receipt: Receipt
    ) -> Decisions:
        """Append a receipt for `source`; one for ourselves counts at once."""
        tx.append_event(self.draft_receipt(by, source, ref, corr_id, receipt))
        return (ReceiptArrived(source, ref, receipt),) if source == self._node.id else NOTHING

    def draft_receipt(
        self, by: str, source: str, ref: str, corr_id: str, receipt: Receipt
    ) -> EventDraft:
        return EventDraft(
            event_id=self._node.event_ids.next_id(),
            kind=EventKind.ACK,
            source_agent_id=by,
            to_node_id=source,
            corr_id=corr_id,
            ref_event_id=ref,
            payload=_ENCODED.get(receipt) or encode_payload(receipt),
        )
