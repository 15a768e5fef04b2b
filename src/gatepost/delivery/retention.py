"""Retention: which rows of deliveries may be forgotten, and what the outbox keeps for its readers.

Events are forgotten once every active reader has taken them and their delivery has ended. A reader
that is away too long is cut off: older events are no longer kept for it, and it gets them from the
archive if they are there.
"""

from gatepost.delivery.assembly import DeliveryCore
from gatepost.delivery.forward import forget_forwards
from gatepost.delivery.inbox.forgetting import forget_taken, select_expired
from gatepost.delivery.incident_table import forget_incidents
from gatepost.delivery.incidents import IncidentLog
from gatepost.delivery.release import expire_event
from gatepost.delivery.routes import RouteFinder
from gatepost.delivery.send_request import forget_idempotency_keys
from gatepost.journal.outbox_reads import (
    FIRST_SEQ_SQL,
    last_seq_before,
    next_seq_for,
    signed_at,
)
from gatepost.journal.recipients import cut_off, reader_needs
from gatepost.journal.transaction import Tx

# A reply is kept for the lifetime of its message, for its sender may ask for it until then.
_FORGET_DELIVERIES = """
DELETE FROM delivery WHERE event_id IN (
    SELECT event_id FROM delivery WHERE processed_at <= ?1
    AND (expires_at <= ?2 OR reply IS NULL AND reply_ref IS NULL) LIMIT ?3
)
"""
_SELECT_LOWEST_OPEN = f"""
SELECT min({FIRST_SEQ_SQL.format(event="d.event_id")}) FROM delivery d
WHERE d.processed_at IS NULL
"""


def forget_closed(tx: Tx, core: DeliveryCore, before: int, batch: int) -> int:
    """Forget rows that were closed before that time; returns how many. Repeat it until 0."""
    tx.execute(_FORGET_DELIVERIES, (before, tx.now, batch))
    gone = tx.changed_rows() + forget_idempotency_keys(tx, before, batch)
    expired = select_expired(tx, before, batch)
    for source, event_id in expired:
        core.coordinator.apply_decisions(tx, expire_event(core.parts, tx, source, event_id))
    gone += len(expired) + forget_taken(tx, before, batch) + forget_forwards(tx, before, batch)
    return gone + forget_incidents(tx, batch)


class OutboxBounds:
    """Through which event the outbox can be pruned. Its readers are the members of the room."""

    def __init__(self, me: str, routes: RouteFinder, incidents: IncidentLog, cut_off: int) -> None:
        self._me = me
        self._routes = routes
        self._incidents = incidents
        self._cut_off = cut_off

    def read_through(self, tx: Tx) -> int | None:
        """The highest seq that every active reader has taken; None if nothing is left to take."""
        return _seq_before(self.lowest_needed(tx))

    def closed_through(self, tx: Tx) -> int | None:
        """The highest seq before the first open delivery; None if there is none open."""
        return _seq_before(self.lowest_open(tx))

    def lowest_needed(self, tx: Tx) -> int | None:
        """The lowest seq that some active reader has not taken yet."""
        needed = (next_seq_for(tx, node, done) for node, done, _ in self._readers(tx))
        return min((seq for seq in needed if seq is not None), default=None)

    def lowest_open(self, tx: Tx) -> int | None:
        """The lowest seq of an event with an open delivery."""
        ((seq,),) = tx.fetch_all(_SELECT_LOWEST_OPEN)
        return None if seq is None else int(seq)

    def cut_off_readers(self, tx: Tx) -> list[str]:
        """Cut off readers that are away too long; returns them."""
        gone = [
            node
            for node, done, seen_at in self._readers(tx)
            if not self._routes.is_online(node) and self._is_late(tx, node, done, seen_at)
        ]
        for node in gone:
            upto = last_seq_before(tx, tx.now - self._cut_off)
            cut_off(tx, node, upto)
            why = f"it was away too long: events for it up to seq {upto} are only in the archive"
            self._incidents.raise_(tx, "reader_cut_off", f"{node}/{upto}", why)
        return gone

    def _readers(self, tx: Tx) -> list[tuple[str, int, int]]:
        """For each other member: its node, the seq up to which it has no need of events, and
        when it was last seen.
        """
        known = reader_needs(tx)
        others = (node for node in self._routes.directory.gateways if node != self._me)
        return [(node, *known.get(node, (0, 0))) for node in others]

    def _is_late(self, tx: Tx, node: str, done: int, seen_at: int) -> bool:
        """Whether an event has waited too long for a reader that was away all the time."""
        first = next_seq_for(tx, node, done)
        if first is None:
            return False
        return max(signed_at(tx, first), seen_at) <= tx.now - self._cut_off


def _seq_before(seq: int | None) -> int | None:
    return None if seq is None else seq - 1
