"""The timers of deliveries: retry, fall back, expire, give up, and report a breached SLA."""

from collections.abc import Iterator

from gatepost.delivery import reroute
from gatepost.delivery.decisions import NOTHING, Decisions, GiveUpDelivery, ReceiptArrived
from gatepost.delivery.delivery_states import (
    UNACCEPTED,
    DeliveryInput,
    DeliveryState,
    update_delivery,
)
from gatepost.delivery.delivery_table import (
    DELIVERY_COLUMNS,
    EXPIRING,
    HOMELESS,
    MOVED,
    NEVER_SENT,
    OpenDelivery,
    is_unchanged,
    may_have_been_sent,
)
from gatepost.delivery.parts import DeliveryParts
from gatepost.events import Envelope, Receipt, Signal, Trace
from gatepost.events.reserved_names import GATEWAY
from gatepost.journal.transaction import Tx

_DUE_AT_ONCE = 500

_SELECT_DUE = f"""
SELECT {DELIVERY_COLUMNS} FROM delivery WHERE next_at <= ? ORDER BY next_at LIMIT {_DUE_AT_ONCE}
"""
_SELECT_FIRST_OPEN = """
SELECT state FROM delivery WHERE from_agent = ? AND to_agent = ? AND origin_node = ?
    AND processed_at IS NULL ORDER BY pair_seq LIMIT 1
"""
_SELECT_NEXT_DUE = "SELECT min(next_at) FROM delivery WHERE next_at IS NOT NULL"
# A delivery that waits until it expires does so by the time of day, so it is left alone; and the
# time to process an accepted one begins when it is due.
_CAP_DEADLINE = """
UPDATE delivery SET next_at = max(?1, iif(accepted_at IS NULL, 0, not_before + ?3))
WHERE next_at > max(?1, iif(accepted_at IS NULL, 0, not_before + ?3))
    AND next_at < expires_at AND state = ?2
"""
_POSTPONE = "UPDATE delivery SET next_at = ? WHERE event_id = ?"
_AWAIT_VERDICT = update_delivery(DeliveryInput.TIMEOUT, f"reason = '{EXPIRING}', next_at = ?")
_CAP_VERDICT_WAIT = f"""
UPDATE delivery SET next_at = ?1 WHERE next_at > ?1 AND processed_at IS NULL
    AND reason = '{EXPIRING}'
"""
# The owner reported a turn with a reply, and the reply has not come.
_SELECT_TURN_ENDED = "SELECT 1 FROM delivery WHERE event_id = ? AND verdict = 'processed: ok'"
_TIMEOUT = update_delivery(DeliveryInput.TIMEOUT, "next_at = ?")
_RETRY = update_delivery(DeliveryInput.RETRY, "attempt = ?, next_at = ?")
_BREACH = update_delivery(DeliveryInput.BREACH, "next_at = ?")


def run_due(parts: DeliveryParts, tx: Tx) -> Iterator[Decisions]:
    """Handle each delivery that is due.

    The decisions about one must be applied before the next is looked at: they may change it.
    """
    if parts.deliveries.previous_now is None or tx.now < parts.deliveries.previous_now:
        _cap_deadlines(parts, tx)
    parts.deliveries.previous_now = tx.now
    due = parts.deliveries.next_due
    if due is None or tx.now < due:
        return
    for row in tx.fetch_all(_SELECT_DUE, (tx.now,)):
        if is_unchanged(tx, row):
            yield _look_at_delivery(parts, tx, OpenDelivery(*row))
    ((parts.deliveries.next_due,),) = tx.fetch_all(_SELECT_NEXT_DUE)


def _cap_deadlines(parts: DeliveryParts, tx: Tx) -> None:
    """After the clock went back, cap each deadline at now + its maximum."""
    for state, longest in parts.policy.longest_waits().items():
        tx.execute(_CAP_DEADLINE, (tx.now + longest, state, longest))
    tx.execute(_CAP_VERDICT_WAIT, (tx.now + parts.policy.verdict_wait,))
    parts.deliveries.next_due = 0


