"""Appends this gateway's receipts and signals; events for itself are returned as decisions."""

from gatepost.delivery.decisions import NOTHING, Decisions, OwnEvent, ReceiptArrived
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outgoing import SenderPair
from gatepost.events import Envelope, EventKind, Receipt, Signal, encode_payload
from gatepost.events.reserved_names import GATEWAY
from gatepost.journal.outbox import EVERYBODY, Outbox
from gatepost.journal.transaction import Tx

ACCEPTED = Receipt(status="accepted")
PROCESSED = Receipt(status="processed", outcome="ok")
REPLIED = Receipt(status="processed", outcome="ok", replied=True)
# The refusal of a gateway that was restored from a backup: it may have dealt with the event.
RESTORED = "restored from a backup"
KEPT = Receipt(status="processed", outcome="kept")
_ENCODED = {receipt: encode_payload(receipt) for receipt in (ACCEPTED, PROCESSED, REPLIED, KEPT)}


def draft_acceptance(offer: int, now: int = 0, eta_secs: int | None = None) -> Receipt:
    """The receipt for an accepted event or offer, with the ETA of a task."""
    if eta_secs is None:
        return Receipt(status="accepted", offer=offer) if offer else ACCEPTED
    eta_at = now + eta_secs * 1000
    return Receipt(status="accepted", offer=offer, eta_at=eta_at, eta_seconds=eta_secs)


def draft_pair_closed(pair: SenderPair, through: int) -> Signal:
    """The signal that a pair is closed through `through`."""
    return Signal(
        signal="pair_closed",
        from_agent=pair.from_agent,
        to_agent=pair.to_agent,
        origin_node_id=pair.origin_node or None,
        through=through,
    )


class OutboxWriter:
    def __init__(self, node: LocalNode, outbox: Outbox) -> None:
        self._node = node
        self._outbox = outbox

    def sends_at_once_to(self, node: str) -> bool:
        """Whether an event for this node goes over a link as soon as it is on disk."""
        live = self._outbox.live_nodes
        return node in live or EVERYBODY in live

    def append(self, tx: Tx, draft: Envelope) -> Decisions:
        """Append an event. One for this gateway itself is taken in the same transaction."""
        tx.append_event(draft)
        return (OwnEvent(draft),) if draft.to_node_id == self._node.id else NOTHING

    def append_signal(self, tx: Tx, node: str, ref: str | None, signal: Signal) -> Decisions:
        draft = Envelope(
            event_id=self._node.event_ids.next_id(),
            kind=EventKind.SIGNAL,
            source_agent_id=signal.from_agent or GATEWAY,
            to_node_id=node,
            ref_event_id=ref,
            payload=encode_payload(signal),
        )
        return self.append(tx, draft)

    def append_record(self, tx: Tx, ref: str, signal: Signal) -> None:
        """Append a signal to ourselves, as a record for the archive only."""
        tx.append_event(
            Envelope(
                event_id=self._node.event_ids.next_id(),
                kind=EventKind.SIGNAL,
                source_agent_id=GATEWAY,
                to_node_id=self._node.id,
                ref_event_id=ref,
                payload=encode_payload(signal),
            )
        )

    def append_receipt(
        self, tx: Tx, by: str, source: str, ref: str, corr_id: str, receipt: Receipt
    ) -> Decisions:
        """Append a receipt for `source`; one for ourselves counts at once."""
        tx.append_event(self.draft_receipt(by, source, ref, corr_id, receipt))
        return (ReceiptArrived(source, ref, receipt),) if source == self._node.id else NOTHING

    def draft_receipt(
        self, by: str, source: str, ref: str, corr_id: str, receipt: Receipt
    ) -> Envelope:
        return Envelope(
            event_id=self._node.event_ids.next_id(),
            kind=EventKind.ACK,
            source_agent_id=by,
            to_node_id=source,
            corr_id=corr_id,
            ref_event_id=ref,
            payload=_ENCODED.get(receipt) or encode_payload(receipt),
        )
