"""Receipts and replies, matched to the deliveries they are about.

A receipt counts only from the node its event is routed to. One that comes after the sender gave up
amends the dead letter and changes nothing else.
"""

from gatepost.delivery.abuse import AbuseKind, AbuseLog
from gatepost.delivery.decisions import (
    NOTHING,
    Decisions,
    DeliveryAccepted,
    DeliveryEnded,
    GiveUpDelivery,
    HoldReported,
    PairMoved,
    ReceiptArrived,
    ReplyArrived,
    RerouteDelivery,
)
from gatepost.delivery.delivery_states import (
    IS_UNACCEPTED,
    UNACCEPTED,
    DeliveryInput,
    update_delivery,
)
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.outgoing import SenderPair
from gatepost.delivery.retry_policy import RetryPolicy
from gatepost.delivery.sender.delivery_table import (
    EXPIRING,
    SINCE_RESTORE,
    DeliveryTable,
    OpenDelivery,
    was_sent_to,
)
from gatepost.delivery.sender.recovery import draft_pair_closed
from gatepost.delivery.sender.rerouting import Rerouter
from gatepost.events import Receipt, Signal, format_event_id, parse_event_id
from gatepost.journal.transaction import Row, Tx
from gatepost.routing import Route

_SELECT_KNOWN = "SELECT 1 FROM delivery WHERE event_id = ?"
# An incarnation without events leaves no trace, so that counting them would not do.
_SELECT_RESTORED = "SELECT 1 FROM fact WHERE name = 'restored_at'"
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
# Attempts are counted from the last answer of the owner.
_NOTE_HELD = f"""
UPDATE delivery SET attempt = 1, reason = ?, next_at = min(?, expires_at)
WHERE {_FROM_ITS_NODE} AND {IS_UNACCEPTED} AND (reason IS NULL OR reason LIKE 'held: %')
"""
# The receipt that a turn has ended is the last; a later one does not replace it.
# Later messages need not wait for the reply: their turns come behind this one.
_NOTE_TURN = """
UPDATE delivery SET verdict = 'processed: ok', pair_seq = 0
WHERE event_id = ? AND node = ? AND processed_at IS NULL RETURNING from_agent, to_agent, origin_node
"""
_AMEND_DELIVERY = """
UPDATE delivery SET verdict = ?1, verdict_at = ?2 WHERE event_id = ?3 AND node = ?4
    AND state = 'dead_letter' AND coalesce(verdict, '') NOT LIKE 'processed:%'
"""
_AMEND_UNDELIVERED = """
UPDATE undelivered SET verdict = ?1, verdict_at = ?2 WHERE event_id = ?3 AND node = ?4
    AND coalesce(verdict, '') NOT LIKE 'processed:%'
"""
_KEEP_LATE_REPLY = """
UPDATE delivery SET reply = ?, reply_ref = ? WHERE event_id = ? AND node = ?
    AND state IN ('processed', 'dead_letter') AND reply IS NULL AND reply_ref IS NULL
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

# The refusal of a gateway that was restored from a backup: it may have dealt with the event.
RESTORED = "restored from a backup"


class ReceiptHandler:
    """`ignored` counts the receipts that did not count."""

    def __init__(
        self,
        policy: RetryPolicy,
        deliveries: DeliveryTable,
        rerouter: Rerouter,
        abuse: AbuseLog,
        writer: OutboxWriter,
    ) -> None:
        self._policy = policy
        self._deliveries = deliveries
        self._rerouter = rerouter
        self._abuse = abuse
        self._writer = writer
        self.ignored = 0

    def apply_receipt(self, tx: Tx, arrived: ReceiptArrived) -> Decisions:
        source, ref, receipt = arrived
        if receipt.status == "accepted":
            return self._accept_delivery(tx, source, ref, receipt.offer)
        if receipt.status == "processed" and receipt.replied:
            return self._wait_for_reply(tx, source, ref)
        if receipt.status == "processed":
            return self._end_delivery(tx, source, ref, receipt)
        return self._handle_refusal(tx, source, ref, receipt.reason or "refused")

    def apply_hold(self, tx: Tx, reported: HoldReported) -> Decisions:
        """The owner holds an event: it is not given up before it expires, and seldom asked for."""
        source, ref, why = reported
        if why not in _NOT_TO_BE_NOTED:
            due = tx.now + self._policy.max_backoff
            tx.execute(_NOTE_HELD, (f"held: {why}"[:100], due, parse_event_id(ref), source))
            self._deliveries.note_due(due)
        if self._is_forgotten(tx, parse_event_id(ref)):
            return self._writer.append_signal(tx, source, ref, Signal(signal="forgotten"))
        return NOTHING

    def _is_forgotten(self, tx: Tx, event_id: bytes) -> bool:
        """Whether this journal was restored, and may have sent the event before it was lost."""
        is_known = tx.fetch_one(_SELECT_KNOWN, (event_id,)) is not None
        return not is_known and tx.fetch_one(_SELECT_RESTORED) is not None

    def apply_reply(self, tx: Tx, arrived: ReplyArrived) -> Decisions:
        """End the delivery a reply answers; if it has ended otherwise, keep the reply beside it."""
        source, ref, reply = arrived
        id, kept = parse_event_id(ref), (None if reply.digest else reply.payload, reply.digest)
        row = tx.fetch_one(_REPLY, (tx.now, *kept, tx.now, id, source))
        if row is None:
            tx.execute(_KEEP_LATE_REPLY, (*kept, id, source))
            return NOTHING
        return (self._delivery_ended(tx, ref, "ok", None, row),)

    def _accept_delivery(
        self, tx: Tx, source: str, ref: str, offer: int | None = None
    ) -> Decisions:
        """A node may have accepted an earlier offer, which was withdrawn: that does not count."""
        id = parse_event_id(ref)
        sla = self._policy.sla
        row = tx.fetch_one(_ACCEPT, (tx.now, tx.now, sla, id, source, offer))
        if row is None:
            return self._amend_dead_letter(tx, id, source, "accepted")
        self._deliveries.note_due(tx.now + sla)
        is_offer, kind, emitted = row
        accepted = DeliveryAccepted(ref, kind, tx.now - emitted)
        if not is_offer:
            return (accepted,)
        confirm = self._writer.append_signal(tx, source, ref, Signal(signal="confirm"))
        return (*confirm, accepted)

    def _wait_for_reply(self, tx: Tx, source: str, ref: str) -> Decisions:
        """The turn has ended with a reply. That ends the delivery, now or when its blob is here.

        If the reply never comes, the owner says so when it is asked what became of the message.
        """
        row = tx.fetch_one(_SELECT_STATE, (parse_event_id(ref), source))
        state = row[0] if row else "dead_letter"
        if state == "dead_letter":
            return self._amend_dead_letter(tx, parse_event_id(ref), source, "processed: ok")
        accepted = self._accept_delivery(tx, source, ref) if state in UNACCEPTED else NOTHING
        pair = tx.fetch_one(_NOTE_TURN, (parse_event_id(ref), source))
        return accepted if pair is None else (*accepted, PairMoved(SenderPair(*pair)))

    def _end_delivery(self, tx: Tx, source: str, ref: str, receipt: Receipt) -> Decisions:
        id = parse_event_id(ref)
        outcome, reason = receipt.outcome, receipt.reason
        row = tx.fetch_one(_PROCESS, (outcome, reason, tx.now, tx.now, id, source))
        if row is None:
            return self._amend_dead_letter(tx, id, source, f"processed: {outcome}")
        return (self._delivery_ended(tx, ref, outcome or "ok", reason, row),)

    def _delivery_ended(
        self, tx: Tx, ref: str, outcome: str, reason: str | None, row: Row
    ) -> DeliveryEnded:
        *pair, replies_to, kind, emitted = row
        return DeliveryEnded(
            ref, SenderPair(*pair), outcome, reason, replies_to, kind, tx.now - emitted
        )

    def _amend_dead_letter(self, tx: Tx, id: bytes, source: str, verdict: str) -> Decisions:
        """Amend a dead letter with a late receipt, if it is about one."""
        tx.execute(_AMEND_DELIVERY, (verdict, tx.now, id, source))
        amended = tx.changed_rows()
        tx.execute(_AMEND_UNDELIVERED, (verdict, tx.now, id, source))
        if not (amended or tx.changed_rows() or tx.fetch_one(_IS_ROUTED, (id, source))):
            self._ignore_receipt(tx, id, source, verdict)
        return NOTHING

    def _ignore_receipt(self, tx: Tx, id: bytes, source: str, verdict: str) -> None:
        """A receipt may come too late, but never from a node that was not sent the message."""
        self.ignored += 1
        if tx.fetch_one(_IS_OPEN_ELSEWHERE, (id, source)) and not was_sent_to(tx, id, source):
            detail = f"a receipt ({verdict}) for {format_event_id(id)}, which went elsewhere"
            self._abuse.report_abuse(source, AbuseKind.FORGED_RECEIPT, detail)

    def _handle_refusal(self, tx: Tx, source: str, ref: str, reason: str) -> Decisions:
        """Another node may take it; one that was accepted before is lost and given up."""
        found = self._deliveries.find(tx, ref)
        if found is None:
            return self._amend_dead_letter(tx, parse_event_id(ref), source, f"refused: {reason}")
        if found.node != source:
            self._ignore_receipt(tx, found.event_id, source, f"refused: {reason}")
            return NOTHING
        if found.state in ("processed", "replied"):
            self.ignored += 1
            return self._close_number_again(tx, found) if reason == RESTORED else NOTHING
        if found.state == "dead_letter":
            return self._amend_dead_letter(tx, found.event_id, source, f"refused: {reason}")
        return self._decide_refused(tx, found, reason)

    def _close_number_again(self, tx: Tx, found: OpenDelivery) -> Decisions:
        """A restored owner asks about an event it had processed: that number never comes again."""
        signal = draft_pair_closed(found.pair, found.pair_seq)
        return self._writer.append_signal(tx, found.node, None, signal)

    def _decide_refused(self, tx: Tx, found: OpenDelivery, reason: str) -> Decisions:
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
        if reason == "resend" and found.attempt < self._policy.max_attempts:
            return (RerouteDelivery(found, Route(source, "retry", bool(found.offer))),)
        if reason == "moved":
            return self._rerouter.follow_agent(tx, found)
        return self._rerouter.reroute_refused(tx, found, frozenset({source}), reason)
