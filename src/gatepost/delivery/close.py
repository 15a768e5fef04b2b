"""The fourth transaction, `close`: receipts and replies end the deliveries they are about.

A receipt counts only from the node its event is routed to. One that comes after the sender gave up
amends the end that the sender was told. A delivery that is given up is a dead letter for its
receiver, and its payload is kept as undelivered.
"""

from typing import Any

from gatepost.delivery import reroute
from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.decisions import (
    NOTHING,
    Decisions,
    DeliveryAccepted,
    DeliveryEnded,
    EndAmended,
    GiveUpDelivery,
    HoldReported,
    PairMoved,
    ReceiptArrived,
    ReplyArrived,
    RerouteDelivery,
    VerdictArrived,
)
from gatepost.delivery.delivery_states import (
    IS_UNACCEPTED,
    UNACCEPTED,
    DeliveryInput,
    update_delivery,
)
from gatepost.delivery.delivery_table import (
    EXPIRING,
    SINCE_RESTORE,
    OpenDelivery,
    find_delivery,
    is_unchanged,
    was_sent_to,
)
from gatepost.delivery.outbox_writer import RESTORED, draft_pair_closed
from gatepost.delivery.outgoing import EMPTY_PAYLOAD, SenderPair
from gatepost.delivery.parts import DeliveryParts
from gatepost.delivery.payloads import decrypt_own, find_first_event
from gatepost.delivery.undelivered_table import (
    UndeliveredMessage,
    keep_undelivered,
    said_by_event,
)
from gatepost.errors import GatepostError
from gatepost.events import (
    DeadLetterNotice,
    Envelope,
    EventKind,
    Receipt,
    Signal,
    encode_payload,
    format_event_id,
    parse_event_id,
)
from gatepost.events.reserved_names import GATEWAY
from gatepost.journal.facts import was_restored
from gatepost.journal.transaction import Row, Tx
from gatepost.routing import Route

_SELECT_KNOWN = "SELECT 1 FROM delivery WHERE event_id = ?"
# Incarnations without events are not recorded, so incarnations cannot be counted.
_FROM_ITS_NODE = "event_id = ? AND node = ?"
_ACCEPT = update_delivery(
    DeliveryInput.ACCEPT,
    "accepted_at = ?, next_at = max(?, not_before) + ?, reason = NULL",
    where=f"{_FROM_ITS_NODE} AND offer = coalesce(?, offer)",
    returning="offer, kind, emitted_at",
)
_PROCESS = update_delivery(
    DeliveryInput.PROCESS,
    "outcome = ?, reason = ?, processed_at = ?, next_at = NULL, content_key = NULL,"
    " accepted_at = coalesce(accepted_at, processed_at, ?)",
    where=_FROM_ITS_NODE,
    returning="from_agent, to_agent, origin_node, replies_to, kind, emitted_at",
)
_REPLY = update_delivery(
    DeliveryInput.REPLY,
    "outcome = 'ok', processed_at = ?, next_at = NULL, content_key = NULL, reply = ?,"
    " reply_ref = ?,"
    " accepted_at = coalesce(accepted_at, ?)",
    where=_FROM_ITS_NODE,
    returning="from_agent, to_agent, origin_node, replies_to, kind, emitted_at",
)
# Count attempts since the owner's last answer.
_NOTE_HELD = f"""
UPDATE delivery SET attempt = 1, reason = ?, next_at = min(?, expires_at)
WHERE {_FROM_ITS_NODE} AND {IS_UNACCEPTED} AND (reason IS NULL OR reason LIKE 'held: %')
"""
# A turn ends once: a later receipt does not replace the first. Later messages need not wait for the
# reply, because their turns follow this one.
_NOTE_TURN = """
UPDATE delivery SET verdict = 'processed: ok', pair_seq = 0
WHERE event_id = ? AND node = ? AND processed_at IS NULL RETURNING from_agent, to_agent, origin_node
"""
# The sender was not told of a turn. A turn that ended well is final.
_ENDED_WITHOUT_TURN = "(state = 'dead_letter' OR outcome NOT IN ('ok', 'kept'))"
_AMEND = update_delivery(
    DeliveryInput.AMEND,
    "outcome = ?1, reason = ?2, verdict = 'processed: ' || ?1, verdict_at = ?3, processed_at = ?3",
    where=f"event_id = ?4 AND node = ?5 AND {_ENDED_WITHOUT_TURN}"
    " AND (state = 'dead_letter' OR ?1 IN ('ok', 'kept'))",
    returning="kind, emitted_at",
)
_AMEND_REPLY = update_delivery(
    DeliveryInput.AMEND_REPLY,
    "outcome = 'ok', reason = NULL, verdict = 'processed: ok', verdict_at = ?1, processed_at = ?1,"
    " reply = ?2, reply_ref = ?3",
    where=f"event_id = ?4 AND node = ?5 AND {_ENDED_WITHOUT_TURN}",
    returning="kind, emitted_at",
)
_NOTE_VERDICT = """
UPDATE delivery SET verdict = ?1, verdict_at = ?2 WHERE event_id = ?3 AND node = ?4
    AND state = 'dead_letter' RETURNING kind, reason
"""
_AMEND_UNDELIVERED = """
UPDATE undelivered SET verdict = ?1, verdict_at = ?2 WHERE event_id = ?3 AND node = ?4
    AND coalesce(verdict, '') NOT LIKE 'processed:%'
"""
# A message that had its turn after all needs no replay.
_FORGET_UNDELIVERED = """
DELETE FROM undelivered WHERE event_id = ? AND node = ? AND replayed_as IS NULL
"""
_KEEP_LATE_REPLY = """
UPDATE delivery SET reply = ?, reply_ref = ? WHERE event_id = ? AND node = ?
    AND state = 'processed' AND reply IS NULL AND reply_ref IS NULL
"""
_SELECT_STATE = "SELECT state FROM delivery WHERE event_id = ? AND node = ?"
_IS_OPEN_ELSEWHERE = f"""
SELECT 1 FROM delivery
WHERE event_id = ? AND node IS NOT ? AND processed_at IS NULL AND {SINCE_RESTORE}
"""
_IS_ROUTED = "SELECT 1 FROM delivery WHERE event_id = ? AND node = ?"

