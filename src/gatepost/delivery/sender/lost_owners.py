"""Deliveries whose owner never comes back: revoked, or given up on by an operator.

A message that its owner may have taken is a dead letter, and its sender hears why. One that the
owner never got goes to where its agent lives now, or waits until the agent lives somewhere.
"""

from msgspec import Struct

from gatepost.delivery.decisions import Decision, Decisions, GiveUpDelivery
from gatepost.delivery.delivery_states import UNACCEPTED
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.routes import RouteFinder
from gatepost.delivery.sender.delivery_table import (
    DELIVERY_COLUMNS,
    OpenDelivery,
    may_have_been_sent,
)
from gatepost.delivery.sender.emitting import NEVER_SENT
from gatepost.delivery.sender.rerouting import Rerouter
from gatepost.errors import InvalidRequest
from gatepost.events import EventKind, parse_event_id
from gatepost.journal.conditions import join_conditions, optional_value
from gatepost.journal.transaction import Tx

# Ordered as they were sent, so that a pair stays in order at its next node.
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


class LostOwners:
    def __init__(self, node: LocalNode, routes: RouteFinder, rerouter: Rerouter) -> None:
        self._node = node
        self._routes = routes
        self._rerouter = rerouter

    def room_changed(self, tx: Tx) -> Decisions:
        """End the deliveries to revoked nodes."""
        directory = self._routes.directory
        # A machine may have been set up anew under its name.
        revoked = directory.revoked.keys() - directory.gateways.keys()
        if not revoked:
            return ()
        decisions: list[Decision] = []
        for (node,) in tx.fetch_all(_SELECT_NODES):
            for row in tx.fetch_all(_SELECT_OPEN_AT, (node,)) if node in revoked else ():
                decisions += self._end_delivery(tx, OpenDelivery(*row))
        return decisions

    def give_up_open(
        self, tx: Tx, wanted: OpenFilter, limit: int, actor: str
    ) -> list[GiveUpDelivery]:
        """An operator knows that nobody will ever end these deliveries."""
        where, values = wanted.where_clause()
        query = f"SELECT {DELIVERY_COLUMNS} FROM delivery WHERE processed_at IS NULL{where}"
        query += " AND node <> ? ORDER BY event_id LIMIT ?"
        rows = tx.fetch_all(query, (*values, self._node.id, limit))
        detail = f"given up by {actor}"
        return [
            GiveUpDelivery(each, "given_up", detail, self._find_verdict(tx, each))
            for each in map(OpenDelivery._make, rows)
        ]

    def _end_delivery(self, tx: Tx, found: OpenDelivery) -> Decisions:
        if found.state not in UNACCEPTED:
            detail = f"{found.node} was revoked before it said how it ended"
            return (GiveUpDelivery(found, "owner_revoked", detail, found.known_verdict),)
        # An offer is not engaged before it is confirmed, and only a receipt brings that about.
        if may_have_been_sent(tx, found) and not found.offer:
            detail = f"{found.node} was revoked, and may have taken it"
            return (GiveUpDelivery(found, "owner_revoked", detail),)
        if found.kind == EventKind.REPLY:
            detail = f"{found.node}, which waits for this reply, was revoked"
            return (GiveUpDelivery(found, "owner_revoked", detail, NEVER_SENT),)
        return self._rerouter.seek_home(tx, found)

    def _find_verdict(self, tx: Tx, found: OpenDelivery) -> str | None:
        if found.state in UNACCEPTED and not may_have_been_sent(tx, found):
            return NEVER_SENT
        return found.known_verdict
