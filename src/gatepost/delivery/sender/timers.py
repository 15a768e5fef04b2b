"""The timers of deliveries: retry, fall back, expire, give up, and report a breached SLA."""

from collections.abc import Iterator

from gatepost.delivery.decisions import NOTHING, Decisions, GiveUpDelivery, ReceiptArrived
from gatepost.delivery.delivery_states import (
    UNACCEPTED,
    DeliveryInput,
    DeliveryState,
    update_delivery,
)
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.retry_policy import RetryPolicy
from gatepost.delivery.routes import RouteFinder
from gatepost.delivery.sender.delivery_table import (
    DELIVERY_COLUMNS,
    EXPIRING,
    HOMELESS,
    MOVED,
    DeliveryTable,
    OpenDelivery,
    may_have_been_sent,
)
from gatepost.delivery.sender.drafts import draft_retry
from gatepost.delivery.sender.emitting import NEVER_SENT
from gatepost.delivery.sender.pairs import SenderPairs
from gatepost.delivery.sender.rerouting import Rerouter
from gatepost.events import Receipt, Signal
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
# Its owner has said that the turn ended with a reply, which has not come.
_SELECT_TURN_ENDED = "SELECT 1 FROM delivery WHERE event_id = ? AND verdict = 'processed: ok'"
_TIMEOUT = update_delivery(DeliveryInput.TIMEOUT, "next_at = ?")
_RETRY = update_delivery(DeliveryInput.RETRY, "attempt = ?, next_at = ?")
_BREACH = update_delivery(DeliveryInput.BREACH, "next_at = ?")