# An event that waits for its blob is asked for again like one without an answer: asking makes its
# owner fetch the blob again, and a blob that cannot be fetched has to be given up.
_NOT_TO_BE_NOTED = ("blob",)

_GIVE_UP = update_delivery(
    DeliveryInput.GIVE_UP,
    "outcome = 'dead_letter', reason = ?, processed_at = ?, next_at = NULL, content_key = NULL",
    returning="replies_to",
)


# -- receipts and replies


def apply_receipt(parts: DeliveryParts, tx: Tx, arrived: ReceiptArrived) -> Decisions:
    source, ref, receipt = arrived
    if receipt.status == "accepted":
        return _accept_delivery(parts, tx, source, ref, receipt.offer)
    if receipt.status == "processed" and receipt.replied:
        return _wait_for_reply(parts, tx, source, ref)
    if receipt.status == "processed":
        return _end_delivery(parts, tx, source, ref, receipt)
    return _handle_refusal(parts, tx, source, ref, receipt.reason or "refused")


def apply_hold(parts: DeliveryParts, tx: Tx, reported: HoldReported) -> Decisions:
    """The owner holds an event: do not give it up before it expires, and ask rarely."""
    source, ref, why = reported
    if why not in _NOT_TO_BE_NOTED:
        due = tx.now + parts.policy.max_backoff
        tx.execute(_NOTE_HELD, (f"held: {why}"[:100], due, parse_event_id(ref), source))
        parts.deliveries.note_due(due)
    if _is_forgotten(parts, tx, parse_event_id(ref)):
        return parts.writer.append_signal(tx, source, ref, Signal(signal="forgotten"))
    return NOTHING


def _is_forgotten(parts: DeliveryParts, tx: Tx, event_id: bytes) -> bool:
    """Whether this journal was restored, and may have sent the event before the loss."""
    is_known = tx.fetch_one(_SELECT_KNOWN, (event_id,)) is not None
    return not is_known and was_restored(tx)


def apply_reply(parts: DeliveryParts, tx: Tx, arrived: ReplyArrived) -> Decisions:
    """End the delivery a reply answers; if it has ended otherwise, keep the reply beside it."""
    source, ref, reply = arrived
    id, kept = parse_event_id(ref), (None if reply.digest else reply.payload, reply.digest)
    row = tx.fetch_one(_REPLY, (tx.now, *kept, tx.now, id, source))
    if row is not None:
        return (_delivery_ended(parts, tx, ref, "ok", None, row),)
    amended = tx.fetch_one(_AMEND_REPLY, (tx.now, *kept, id, source))
    if amended is not None:
        return _amended(parts, tx, source, ref, "ok", None, amended)
    tx.execute(_KEEP_LATE_REPLY, (*kept, id, source))
    return NOTHING


