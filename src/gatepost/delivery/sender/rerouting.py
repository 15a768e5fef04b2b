"""Re-routing deliveries: to a fallback, after a refusal, or to where the agent lives now."""

from gatepost.delivery.decisions import (
    NOTHING,
    Decision,
    Decisions,
    GiveUpDelivery,
    PairMoved,
    RerouteDelivery,
)
from gatepost.delivery.delivery_states import IS_UNACCEPTED, DeliveryInput, update_delivery
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.outgoing import SenderPair
from gatepost.delivery.retry_policy import RetryPolicy
from gatepost.delivery.routes import RouteFinder
from gatepost.delivery.sender.delivery_table import (
    DELIVERY_COLUMNS,
    HOMELESS,
    IS_PARKED,
    MOVED,
    DeliveryTable,
    OpenDelivery,
)
from gatepost.delivery.sender.drafts import draft_reroute
from gatepost.delivery.sender.emitting import accept_deadline
from gatepost.delivery.sender.pairs import SenderPairs
from gatepost.delivery.sender.payloads import PayloadEncryption, find_first_event
from gatepost.errors import GatepostError
from gatepost.events import Signal
from gatepost.journal.transaction import Tx
from gatepost.routing import RoutingDirectory

_REROUTE = update_delivery(
    DeliveryInput.REROUTE,
    "node = ?, offer = ?, routes = ?, attempt = ?, next_at = ?, content_key = ?, reason = NULL",
)
_PARK = update_delivery(DeliveryInput.TIMEOUT, "reason = ?, next_at = ?")
_UNPARK = f"""
UPDATE delivery SET next_at = ? WHERE processed_at IS NULL AND node = ? AND to_agent = ?
    AND {IS_PARKED}
"""
_SELECT_UNACCEPTED_OF_PAIR = f"""
SELECT {DELIVERY_COLUMNS} FROM delivery WHERE from_agent = ? AND to_agent = ?
    AND origin_node = ? AND processed_at IS NULL AND node = ? AND {IS_UNACCEPTED} ORDER BY pair_seq
"""
_SELECT_ACCEPTED_OF_PAIR = f"""
SELECT 1 FROM delivery WHERE from_agent = ? AND to_agent = ? AND origin_node = ?
    AND processed_at IS NULL AND node = ? AND NOT {IS_UNACCEPTED} AND pair_seq > 0 LIMIT 1
"""
_SELECT_OFFERS_AT = f"""
SELECT {DELIVERY_COLUMNS} FROM delivery WHERE processed_at IS NULL AND node = ? AND to_agent = ?
    AND offer AND {IS_UNACCEPTED} ORDER BY from_agent, origin_node, pair_seq
"""
_SELECT_WAITING_ROUTES = f"""
SELECT DISTINCT node, to_agent FROM delivery
WHERE processed_at IS NULL AND node IS NOT NULL AND {IS_UNACCEPTED}
"""
_SELECT_WAITING_PAIRS = f"""
SELECT DISTINCT from_agent, to_agent, origin_node FROM delivery
WHERE processed_at IS NULL AND node = ? AND to_agent = ? AND {IS_UNACCEPTED} AND offer
"""
_LOOK_SOONER = f"""
UPDATE delivery SET next_at = min(next_at, ?) WHERE processed_at IS NULL AND node = ?
    AND {IS_UNACCEPTED} AND next_at > ?
"""