def _look_at_delivery(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> Decisions:
    if found.state not in UNACCEPTED:
        return _abandon(parts, tx, found) or _report_breach(parts, tx, found)
    if found.reason == EXPIRING or tx.now >= found.expires_at:
        return _expire(parts, tx, found)
    if found.reason == HOMELESS:
        return reroute.seek_home(parts, tx, found)
    if found.reason == MOVED:
        return reroute.reroute_refused(parts, tx, found, frozenset(), "moved")
    if moves := reroute.fall_back(parts, tx, found):
        return moves
    return _wait_or_retry(parts, tx, found)


def _expire(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> Decisions:
    """Give up an expired delivery, after its owner had time to report that it has it."""
    detail = "nobody accepted it in time"
    if not may_have_been_sent(tx, found):
        return (GiveUpDelivery(found, "expired", detail, NEVER_SENT),)
    until = found.expires_at + parts.policy.verdict_wait
    if tx.now >= until:
        return (GiveUpDelivery(found, "expired", detail),)
    tx.execute(_AWAIT_VERDICT, (until, found.event_id))
    if found.reason == EXPIRING:
        return NOTHING
    return parts.writer.append_signal(tx, found.node, found.id, Signal(signal="expire"))


def _wait_or_retry(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> Decisions:
    if not parts.routes.is_online(found.node):
        tx.execute(_POSTPONE, (found.expires_at, found.event_id))
    elif parts.pairs.waits_for_others(tx, found.pair, found.node, found.pair_seq):
        later = tx.now + parts.policy.accept_timeout
        tx.execute(_POSTPONE, (min(later, found.expires_at), found.event_id))
    elif found.attempt >= parts.policy.max_attempts:
        return (GiveUpDelivery(found, "exhausted", f"{found.node} never answered"),)
    elif found.state == "emitted":
        wait = parts.policy.backoff(found.attempt, parts.node.clock)
        tx.execute(_TIMEOUT, (min(tx.now + wait, found.expires_at), found.event_id))
    else:
        return _retry_delivery(parts, tx, found)
    return NOTHING


def _retry_delivery(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> Decisions:
    due = min(tx.now + parts.policy.accept_timeout, found.expires_at)
    tx.execute(_RETRY, (found.attempt + 1, due, found.event_id))
    parts.counts.retries += 1
    return parts.writer.append(tx, draft_retry(found))


def _abandon(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> Decisions:
    """Give up a delivery whose owner never reported its end. A mailbox of ours always does."""
    if found.node == parts.node.id or tx.now < _last_deadline(parts, found):
        return NOTHING
    if tx.fetch_one(_SELECT_TURN_ENDED, (found.event_id,)):
        receipt = Receipt(status="processed", outcome="ok", reason="its reply never came")
        return (ReceiptArrived(found.node, found.id, receipt),)
    detail = f"{found.node} never said how it ended"
    return (GiveUpDelivery(found, "abandoned", detail, found.known_verdict),)


def _last_deadline(parts: DeliveryParts, found: OpenDelivery) -> int:
    """Its owner may hold it until it expires, however long that is."""
    return max((found.accepted_at or 0) + parts.policy.abandon_after, found.expires_at)


def _begins_breach(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> bool:
    """Whether this is the first late message of its pair; the first open one is late first."""
    row = tx.fetch_one(_SELECT_FIRST_OPEN, found.pair)
    return row is None or row[0] != DeliveryState.INCIDENT


def _report_breach(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> Decisions:
    """A message was accepted but not processed in time: raise an incident and ask the owner."""
    due = tx.now + parts.policy.sla
    if found.node != parts.node.id:
        due = min(due, _last_deadline(parts, found))
    # No caller waits for the gateway's own requests to agents, such as to install a skill.
    if found.from_agent != GATEWAY and _begins_breach(parts, tx, found):
        detail = f"{found.node} accepted {found.id} and has not processed it in time"
        subject = f"{found.from_agent}/{found.to_agent}@{tx.now}"
        parts.incidents.raise_(tx, "sla_breach", subject, detail)
    tx.execute(_BREACH, (due, found.event_id))
    if found.node == parts.node.id:
        return NOTHING
    question = Signal(signal="status_request")
    return parts.writer.append_signal(tx, found.node, found.id, question)


def draft_retry(delivery: OpenDelivery) -> Envelope:
    """The same event again without its payload, which is in the outbox already."""
    return Envelope(
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