def _accept_delivery(
    parts: DeliveryParts, tx: Tx, source: str, ref: str, offer: int | None = None
) -> Decisions:
    """Note the receipt `accepted`, unless it is for an earlier offer that was withdrawn."""
    id = parse_event_id(ref)
    sla = parts.policy.sla
    row = tx.fetch_one(_ACCEPT, (tx.now, tx.now, sla, id, source, offer))
    if row is None:
        return _note_verdict(parts, tx, id, source, "accepted")
    parts.deliveries.note_due(tx.now + sla)
    is_offer, kind, emitted = row
    accepted = DeliveryAccepted(ref, kind, tx.now - emitted)
    if not is_offer:
        return (accepted,)
    confirm = parts.writer.append_signal(tx, source, ref, Signal(signal="confirm"))
    return (*confirm, accepted)


def _wait_for_reply(parts: DeliveryParts, tx: Tx, source: str, ref: str) -> Decisions:
    """The turn has ended with a reply. That ends the delivery, now or when its blob is here.

    If the reply never comes, the owner says so when it is asked what became of the message.
    """
    row = tx.fetch_one(_SELECT_STATE, (parse_event_id(ref), source))
    state = row[0] if row else "dead_letter"
    if state in ("dead_letter", "processed"):
        return _amend_end(parts, tx, ref, source, "ok", None)
    accepted = _accept_delivery(parts, tx, source, ref) if state in UNACCEPTED else NOTHING
    pair = tx.fetch_one(_NOTE_TURN, (parse_event_id(ref), source))
    return accepted if pair is None else (*accepted, PairMoved(SenderPair(*pair)))


def _end_delivery(
    parts: DeliveryParts, tx: Tx, source: str, ref: str, receipt: Receipt
) -> Decisions:
    id = parse_event_id(ref)
    outcome, reason = receipt.outcome, receipt.reason
    row = tx.fetch_one(_PROCESS, (outcome, reason, tx.now, tx.now, id, source))
    if row is None:
        return _amend_end(parts, tx, ref, source, outcome or "ok", reason)
    return (_delivery_ended(parts, tx, ref, outcome or "ok", reason, row),)


def _delivery_ended(
    parts: DeliveryParts, tx: Tx, ref: str, outcome: str, reason: str | None, row: Row
) -> DeliveryEnded:
    *pair, replies_to, kind, emitted = row
    return DeliveryEnded(
        ref, SenderPair(*pair), outcome, reason, replies_to, kind, tx.now - emitted
    )


def _amend_end(
    parts: DeliveryParts, tx: Tx, ref: str, source: str, outcome: str, reason: str | None
) -> Decisions:
    """A turn ended after the sender gave the message up: that is its end now."""
    row = tx.fetch_one(_AMEND, (outcome, reason, tx.now, parse_event_id(ref), source))
    if row is None:
        return _note_verdict(parts, tx, parse_event_id(ref), source, f"processed: {outcome}")
    return _amended(parts, tx, source, ref, outcome, reason, row)


def _amended(
    parts: DeliveryParts, tx: Tx, source: str, ref: str, outcome: str, reason: str | None, row: Row
) -> Decisions:
    id, (kind, emitted) = parse_event_id(ref), row
    _amend_undelivered(parts, tx, id, source, f"processed: {outcome}")
    parts.writer.append_record(tx, ref, Signal(signal="amended", reason=f"processed: {outcome}"))
    return (EndAmended(ref, kind, outcome, reason, tx.now - emitted),)


def _amend_undelivered(parts: DeliveryParts, tx: Tx, id: bytes, source: str, verdict: str) -> bool:
    """Note a verdict beside an undelivered message; returns whether there is one."""
    if verdict in ("processed: ok", "processed: kept"):
        tx.execute(_FORGET_UNDELIVERED, (id, source))
    else:
        tx.execute(_AMEND_UNDELIVERED, (verdict, tx.now, id, source))
    return tx.changed_rows() > 0


def _note_verdict(parts: DeliveryParts, tx: Tx, id: bytes, source: str, verdict: str) -> Decisions:
    """Note a late receipt beside the dead letter that it is about, if there is one."""
    row = tx.fetch_one(_NOTE_VERDICT, (verdict, tx.now, id, source))
    is_amended = _amend_undelivered(parts, tx, id, source, verdict)
    if not (row or is_amended or tx.fetch_one(_IS_ROUTED, (id, source))):
        _ignore_receipt(parts, tx, id, source, verdict)
    if row is None or row[0] != EventKind.TASK_CREATE:
        return NOTHING
    kind, reason = row
    return (VerdictArrived(format_event_id(id), kind, reason, verdict),)


def _ignore_receipt(parts: DeliveryParts, tx: Tx, id: bytes, source: str, verdict: str) -> None:
    """A receipt may come too late, but never from a node that was not sent the message."""
    parts.counts.ignored_receipts += 1
    if tx.fetch_one(_IS_OPEN_ELSEWHERE, (id, source)) and not was_sent_to(tx, id, source):
        detail = f"a receipt ({verdict}) for {format_event_id(id)}, which went elsewhere"
        parts.abuse.report_abuse(source, AbuseKind.FORGED_RECEIPT, detail)