class Rerouter:
    def __init__(
        self,
        node: LocalNode,
        policy: RetryPolicy,
        routes: RouteFinder,
        deliveries: DeliveryTable,
        pairs: SenderPairs,
        encryption: PayloadEncryption,
        writer: OutboxWriter,
    ) -> None:
        self._node = node
        self._policy = policy
        self._routes = routes
        self._deliveries = deliveries
        self._pairs = pairs
        self._encryption = encryption
        self._writer = writer

    def reroute_delivery(self, tx: Tx, decision: RerouteDelivery) -> Decisions:
        """Withdraw a delivery from its node, and send it whole to the node of its new route."""
        delivery, route = decision
        if not self._deliveries.is_unchanged(tx, delivery):
            return NOTHING
        decisions: list[Decision] = []
        if route.node != delivery.node:
            signal = Signal(signal="withdraw", pair_seq=delivery.pair_seq)
            decisions += self._writer.append_signal(tx, delivery.node, delivery.id, signal)
        first = find_first_event(tx, delivery.event_id)
        content = self._encryption.encrypt_again(tx, delivery, first, route.node)
        due = accept_deadline(tx, self._routes, self._policy, route.node, delivery.expires_at)
        routes = delivery.routes + 1
        offer = routes if route.offer else 0
        head, tail = (route.node, offer, routes), (content.key, delivery.event_id)
        tx.execute(_REROUTE, (*head, delivery.attempt + 1, due, *tail))
        self._deliveries.note_due(due)
        base = self._pairs.set_route(tx, delivery.pair, route.node, delivery.pair_seq)
        draft = draft_reroute(delivery, route, first, content, base, offer)
        decisions += self._writer.append(tx, draft)
        decisions.append(PairMoved(delivery.pair))
        return decisions

    def reroute_refused(
        self, tx: Tx, delivery: OpenDelivery, refused: frozenset[str], reason: str
    ) -> Decisions:
        """Send a refused delivery elsewhere, with everything unaccepted of its pair.

        A node that refuses one number has sent the receipts for those it accepted before, and lets
        no later number overtake; so the later ones go with it. Unordered deliveries go alone: the
        node may accept any other at any moment.
        """
        detail, verdict = f"{delivery.node}: {reason}", f"refused: {reason}"
        try:
            route = self._routes.find_route(tx, delivery.to_agent, refused)
        except GatepostError:
            return (GiveUpDelivery(delivery, "refused", detail, verdict),)
        return [
            GiveUpDelivery(each, "exhausted", detail, verdict)
            if each.attempt >= self._policy.max_attempts
            else RerouteDelivery(each, route)
            for each in self._unaccepted_with(tx, delivery)
        ]

    def follow_agent(self, tx: Tx, delivery: OpenDelivery) -> Decisions:
        """Send it to where its agent lives now, or wait until the room says where that is."""
        elsewhere = frozenset({delivery.node})
        exhausted = delivery.attempt >= self._policy.max_attempts
        if exhausted or self._has_route(tx, delivery.to_agent, elsewhere):
            return self.reroute_refused(tx, delivery, elsewhere, "moved")
        wait = self._policy.backoff(delivery.attempt, self._node.clock)
        due = min(tx.now + wait, delivery.expires_at)
        return self._park_delivery(tx, delivery, MOVED, due)

    def fall_back(self, tx: Tx, delivery: OpenDelivery) -> Decisions:
        """Route the pair of an offer to a fallback if its node is away."""
        if not delivery.offer or self._routes.is_online(delivery.node):
            return NOTHING
        return self._move_pair(tx, delivery.pair, delivery.node)

    def seek_home(self, tx: Tx, delivery: OpenDelivery) -> Decisions:
        """Send a delivery that its owner never got to another node, or wait until there is one."""
        try:
            route = self._routes.find_route(tx, delivery.to_agent, frozenset({delivery.node}))
        except GatepostError:
            return self._park_delivery(tx, delivery, HOMELESS, delivery.expires_at)
        return (RerouteDelivery(delivery, route),)

    def _park_delivery(self, tx: Tx, delivery: OpenDelivery, reason: str, due: int) -> Decisions:
        tx.execute(_PARK, (reason, due, delivery.event_id))
        self._deliveries.note_due(due)
        if delivery.pair_seq:
            self._pairs.note_parked(tx, delivery.pair)
        return NOTHING

    def room_changed(self, tx: Tx, before: RoutingDirectory) -> Decisions:
        """A member came, went or moved: deliveries to it may not have to wait any longer."""
        decisions: list[Decision] = []
        now = self._routes.directory
        for node, agent in tx.fetch_all(_SELECT_WAITING_ROUTES):
            if now.agents.get(agent) != before.agents.get(agent):
                tx.execute(_UNPARK, (tx.now, node, agent))
                self._deliveries.note_due(tx.now)
                decisions += self._move_offers(tx, node, agent)
            if not now.is_online(node):
                for row in tx.fetch_all(_SELECT_WAITING_PAIRS, (node, agent)):
                    decisions += self._move_pair(tx, SenderPair(*row), node)
            elif not before.is_online(node):
                soon = tx.now + self._policy.accept_timeout
                tx.execute(_LOOK_SOONER, (soon, node, soon))
                self._deliveries.note_due(soon)
        return decisions

    def _move_offers(self, tx: Tx, node: str, agent: str) -> Decisions:
        """Another node owns the agent now: send it the deliveries that `node` never began."""
        home = self._routes.directory.agents.get(agent)
        if home is None or home.owner in (None, node) or node in home.standbys:
            return NOTHING
        rows = tx.fetch_all(_SELECT_OFFERS_AT, (node, agent))
        return [move for row in rows for move in self.seek_home(tx, OpenDelivery(*row))]

    def _move_pair(self, tx: Tx, pair: SenderPair, node: str) -> Decisions:
        """Route the unaccepted deliveries of a pair to a fallback, unless `node` accepted one.

        That `node` accepted one keeps the ordered deliveries there, and no others.
        """
        try:
            route = self._routes.find_route(tx, pair.to_agent)
        except GatepostError:
            return NOTHING
        if route.node == node:
            return NOTHING
        waiting = self._unaccepted_of_pair(tx, pair, node)
        ordered = [delivery for delivery in waiting if delivery.pair_seq]
        # A delivery that is no offer may be accepted there at any moment.
        is_kept = not all(delivery.offer for delivery in ordered)
        if is_kept or tx.fetch_one(_SELECT_ACCEPTED_OF_PAIR, (*pair, node)):
            ordered = []
        free = [delivery for delivery in waiting if not delivery.pair_seq and delivery.offer]
        return [RerouteDelivery(delivery, route) for delivery in (*ordered, *free)]

    def _has_route(self, tx: Tx, agent: str, refused: frozenset[str]) -> bool:
        try:
            self._routes.find_route(tx, agent, refused)
        except GatepostError:
            return False
        return True

    def _unaccepted_with(self, tx: Tx, delivery: OpenDelivery) -> list[OpenDelivery]:
        """A delivery, with the other unaccepted ones of its pair if it is ordered."""
        if not delivery.pair_seq:
            return [delivery]
        found = self._unaccepted_of_pair(tx, delivery.pair, delivery.node)
        return [each for each in found if each.pair_seq]

    def _unaccepted_of_pair(self, tx: Tx, pair: SenderPair, node: str) -> list[OpenDelivery]:
        rows = tx.fetch_all(_SELECT_UNACCEPTED_OF_PAIR, (*pair, node))
        return [OpenDelivery(*row) for row in rows]
