"""Re-routing deliveries: to a fallback, after a refusal, or to the agent's new home.

If an owner never comes back, because it was revoked or an operator gave it up, a delivery that it
may have taken becomes a dead letter. One that it never got goes to the agent's new home, or waits
until there is one.

The rules of offers and fallbacks are in `gatepost.delivery.inbox.offers`, those of pairs in
`gatepost.delivery.pairs`.
"""

from msgspec import Struct
from msgspec.structs import replace

from gatepost.delivery.decisions import (
    NOTHING,
    Decision,
    Decisions,
    GiveUpDelivery,
    PairMoved,
    RerouteDelivery,
)
from gatepost.delivery.delivery_states import (
    IS_UNACCEPTED,
    UNACCEPTED,
    DeliveryInput,
    update_delivery,
)
from gatepost.delivery.delivery_table import (
    DELIVERY_COLUMNS,
    HOMELESS,
    IS_PARKED,
    MOVED,
    NEVER_SENT,
    OpenDelivery,
    is_unchanged,
    may_have_been_sent,
)
from gatepost.delivery.outgoing import SenderPair
from gatepost.delivery.parts import DeliveryParts
from gatepost.delivery.payloads import EncryptedContent, encrypt_again, find_first_event
from gatepost.delivery.send import accept_deadline
from gatepost.errors import GatepostError, InvalidRequest
from gatepost.events import Envelope, EventKind, Signal, Trace, parse_event_id
from gatepost.events.reserved_names import GATEWAY
from gatepost.journal.conditions import join_conditions, optional_value
from gatepost.journal.transaction import Tx
from gatepost.routing import Route, RoutingDirectory

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
# In the order of sending, so that a pair stays in order at its next node.
_SELECT_OPEN_AT = f"""
SELECT {DELIVERY_COLUMNS} FROM delivery WHERE node = ? AND processed_at IS NULL
ORDER BY from_agent, to_agent, origin_node, pair_seq
"""
_SELECT_NODES = "SELECT DISTINCT node FROM delivery WHERE processed_at IS NULL"


class OpenFilter(Struct, forbid_unknown_fields=True):
    """Selects open deliveries to other gateways: all given conditions must hold, and one must be
    given. `agent` is the receiver.
    """

    event_ids: list[str] | None = None
    node: str | None = None
    agent: str | None = None

    def where_clause(self) -> tuple[str, list[object]]:
        ids = None if self.event_ids is None else [parse_event_id(id) for id in self.event_ids]
        sql, values = join_conditions(
            [
                (
                    f"event_id IN ({', '.join('?' * len(ids or ()))})",
                    None if ids is None else [*ids],
                ),
                ("node = ?", optional_value(self.node)),
                ("to_agent = ?", optional_value(self.agent)),
            ]
        )
        if not sql:
            raise InvalidRequest("name the messages, their gateway or their receiver")
        return sql, values


# -- one delivery


def reroute_delivery(parts: DeliveryParts, tx: Tx, decision: RerouteDelivery) -> Decisions:
    """Withdraw a delivery from its node, and send it with its payload to its new node.

    The caller appends one `PairMoved` for all deliveries of the pair that move.
    """
    delivery, route = decision
    if not is_unchanged(tx, delivery):
        return NOTHING
    decisions: list[Decision] = []
    if route.node != delivery.node:
        signal = Signal(signal="withdraw", pair_seq=delivery.pair_seq)
        decisions += parts.writer.append_signal(tx, delivery.node, delivery.id, signal)
    first = find_first_event(tx, delivery.event_id)
    content = encrypt_again(parts, tx, delivery, first, route.node)
    due = accept_deadline(parts, tx, route.node, delivery.expires_at)
    routes = delivery.routes + 1
    offer = routes if route.offer else 0
    head, tail = (route.node, offer, routes), (content.key, delivery.event_id)
    tx.execute(_REROUTE, (*head, delivery.attempt + 1, due, *tail))
    parts.deliveries.note_due(due)
    base = parts.pairs.set_route(tx, delivery.pair, route.node, delivery.pair_seq)
    draft = draft_reroute(delivery, route, first, content, base, offer)
    return [*decisions, *parts.writer.append(tx, draft)]


