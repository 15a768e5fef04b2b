"""Yjs awareness: the clients connected right now, one state per connection.

An entry is a client id, a clock that only that client advances, and a state as JSON text. Standard
clients echo entries about other clients. They also report a client they have not heard from as
gone, under that client's own clock. Both are harmless, so an entry that is not newer than the
known one is ignored. A newer entry about a client of another connection is a forgery.
"""

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from gatepost.errors import RoomViolation
from gatepost.events import NodeId
from gatepost.events.envelope import EpochMs
from gatepost.room import lib0
from gatepost.room.lib0 import Reader
from gatepost.room.records import Record

MAX_STATE = 512
MAX_ENTRIES = 1000
MAX_MESSAGE = 256 * 1024
_REMEMBERED = 10_000
_GONE = "null"


class Presence(Record, frozen=True, kw_only=True):
    """The state a connection may publish about itself. Clients without a state send `{}`."""

    node_id: NodeId | None = None
    status: Literal["online", "degraded", "offline"] | None = None
    seen_at: EpochMs | None = None


class Entry(Struct, frozen=True):
    client: int
    clock: int
    state: str


class _Known(Struct, frozen=True):
    entry: Entry
    speaker: object
    node: str


Listener = Callable[[Entry, object], None]

_decode = msgspec.json.Decoder(Presence | None).decode
_encode = msgspec.json.Encoder().encode


def read(data: bytes) -> list[Entry]:
    """Decode the entries of an awareness update. Malformed bytes raise RoomViolation."""
    if len(data) > MAX_MESSAGE:
        raise lib0.too_large("an awareness update", len(data), MAX_MESSAGE)
    reader = Reader(data)
    entries = [
        Entry(reader.uint(), reader.uint(), reader.text(MAX_STATE))
        for _ in range(reader.count(MAX_ENTRIES))
    ]
    reader.end()
    return entries


def write(entries: Iterable[Entry]) -> bytes:
    encoded = [lib0.uint(e.client) + lib0.uint(e.clock) + lib0.text(e.state) for e in entries]
    return lib0.uint(len(encoded)) + b"".join(encoded)


class Awareness:
    """The clients connected to this gateway, and the gateway itself as client `client`."""

    def __init__(self, node: str, client: int) -> None:
        self._node = node
        self._client = client
        self._known: dict[int, _Known] = {}
        self._speaks: dict[object, int] = {}
        self._listeners: list[Listener] = []

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every new entry. The returned function unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def announce(self, presence: Presence) -> None:
        """Publish this gateway's own state. Standard clients drop it unless renewed every 30 s."""
        known = self._known.get(self._client)
        # Standard clients ignore a first entry whose clock is 0.
        clock = known.entry.clock + 1 if known else 1
        self._keep(Entry(self._client, clock, _encode(presence).decode()), self, self._node)

    def own(self) -> list[Entry]:
        return [e for e in self.present() if e.client == self._client]

    def present(self) -> list[Entry]:
        return [known.entry for known in self._known.values() if known.entry.state != _GONE]

    def hear(self, entries: Iterable[Entry], speaker: object, node: str) -> None:
        """Store the new entries of a connection of `node`. A forged entry raises RoomViolation."""
        newer = [entry for entry in entries if self._is_news(entry, speaker)]
        for entry in newer:
            self._check(entry, speaker, node)
            self._speaks.setdefault(speaker, entry.client)
        for entry in newer:
            self._keep(entry, speaker, node)

    def left(self, speaker: object) -> None:
        """Mark the client of a closed connection as gone."""
        client = self._speaks.pop(speaker, None)
        known = self._known.get(client) if client is not None else None
        if known and known.speaker is speaker and known.entry.state != _GONE:
            self._keep(Entry(known.entry.client, known.entry.clock + 1, _GONE), speaker, known.node)

    def _is_news(self, entry: Entry, speaker: object) -> bool:
        known = self._known.get(entry.client)
        if known is None:
            return entry.state != _GONE
        if entry.clock == known.entry.clock:
            leaves = entry.state == _GONE != known.entry.state
            return leaves and known.speaker is speaker
        return entry.clock > known.entry.clock

    def _check(self, entry: Entry, speaker: object, node: str) -> None:
        known = self._known.get(entry.client)
        if known is not None and known.node != node:
            raise _forged(f"{node} speaks for a client of {known.node}")
        if self._speaks.get(speaker, entry.client) != entry.client:
            raise _forged(f"{node} speaks for two clients over one connection")
        if check_state(entry.state) not in (None, node):
            raise _forged(f"{node} says it is another node")

    def _keep(self, entry: Entry, speaker: object, node: str) -> None:
        # Move the client to the end: the first one is then the longest unheard.
        self._known.pop(entry.client, None)
        self._known[entry.client] = _Known(entry, speaker, node)
        self._forget()
        for listener in list(self._listeners):
            listener(entry, speaker)

    def _forget(self) -> None:
        """Drop the oldest gone client beyond the limit.

        Clocks of gone clients are kept until then, to recognise late echoes of their entries.
        """
        if len(self._known) > _REMEMBERED:
            gone = (client for client, k in self._known.items() if k.entry.state == _GONE)
            self._known.pop(next(gone, -1), None)


def check_state(state: str) -> str | None:
    """Return the node id in a state. A state with unknown fields raises RoomViolation."""
    try:
        presence = _decode(state)
    except (ValueError, RecursionError) as error:
        raise RoomViolation(f"not an awareness state: {error}", rule="awareness") from None
    return None if presence is None else presence.node_id


def _forged(why: str) -> RoomViolation:
    return RoomViolation(f"forged awareness: {why}", rule="awareness")
