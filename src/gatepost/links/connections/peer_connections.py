"""The live connections to peers: counted, ended on revocation, and their violations recorded."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from gatepost.access.room_directory import RoomDirectory
from gatepost.core.gateway_core import Core
from gatepost.delivery.abuse import AbuseKind
from gatepost.errors import GatepostError, RateLimited, Revoked, RoomViolation, Unavailable
from gatepost.journal.audit import record_audit_entry
from gatepost.links.connections.connection import PeerConnection

log = logging.getLogger(__name__)

# A gateway that changes networks may leave some dead connections behind.
MAX_PER_NODE = 8
# A node whose connections are replaced sooner than this opens too many of them.
_SHORT_LIFE_SECS = 60.0


class PeerConnections:
    """`incident_counts`: rule of the room → how often a peer broke it."""

    def __init__(self, core: Core, members: RoomDirectory) -> None:
        self._core = core
        self._members = members
        # Kept in the order in which they came, which makes the first one the oldest.
        self._connections: dict[PeerConnection, None] = {}
        self.incident_counts: Counter[str] = Counter()

    def __iter__(self) -> Iterator[PeerConnection]:
        return iter(self._connections)

    def __len__(self) -> int:
        return len(self._connections)

    def has_peer(self, node: str) -> bool:
        return any(connection.node == node for connection in self._connections)

    @contextmanager
    def track_connection(self, connection: PeerConnection) -> Iterator[None]:
        self._connections[connection] = None
        self._end_oldest_of(connection.node)
        self.end_revoked()
        try:
            yield
        finally:
            self._connections.pop(connection, None)

    def _end_oldest_of(self, node: str) -> None:
        """End the oldest connection of a node with too many."""
        own = [each for each in self._connections if each.node == node]
        if len(own) <= MAX_PER_NODE:
            return
        oldest = own[0]
        del self._connections[oldest]
        lived = asyncio.get_running_loop().time() - oldest.opened_at
        if lived < _SHORT_LIFE_SECS:
            detail = f"{node} opened more than {MAX_PER_NODE} connections within {lived:.0f} s"
            self._core.abuse.report_abuse(node, AbuseKind.QUOTA_EXCEEDED, detail)
        oldest.end(Unavailable("a later connection of this node took the place of this one"))

    def end_sessions(self, ids: Iterable[str], node: str) -> int:
        """End the connections of these sessions, and those we opened to `node`; return how many."""
        sessions = set(ids)
        ended = [c for c in self._connections if c.session in sessions or c.node == node]
        for connection in ended:
            connection.end(_revoked_error(connection.node))
        return len(ended)

    def end_revoked(self) -> None:
        """End the connections of peers that the room says are revoked."""
        for connection in self._connections:
            known = self._members.by_key(None, connection.public_key)
            if known is not None and known.revoked:
                connection.end(_revoked_error(connection.node))

    def end_all(self, error: GatepostError) -> None:
        for connection in self._connections:
            connection.end(error)

    async def wait_until_idle(self, secs: float) -> None:
        """Wait until everything queued for the peers was sent, or time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(secs):
                await asyncio.gather(*(each.idle.wait() for each in self._connections))

    def report_end(self, node: str, error: GatepostError) -> None:
        """Report the node if it caused the error with which we ended its connection."""
        if isinstance(error, RoomViolation):
            self.count_incident(node, error)
        elif isinstance(error, RateLimited):
            self._core.abuse.report_abuse(node, AbuseKind.QUOTA_EXCEEDED, error.message)

    def count_incident(self, node: str, violation: RoomViolation) -> None:
        self.incident_counts[violation.rule] += 1
        why = f"{violation.rule}: {violation.message}"[:500]
        if self._core.abuse.report_abuse(node, AbuseKind.ROOM_VIOLATION, why):
            self._core.submit(lambda tx: record_audit_entry(tx, node, "room.violation", node, why))


def _revoked_error(node: str) -> Revoked:
    return Revoked(f"node {node} was revoked")
