"""Emitting events for other gateways: each is appended to the outbox and opens a delivery."""

from msgspec.structs import replace

from gatepost.delivery.decisions import NOTHING, Decisions, GiveUpDelivery
from gatepost.delivery.delivery_states import DeliveryState
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.outbox_writer import OutboxWriter
from gatepost.delivery.outgoing import OutgoingEvent
from gatepost.delivery.retry_policy import RetryPolicy
from gatepost.delivery.routes import RouteFinder
from gatepost.delivery.sender.delivery_table import DeliveryTable
from gatepost.delivery.sender.drafts import UNNUMBERED, draft_event
from gatepost.delivery.sender.pairs import PairNumber, SenderPairs
from gatepost.delivery.sender.payloads import EncryptedContent, PayloadEncryption
from gatepost.events import EventKind, Trace
from gatepost.journal.transaction import Tx
from gatepost.routing import Route

# What is known of the owner of a message that was given up before it was sent.
NEVER_SENT = "never sent"

_RELEASE_NUMBER = "UPDATE delivery SET pair_seq = 0 WHERE event_id = ?"


class Emitter:
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

    def emit_event(self, tx: Tx, out: OutgoingEvent, route: Route) -> Decisions:
        """Append an event for the node of its route and open its delivery."""
        if self._is_out_of_reach(out, route.node):
            route = replace(route, offer=True)
        number = self._assign_pair_number(tx, out, route.node)
        self._deliveries.destinations.add(route.node)
        content = self._encryption.encrypt_for(tx, out, route.node)
        expires = out.expires_at(tx.now, self._policy.ttl)
        due = accept_deadline(tx, self._routes, self._policy, route.node, expires)
        self._deliveries.open(
            tx, out, DeliveryState.EMITTED, route, number.number, expires, due, content.key
        )
        trace = Trace(
            route_decision=route.decision,
            policy_version=route.version,
            traceparent=out.traceparent,
        )
        priority = route.priority if out.priority is None else out.priority
        draft = draft_event(
            out, content, expires, trace, number,
            to_node=route.node, priority=priority, offer=int(route.offer),
        )  # fmt: skip
        return self._writer.append(tx, draft)

    def emit_report(self, tx: Tx, out: OutgoingEvent, node: str) -> None:
        """Append an event that opens no delivery: its reader takes it from the outbox or never."""
        content = self._encryption.encrypt_for(tx, out, node)
        trace = Trace(traceparent=out.traceparent)
        expires = out.expires_at(tx.now, self._policy.ttl)
        tx.append_event(draft_event(out, content, expires, trace, to_node=node))

    def encrypt_for(self, tx: Tx, out: OutgoingEvent, node: str) -> EncryptedContent:
        return self._encryption.encrypt_for(tx, out, node)

    def _is_out_of_reach(self, out: OutgoingEvent, node: str) -> bool:
        """Whether an event stays in our outbox for now: its node is away, and no relay takes it.

        It is an offer then, so that it can be sent elsewhere if its agent gets another home first.
        """
        if out.kind == EventKind.REPLY or node == self._node.id or self._routes.is_online(node):
            return False
        return not self._writer.sends_at_once_to(node)

    def emit_undeliverable(self, tx: Tx, out: OutgoingEvent, reason: str, detail: str) -> Decisions:
        """Append an event that no node can take; it is given up and kept, all at once."""
        content = self._encryption.encrypt_for(tx, out, self._node.id)
        expires = out.expires_at(tx.now, self._policy.ttl)
        trace = Trace(route_decision="none", traceparent=out.traceparent)
        tx.append_event(draft_event(out, content, expires, trace))
        self._deliveries.open(
            tx, out, DeliveryState.EMITTED, None, 0, expires, expires, content.key
        )
        found = self._deliveries.find(tx, out.event_id)
        return NOTHING if found is None else (GiveUpDelivery(found, reason, detail, NEVER_SENT),)

    def has_no_order(self, agent: str) -> bool:
        """Whether messages for this agent have no order unless they ask for it."""
        home = self._routes.directory.agents.get(agent)
        return home is not None and home.unordered

    def _assign_pair_number(self, tx: Tx, out: OutgoingEvent, node: str) -> PairNumber:
        """The next number of the pair, or the one that the same message has here already.

        Otherwise forwarded mail that comes back would wait behind itself. An unordered event has no
        number: it waits for no other event, and none waits for it.
        """
        if out.is_unordered:
            return UNNUMBERED
        found = self._deliveries.find_numbered(tx, out)
        if found is None:
            is_own = node == self._node.id
            next_number = self._pairs.next_own_number if is_own else self._pairs.next_number
            return next_number(tx, out.pair, node)
        tx.execute(_RELEASE_NUMBER, (found.event_id,))
        base = self._pairs.set_route(tx, out.pair, node, found.pair_seq)
        return PairNumber(found.pair_seq, base)


def accept_deadline(
    tx: Tx, routes: RouteFinder, policy: RetryPolicy, node: str, expires: int
) -> int:
    """When to retry a delivery nobody has accepted; no attempt is spent on a node that is away."""
    if not routes.is_online(node):
        return expires
    return min(tx.now + policy.accept_timeout, expires)
