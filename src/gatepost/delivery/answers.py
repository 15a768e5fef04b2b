"""Receipts for an event that comes again, or whose sender asks about its state."""

from typing import Any

from gatepost.delivery.decisions import NOTHING, Decisions
from gatepost.delivery.delivery_reads import is_open
from gatepost.delivery.forward import forward_outcome
from gatepost.delivery.inbox.inbox_states import InboxState
from gatepost.delivery.inbox.inbox_table import InboxRow, find_row
from gatepost.delivery.outbox_writer import KEPT, RESTORED, OutboxWriter, draft_acceptance
from gatepost.events import Envelope, Receipt, Signal, parse_event_id
from gatepost.events.reserved_names import GATEWAY
from gatepost.journal.outbox_reads import replies_to
from gatepost.journal.transaction import Tx
from gatepost.mailbox import MailState
from gatepost.mailbox.lookup import find_mail

# The most replies to one event that are checked. An honest gateway sends one.
_MAX_REPLIES = 200
_OUTCOMES = {
    MailState.ACKED: "ok",
    MailState.DEAD_LETTER: "dead_letter",
    MailState.EXPIRED: "expired",
}


def repeat_receipts(
    writer: OutboxWriter, tx: Tx, source: str, envelope: Envelope, state: InboxState
) -> Decisions:
    """Send the receipts of an event that comes again."""
    mailbox, id = envelope.to_agent_id or "", envelope.event_id
    corr_id = envelope.corr_id or id
    if state is InboxState.RESTORED:
        refused = Receipt(status="refused", reason=RESTORED)
        return _append_receipt(writer, tx, source, mailbox, id, corr_id, refused)
    if state in (InboxState.OFFERED, InboxState.ACCEPTED):
        receipt = draft_acceptance(envelope.offer)
        accepted = _append_receipt(writer, tx, source, mailbox, id, corr_id, receipt)
        if state is InboxState.OFFERED:
            return accepted
        return (*accepted, *report_outcome(writer, tx, source, mailbox, id, corr_id))
    return NOTHING


def answer_status_request(
    writer: OutboxWriter, tx: Tx, source: str, ref: str, corr_id: str, row: InboxRow | None
) -> Decisions:
    """Tell the sender what became of an event; nothing while it is not decided."""
    if row is None:
        unknown = Receipt(status="refused", reason="unknown: it is not in this journal")
        return _append_receipt(writer, tx, source, GATEWAY, ref, ref, unknown)
    if row.state is InboxState.ACCEPTED:
        return report_outcome(writer, tx, source, row.mailbox, ref, corr_id)
    if row.state in (InboxState.HELD, InboxState.OFFERED):
        return NOTHING
    reasons = {InboxState.REFUSED: row.reason, InboxState.RESTORED: RESTORED}
    refused = Receipt(status="refused", reason=reasons.get(row.state) or "withdrawn")
    return _append_receipt(writer, tx, source, row.mailbox, ref, ref, refused)


def report_outcome(
    writer: OutboxWriter, tx: Tx, source: str, mailbox: str, event_id: str, corr_id: str
) -> Decisions:
    """The `processed` receipt, if the turn has ended, here or where it was forwarded to."""
    outcome, reason = _find_outcome(tx, source, mailbox, event_id)
    if outcome is None:
        return NOTHING
    # A reply that is still under way ends the delivery of the message it answers.
    replies = replies_to(tx, parse_event_id(event_id), _MAX_REPLIES)
    replied = any(is_open(tx, reply) for reply in replies)
    processed = Receipt(status="processed", outcome=outcome, reason=reason or None, replied=replied)
    return _append_receipt(writer, tx, source, mailbox, event_id, corr_id, processed)


def report_hold(writer: OutboxWriter, tx: Tx, source: str, event_id: str, why: str) -> Decisions:
    """Tell the sender that its event is here, and why it cannot be accepted yet."""
    signal = Signal(signal="held", reason=why)
    return writer.append_signal(tx, source, event_id, signal)


def report_refusal(
    writer: OutboxWriter,
    tx: Tx,
    source: str,
    mailbox: str,
    event_id: str,
    corr_id: str,
    reason: str,
) -> Decisions:
    refused = Receipt(status="refused", reason=reason)
    return _append_receipt(writer, tx, source, mailbox, event_id, corr_id, refused)


def _find_outcome(tx: Tx, source: str, mailbox: str, event_id: str) -> tuple[Any, str | None]:
    id = parse_event_id(event_id)
    forwarded = forward_outcome(tx, source, id)
    if forwarded is not None:
        return forwarded
    mail = find_mail(tx, mailbox, event_id)
    if mail is not None:
        return _OUTCOMES.get(mail.state), mail.reason
    taken = find_row(tx, source, id)
    is_kept = taken is not None and taken.reason == KEPT.outcome
    return (KEPT.outcome if is_kept else None), None


def _append_receipt(
    writer: OutboxWriter, tx: Tx, source: str, by: str, ref: str, corr_id: str, receipt: Receipt
) -> Decisions:
    return writer.append_receipt(tx, by or GATEWAY, source, ref, corr_id, receipt)