def reroute_refused(
    parts: DeliveryParts, tx: Tx, delivery: OpenDelivery, refused: frozenset[str], reason: str
) -> Decisions:
    """Send a refused delivery elsewhere, with all other unaccepted ones of its pair.

    A node that refuses one number has sent the receipts for those it accepted before, and lets
    no later number overtake; so the later ones go with it. Unordered deliveries go alone: the
    node may accept any other at any moment.
    """
    detail, verdict = f"{delivery.node}: {reason}", f"refused: {reason}"
    if delivery.from_agent == GATEWAY:
        return (GiveUpDelivery(delivery, "refused", detail, verdict),)
    try:
        route = parts.routes.find_route(tx, delivery.to_agent, refused)
    except GatepostError:
        return (GiveUpDelivery(delivery, "refused", detail, verdict),)
    moves: list[Decision] = [
        GiveUpDelivery(each, "exhausted", detail, verdict)
        if each.attempt >= parts.policy.max_attempts
        else RerouteDelivery(each, route)
        for each in _unaccepted_with(parts, tx, delivery)
    ]
    return [*moves, PairMoved(delivery.pair)]


def follow_agent(parts: DeliveryParts, tx: Tx, delivery: OpenDelivery) -> Decisions:
    """Send a delivery to its agent's new home, or wait until the room names one."""
    elsewhere = frozenset({delivery.node})
    exhausted = delivery.attempt >= parts.policy.max_attempts
    if exhausted or _has_route(parts, tx, delivery.to_agent, elsewhere):
        return reroute_refused(parts, tx, delivery, elsewhere, "moved")
    wait = parts.policy.backoff(delivery.attempt, parts.node.clock)
    due = min(tx.now + wait, delivery.expires_at)
    return _park_delivery(parts, tx, delivery, MOVED, due)


def fall_back(parts: DeliveryParts, tx: Tx, delivery: OpenDelivery) -> Decisions:
    """Route the pair of an offer to a fallback if its node is away."""
    if not delivery.offer or parts.routes.is_online(delivery.node):
        return NOTHING
    return _move_pair(parts, tx, delivery.pair, delivery.node)


def seek_home(parts: DeliveryParts, tx: Tx, delivery: OpenDelivery) -> Decisions:
    """Send a delivery that its owner never got to another node, or wait until there is one."""
    try:
        route = parts.routes.find_route(tx, delivery.to_agent, frozenset({delivery.node}))
    except GatepostError:
        return _park_delivery(parts, tx, delivery, HOMELESS, delivery.expires_at)
    return (RerouteDelivery(delivery, route), PairMoved(delivery.pair))


def _park_delivery(
    parts: DeliveryParts, tx: Tx, delivery: OpenDelivery, reason: str, due: int
) -> Decisions:
    tx.execute(_PARK, (reason, due, delivery.event_id))
    parts.deliveries.note_due(due)
    if delivery.pair_seq:
        parts.pairs.note_parked(tx, delivery.pair)
    return NOTHING


def room_changed(parts: DeliveryParts, tx: Tx, before: RoutingDirectory) -> Decisions:
    """A member came, went or moved: deliveries to it may continue."""
    decisions: list[Decision] = []
    now = parts.routes.directory
    for node, agent in tx.fetch_all(_SELECT_WAITING_ROUTES):
        if now.agents.get(agent) != before.agents.get(agent):
            tx.execute(_UNPARK, (tx.now, node, agent))
            parts.deliveries.note_due(tx.now)
            decisions += _move_offers(parts, tx, node, agent)
        if not now.is_online(node):
            for row in tx.fetch_all(_SELECT_WAITING_PAIRS, (node, agent)):
                decisions += _move_pair(parts, tx, SenderPair(*row), node)
        elif not before.is_online(node):
            soon = tx.now + parts.policy.accept_timeout
            tx.execute(_LOOK_SOONER, (soon, node, soon))
            parts.deliveries.note_due(soon)
    return decisions


def _move_offers(parts: DeliveryParts, tx: Tx, node: str, agent: str) -> Decisions:
    """Another node owns the agent now: send it the deliveries that `node` never began."""
    home = parts.routes.directory.agents.get(agent)
    if home is None or home.owner in (None, node) or node in home.standbys:
        return NOTHING
    rows = tx.fetch_all(_SELECT_OFFERS_AT, (node, agent))
    return [move for row in rows for move in seek_home(parts, tx, OpenDelivery(*row))]


def _move_pair(parts: DeliveryParts, tx: Tx, pair: SenderPair, node: str) -> Decisions:
    """Route the unaccepted deliveries of a pair to a fallback, unless `node` accepted one.

    That `node` accepted one keeps the ordered deliveries there, and no others.
    """
    try:
        route = parts.routes.find_route(tx, pair.to_agent)
    except GatepostError:
        return NOTHING
    if route.node == node:
        return NOTHING
    waiting = _unaccepted_of_pair(parts, tx, pair, node)
    ordered = [delivery for delivery in waiting if delivery.pair_seq]
    # Unless it is an offer, a delivery may be accepted there at any moment.
    is_kept = not all(delivery.offer for delivery in ordered)
    if is_kept or tx.fetch_one(_SELECT_ACCEPTED_OF_PAIR, (*pair, node)):
        ordered = []
    free = [delivery for delivery in waiting if not delivery.pair_seq and delivery.offer]
    moves: list[Decision] = [RerouteDelivery(each, route) for each in (*ordered, *free)]
    return [*moves, PairMoved(pair)] if ordered else moves