def _handle_refusal(parts: DeliveryParts, tx: Tx, source: str, ref: str, reason: str) -> Decisions:
    """Try another node after a refusal; give up a message that was accepted before."""
    found = find_delivery(tx, ref)
    if found is None:
        return _note_verdict(parts, tx, parse_event_id(ref), source, f"refused: {reason}")
    if found.node != source:
        _ignore_receipt(parts, tx, found.event_id, source, f"refused: {reason}")
        return NOTHING
    if found.state in ("processed", "replied"):
        parts.counts.ignored_receipts += 1
        return _close_number_again(parts, tx, found) if reason == RESTORED else NOTHING
    if found.state == "dead_letter":
        return _note_verdict(parts, tx, found.event_id, source, f"refused: {reason}")
    return _decide_refused(parts, tx, found, reason)


def _close_number_again(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> Decisions:
    """A restored owner asks about an event it had processed: that number never comes again."""
    signal = draft_pair_closed(found.pair, found.pair_seq)
    return parts.writer.append_signal(tx, found.node, None, signal)


def _decide_refused(parts: DeliveryParts, tx: Tx, found: OpenDelivery, reason: str) -> Decisions:
    source = found.node
    if reason == RESTORED:
        why = f"{source} was restored from a backup, and cannot say what it did"
        return (GiveUpDelivery(found, "owner_restored", why),)
    # The owner may drop an accepted offer before the confirmation comes.
    undecided = found.state in UNACCEPTED or (found.offer and reason == "expired")
    if not undecided:
        return (GiveUpDelivery(found, "owner_lost_it", f"{source}: {reason}"),)
    if found.reason == EXPIRING or reason == "expired":
        return (GiveUpDelivery(found, "expired", "it came too late", f"refused: {reason}"),)
    # A gateway's own messages are for this node alone; the service that sent them sends them again.
    is_own = found.from_agent == GATEWAY
    if reason == "resend" and not is_own and found.attempt < parts.policy.max_attempts:
        again = RerouteDelivery(found, Route(source, "retry", bool(found.offer)))
        return (again, PairMoved(found.pair))
    if reason == "moved" and not is_own:
        return reroute.follow_agent(parts, tx, found)
    return reroute.reroute_refused(parts, tx, found, frozenset({source}), reason)


# -- giving up


def give_up_delivery(parts: DeliveryParts, tx: Tx, decision: GiveUpDelivery) -> Decisions:
    delivery, reason, detail, verdict = decision
    if not is_unchanged(tx, delivery):
        return NOTHING
    # A gateway's own messages are sent again by the service that sent them, never replayed.
    is_own = delivery.from_agent == GATEWAY
    if not is_own:
        _keep_undelivered(parts, tx, delivery, reason, verdict)
    row = tx.fetch_one(_GIVE_UP, (reason, tx.now, delivery.event_id))
    replies_to = row[0] if row else "caller"
    own = parts.writer.append(tx, _draft_dead_letter(parts, delivery, reason, detail))
    if not is_own:
        parts.incidents.raise_(tx, "dead_letter", delivery.id, f"{reason}: {detail}")
    ended = DeliveryEnded(
        delivery.id,
        delivery.pair,
        "dead_letter",
        reason,
        replies_to,
        delivery.kind,
        None,
        verdict,
    )
    return (*own, ended)


def _draft_dead_letter(
    parts: DeliveryParts, delivery: OpenDelivery, reason: str, detail: str
) -> Envelope:
    letter = DeadLetterNotice(
        reason=reason, detail=detail, attempts=delivery.attempt, pair_seq=delivery.pair_seq
    )
    return Envelope(
        event_id=parts.node.event_ids.next_id(),
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
    parts: DeliveryParts, tx: Tx, delivery: OpenDelivery, reason: str, verdict: str | None
) -> None:
    """Keep the payload for a replay."""
    payload, said = EMPTY_PAYLOAD, dict[str, Any]()
    try:
        first = find_first_event(tx, delivery.event_id)
        said = said_by_event(first)
        payload = decrypt_own(parts.node, delivery, first)
    except GatepostError as error:
        parts.incidents.raise_(tx, "payload_lost", delivery.id, error.message)
    message = UndeliveredMessage(
        event_id=delivery.event_id,
        kind=delivery.kind,
        from_agent=delivery.from_agent,
        to_agent=delivery.to_agent,
        corr_id=delivery.corr_id,
        node=delivery.node,
        reason=reason,
        attempts=delivery.attempt,
        failed_at=tx.now,
        payload=payload,
        digest=delivery.digest,
        verdict=verdict,
        **said,
    )
    keep_undelivered(tx, message)
