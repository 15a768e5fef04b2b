"""The connections of a listener: how many a stranger may hold, and which one gives way.

A connection is *anonymous* until a token that came over it was found valid. Then it belongs to a
*holder*: the operator, a session or a node. Each sort has a separate pool, so strangers never take
the place of an authenticated peer.

The anonymous pool never refuses: when it is full, the oldest connection of the address with too
many is closed. So a newcomer always has the time to show its token, however many sockets idle.
The other pool refuses. A holder gets a fair share of its places (`fair_share`), and the last ones
are the operator's.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from litestar.connection import ASGIConnection

from gatepost.access import rate_limit_source
from gatepost.config import LimitsSettings, is_loopback
from gatepost.errors import Unavailable
from gatepost.fair_share import has_share, operator_places

AnyConnection = ASGIConnection[Any, Any, Any, Any]

OPERATOR = "operator"
MAX_PER_HOLDER = 128
_SCOPE_KEY = "gatepost.connection"
_PROCESS = "process:"
_SESSION = "session:"


class ConnectionSlot:
    """The place of one connection in the pool. `holder` is None while it is anonymous."""

    __slots__ = ("_pool", "abort", "holder", "on_released", "source")

    def __init__(self, pool: "ConnectionPool", source: str, abort: Callable[[], object]) -> None:
        self._pool = pool
        self.source = source
        self.abort = abort
        self.on_released: Callable[[], object] | None = None
        self.holder: str | None = None

    def identify(self, holder: str) -> None:
        """Count the connection for its holder; raise Unavailable if that has too many."""
        if self.holder != holder:
            self._pool.identify_slot(self, holder)

    def release(self) -> None:
        self._pool.release_slot(self)
        on_released, self.on_released = self.on_released, None
        if on_released is not None:
            on_released()


# Kept in the order in which they came, which makes the first one the oldest.
Slots = OrderedDict[ConnectionSlot, None]


class ConnectionPool:
    """`report_flood` gets the address whose connections had to give way."""

    def __init__(self, limits: LimitsSettings, report_flood: Callable[[str], None]) -> None:
        self._max_held = limits.max_connections
        self._max_anonymous = limits.max_unauthenticated
        self._report_flood = report_flood
        self._anonymous: dict[str, Slots] = {}
        self._held: dict[str, int] = {}
        self.anonymous_count = 0
        self.held_count = 0

    def admit(self, source: str, abort: Callable[[], object]) -> ConnectionSlot:
        """Take in a new connection; close another one if that needs its place."""
        crowded = self._find_crowded(source)
        slot = ConnectionSlot(self, source, abort)
        self._anonymous.setdefault(source, OrderedDict())[slot] = None
        self.anonymous_count += 1
        if crowded is not None:
            self._close_oldest(crowded)
        return slot

    def identify_slot(self, slot: ConnectionSlot, holder: str) -> None:
        is_operator, own = holder == OPERATOR, self._held.get(holder, 0)
        kept = 0 if is_operator else operator_places(self._max_held)
        free = self._max_held - kept - self.held_count + (slot.holder is not None)
        if free <= 0:
            raise Unavailable("too many connections", retry_after=1.0)
        if not is_operator and (own >= MAX_PER_HOLDER or not has_share(own, free)):
            raise Unavailable(f"{own} connections with one identity already", retry_after=1.0)
        self.release_slot(slot)
        slot.holder = holder
        self._held[holder] = self._held.get(holder, 0) + 1
        self.held_count += 1

    def release_slot(self, slot: ConnectionSlot) -> None:
        """Forget a connection, for example because it is closed. Doing it again does no harm."""
        if slot.holder is not None:
            self._release_held(slot.holder)
            slot.holder = None
        elif slot in self._anonymous.get(slot.source, ()):
            self._release_anonymous(slot)

    def _release_held(self, holder: str) -> None:
        self.held_count -= 1
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]

    def _release_anonymous(self, slot: ConnectionSlot) -> None:
        slots = self._anonymous[slot.source]
        del slots[slot]
        self.anonymous_count -= 1
        if not slots:
            del self._anonymous[slot.source]

    def _find_crowded(self, source: str) -> str | None:
        """Return the address that has to give a place away for a connection of `source`."""
        own = len(self._anonymous.get(source, ()))
        if own >= self._max_of_source(source):
            return source
        if self.anonymous_count < self._max_anonymous:
            return None
        # Under a flood this is the usual case, and needs no look at all the addresses.
        if own * len(self._anonymous) > self._max_anonymous:
            return source
        return max(self._anonymous, key=lambda each: len(self._anonymous[each]))

    def _max_of_source(self, source: str) -> int:
        """Return the most anonymous connections of an address: half, but all for this machine.

        The agents of this machine have one address, and may all come back at the same moment.
        """
        return self._max_anonymous if is_loopback(source) else max(1, self._max_anonymous // 2)

    def _close_oldest(self, source: str) -> None:
        slot = next(iter(self._anonymous[source]))
        self._release_anonymous(slot)
        self._report_flood(source)
        slot.abort()


class ListenerPools(NamedTuple):
    """The pool of the listener and the Unix socket of agents, and the one of sessions.

    Sessions run what others ask for: they never take a place of a peer, an agent or the operator.
    Each of them has `per_session` connections at most.
    """

    listener: ConnectionPool
    sessions: ConnectionPool
    per_session: int


def process_source(pid: int) -> str:
    """The source of the connections of a process on this machine."""
    return f"{_PROCESS}{pid}"


def session_source(name: str) -> str:
    """The source of the connections of a session of the hub."""
    return f"{_SESSION}{name}"


def name_offender(source: str) -> str:
    """Return a source as reports of abuse name it."""
    return source if source.startswith((_PROCESS, _SESSION)) else f"address:{source}"


def attach_slot(scope: Any, slot: ConnectionSlot) -> None:
    """Let the application find the slot of a request in its ASGI scope."""
    scope[_SCOPE_KEY] = slot


def identify_connection(connection: AnyConnection, holder: str) -> None:
    """Count the connection of a request for its holder; Unavailable if that has too many."""
    scope: Any = connection.scope
    slot = scope.get(_SCOPE_KEY)
    if isinstance(slot, ConnectionSlot):
        slot.identify(holder)


def connection_source(connection: AnyConnection) -> str:
    """Return the source from which the connection of a request came."""
    host = connection.client.host if connection.client else ""
    return scope_source(connection.scope) or rate_limit_source(host)


def scope_source(scope: Any) -> str:
    """Return the source of a request's connection; an empty text if no listener took it."""
    slot = scope.get(_SCOPE_KEY)
    return slot.source if isinstance(slot, ConnectionSlot) else ""