class DeliveryTimers:
    """`retries` counts the messages sent again because no receipt came."""

    def __init__(
        self,
        node: LocalNode,
        policy: RetryPolicy,
        routes: RouteFinder,
        deliveries: DeliveryTable,
        pairs: SenderPairs,
        rerouter: Rerouter,
        writer: OutboxWriter,
        incidents: IncidentLog,
    ) -> None:
        self._node = node
        self._policy = policy
        self._routes = routes
        self._deliveries = deliveries
        self._pairs = pairs
        self._rerouter = rerouter
        self._writer = writer
        self._incidents = incidents
        # The clock in the group before.
        self._last_now: int | None = None
        self.retries = 0

    def run_due(self, tx: Tx) -> Iterator[Decisions]:
        """Look at each delivery whose time has come.

        The decisions about one must be applied before the next is looked at: they may change it.
        """
        if self._last_now is None or tx.now < self._last_now:
            self._cap_deadlines(tx)
        self._last_now = tx.now
        due = self._deliveries.next_due
        if due is None or tx.now < due:
            return
        for row in tx.fetch_all(_SELECT_DUE, (tx.now,)):
            if self._deliveries.is_unchanged(tx, row):
                yield self._look_at_delivery(tx, OpenDelivery(*row))
        ((self._deliveries.next_due,),) = tx.fetch_all(_SELECT_NEXT_DUE)

    def forget_due(self) -> None:
        """Look at the journal again: the group whose deadlines we remember was rolled back."""
        self._deliveries.next_due = 0
        self._last_now = None

    def _cap_deadlines(self, tx: Tx) -> None:
        """The clock may have gone back: cap each deadline at now + its maximum."""
        for state, longest in self._policy.longest_waits().items():
            tx.execute(_CAP_DEADLINE, (tx.now + longest, state, longest))
        tx.execute(_CAP_VERDICT_WAIT, (tx.now + self._policy.verdict_wait,))
        self._deliveries.next_due = 0

    def _look_at_delivery(self, tx: Tx, found: OpenDelivery) -> Decisions:
        if found.state not in UNACCEPTED:
            return self._abandon(tx, found) or self._report_breach(tx, found)
        if found.reason == EXPIRING or tx.now >= found.expires_at:
            return self._expire(tx, found)
        if found.reason == HOMELESS:
            return self._rerouter.seek_home(tx, found)
        if found.reason == MOVED:
            return self._rerouter.reroute_refused(tx, found, frozenset(), "moved")
        if moves := self._rerouter.fall_back(tx, found):
            return moves
        return self._wait_or_retry(tx, found)

    def _expire(self, tx: Tx, found: OpenDelivery) -> Decisions:
        """Give up a delivery that expired, once its owner had time to say that it has it."""
        detail = "nobody accepted it in time"
        if not may_have_been_sent(tx, found):
            return (GiveUpDelivery(found, "expired", detail, NEVER_SENT),)
        until = found.expires_at + self._policy.verdict_wait
        if tx.now >= until:
            return (GiveUpDelivery(found, "expired", detail),)
        tx.execute(_AWAIT_VERDICT, (until, found.event_id))
        if found.reason == EXPIRING:
            return NOTHING
        return self._writer.append_signal(tx, found.node, found.id, Signal(signal="expire"))

    def _wait_or_retry(self, tx: Tx, found: OpenDelivery) -> Decisions:
        if not self._routes.is_online(found.node):
            tx.execute(_POSTPONE, (found.expires_at, found.event_id))
        elif self._pairs.waits_for_others(tx, found.pair, found.node, found.pair_seq):
            later = tx.now + self._policy.accept_timeout
            tx.execute(_POSTPONE, (min(later, found.expires_at), found.event_id))
        elif found.attempt >= self._policy.max_attempts:
            return (GiveUpDelivery(found, "exhausted", f"{found.node} never answered"),)
        elif found.state == "emitted":
            wait = self._policy.backoff(found.attempt, self._node.clock)
            tx.execute(_TIMEOUT, (min(tx.now + wait, found.expires_at), found.event_id))
        else:
            return self._retry_delivery(tx, found)
        return NOTHING

    def _retry_delivery(self, tx: Tx, found: OpenDelivery) -> Decisions:
        due = min(tx.now + self._policy.accept_timeout, found.expires_at)
        tx.execute(_RETRY, (found.attempt + 1, due, found.event_id))
        self.retries += 1
        return self._writer.append(tx, draft_retry(found))

    def _abandon(self, tx: Tx, found: OpenDelivery) -> Decisions:
        """Give up a delivery whose owner never reported its end. A mailbox of ours always does."""
        if found.node == self._node.id or tx.now < self._last_deadline(found):
            return NOTHING
        if tx.fetch_one(_SELECT_TURN_ENDED, (found.event_id,)):
            receipt = Receipt(status="processed", outcome="ok", reason="its reply never came")
            return (ReceiptArrived(found.node, found.id, receipt),)
        detail = f"{found.node} never said how it ended"
        return (GiveUpDelivery(found, "abandoned", detail, found.known_verdict),)

    def _last_deadline(self, found: OpenDelivery) -> int:
        """Its owner may hold it until it expires, however long that is."""
        return max((found.accepted_at or 0) + self._policy.abandon_after, found.expires_at)

    def _begins_breach(self, tx: Tx, found: OpenDelivery) -> bool:
        """Whether no message of the pair is late yet. The first open one is late first."""
        row = tx.fetch_one(_SELECT_FIRST_OPEN, found.pair)
        return row is None or row[0] != DeliveryState.INCIDENT

    def _report_breach(self, tx: Tx, found: OpenDelivery) -> Decisions:
        """Accepted and not processed in time: an incident, and a question to the owner."""
        due = tx.now + self._policy.sla
        if found.node != self._node.id:
            due = min(due, self._last_deadline(found))
        if self._begins_breach(tx, found):
            detail = f"{found.node} accepted {found.id} and has not processed it in time"
            subject = f"{found.from_agent}/{found.to_agent}@{tx.now}"
            self._incidents.raise_(tx, "sla_breach", subject, detail)
        tx.execute(_BREACH, (due, found.event_id))
        if found.node == self._node.id:
            return NOTHING
        question = Signal(signal="status_request")
        return self._writer.append_signal(tx, found.node, found.id, question)