def _has_route(parts: DeliveryParts, tx: Tx, agent: str, refused: frozenset[str]) -> bool:
    try:
        parts.routes.find_route(tx, agent, refused)
    except GatepostError:
        return False
    return True


def _unaccepted_with(parts: DeliveryParts, tx: Tx, delivery: OpenDelivery) -> list[OpenDelivery]:
    """A delivery, with the other unaccepted ones of its pair if it is ordered."""
    if not delivery.pair_seq:
        return [delivery]
    found = _unaccepted_of_pair(parts, tx, delivery.pair, delivery.node)
    return [each for each in found if each.pair_seq]


def _unaccepted_of_pair(
    parts: DeliveryParts, tx: Tx, pair: SenderPair, node: str
) -> list[OpenDelivery]:
    rows = tx.fetch_all(_SELECT_UNACCEPTED_OF_PAIR, (*pair, node))
    return [OpenDelivery(*row) for row in rows]


# -- owners that never come back


def end_deliveries_to_revoked(parts: DeliveryParts, tx: Tx) -> Decisions:
    """End the deliveries to revoked nodes."""
    directory = parts.routes.directory
    # A new machine may have joined under its name.
    revoked = directory.revoked.keys() - directory.gateways.keys()
    if not revoked:
        return ()
    decisions: list[Decision] = []
    for (node,) in tx.fetch_all(_SELECT_NODES):
        for row in tx.fetch_all(_SELECT_OPEN_AT, (node,)) if node in revoked else ():
            decisions += _end_delivery(parts, tx, OpenDelivery(*row))
    return decisions


def give_up_open(
    parts: DeliveryParts, tx: Tx, wanted: OpenFilter, limit: int, actor: str
) -> list[GiveUpDelivery]:
    """Give up deliveries that, as an operator knows, no gateway will ever end."""
    where, values = wanted.where_clause()
    query = f"SELECT {DELIVERY_COLUMNS} FROM delivery WHERE processed_at IS NULL{where}"
    query += " AND node <> ? ORDER BY event_id LIMIT ?"
    rows = tx.fetch_all(query, (*values, parts.node.id, limit))
    detail = f"given up by {actor}"
    return [
        GiveUpDelivery(each, "given_up", detail, _find_verdict(parts, tx, each))
        for each in map(OpenDelivery._make, rows)
    ]


def _end_delivery(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> Decisions:
    if found.state not in UNACCEPTED:
        detail = f"{found.node} was revoked before it said how it ended"
        return (GiveUpDelivery(found, "owner_revoked", detail, found.known_verdict),)
    # An offer that was never confirmed was not engaged, and only a receipt leads to that.
    if may_have_been_sent(tx, found) and not found.offer:
        detail = f"{found.node} was revoked, and may have taken it"
        return (GiveUpDelivery(found, "owner_revoked", detail),)
    if found.kind == EventKind.REPLY:
        detail = f"{found.node}, which waits for this reply, was revoked"
        return (GiveUpDelivery(found, "owner_revoked", detail, NEVER_SENT),)
    return seek_home(parts, tx, found)


def _find_verdict(parts: DeliveryParts, tx: Tx, found: OpenDelivery) -> str | None:
    if found.state in UNACCEPTED and not may_have_been_sent(tx, found):
        return NEVER_SENT
    return found.known_verdict


# -- the event of another route


def draft_reroute(
    delivery: OpenDelivery,
    route: Route,
    first: Envelope,
    content: EncryptedContent,
    base: int,
    offer: int,
) -> Envelope:
    """The same event, with its payload, for another node. `first` is its first attempt."""
    return replace(
        first,
        to_node_id=route.node,
        pair_seq=delivery.pair_seq,
        pair_base=base,
        attempt=delivery.attempt + 1,
        offer=offer,
        payload=content.payload,
        payload_ref=content.ref,
        trace=Trace(
            attempt=delivery.attempt + 1,
            route_decision=route.decision if route.decision != "owner" else "moved",
            policy_version=_policy_version(first, route),
            traceparent=None if first.trace is None else first.trace.traceparent,
        ),
    )


def _policy_version(first: Envelope, route: Route) -> int | str | None:
    """The version that counts: of the capability index for a task that it routed."""
    if first.task is None or first.task.capability_id is None or first.trace is None:
        return route.version
    return first.trace.policy_version
