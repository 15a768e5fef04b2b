"""Yjs awareness: the clients connected right now, one state per connection.

An entry is a client id, a clock that only that client advances, and a state as JSON text. A client
chooses its id itself, so two of them may have the same, by chance or on purpose. A gateway
therefore passes entries on under an id that it derives from the client's id and the node that was
authenticated for the connection: no node can take the id of another node's client. Standard clients
echo entries about other clients. They also report a client they have not heard from as gone, under
that client's own clock. Both are harmless, so an entry that is not newer than the known one is
ignored. A newer entry about a client of another connection is a forgery.
"""

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from gatepost.errors import RoomViolation
from gatepost.events import NodeId, frame_parts
from gatepost.events.envelope import EpochMs
from gatepost.room import lib0
from gatepost.room.lib0 import MAX_UINT, Lib0Reader
from gatepost.room.records import RoomRecord

MAX_STATE_BYTES = 512
MAX_ENTRIES = 1000
MAX_AWARENESS_BYTES = 256 * 1024
_MAX_KNOWN_CLIENTS = 10_000
_REASON_CHARS = 100
_REASON = rf"\A[A-Za-z0-9][A-Za-z0-9 .,?%'()/&+_-]{{0,{_REASON_CHARS - 1}}}\Z"
_NO_REASON_CHAR = re.compile(r"[^A-Za-z0-9 .,?%'()/&+_-]")
_GONE_STATE = "null"


class ConnectionPresence(RoomRecord, frozen=True, kw_only=True):
    """The state a connection may publish about itself. Clients without a state send `{}`.

    `reason` tells why a gateway is degraded.
    """

    node_id: NodeId | None = None
    status: Literal["online", "degraded", "offline"] | None = None
    reason: Annotated[str, Meta(pattern=_REASON, max_length=_REASON_CHARS)] | None = None
    seen_at: EpochMs | None = None


def shorten_reason(problem: str) -> str | None:
    """The public part of a problem, without details such as paths and lines of files."""
    summary = _NO_REASON_CHAR.sub("?", problem.partition(": ")[0].strip())
    return summary.lstrip(" .,?%'()/&+_-")[:_REASON_CHARS] or None


class AwarenessEntry(Struct, frozen=True):
    client: int
    clock: int
    state: str


class _KnownClient(Struct, frozen=True):
    entry: AwarenessEntry
    speaker: object
    node: str


AwarenessListener = Callable[[AwarenessEntry, object], None]

_decode_presence = msgspec.json.Decoder(ConnectionPresence | None).decode
_encode_presence = msgspec.json.Encoder().encode


def decode_awareness(data: bytes) -> list[AwarenessEntry]:
    """Decode the entries of an awareness update. Malformed bytes raise RoomViolation."""
    if len(data) > MAX_AWARENESS_BYTES:
        raise lib0.too_large_error("an awareness update", len(data), MAX_AWARENESS_BYTES)
    reader = Lib0Reader(data)
    entries = [
        AwarenessEntry(reader.read_uint(), reader.read_uint(), reader.read_text(MAX_STATE_BYTES))
        for _ in range(reader.read_count(MAX_ENTRIES))
    ]
    reader.expect_end()
    return entries


def encode_awareness(entries: Iterable[AwarenessEntry]) -> bytes:
    encoded = [
        lib0.encode_uint(e.client) + lib0.encode_uint(e.clock) + lib0.encode_text(e.state)
        for e in entries
    ]
    return lib0.encode_uint(len(encoded)) + b"".join(encoded)


def bind_client(node: str, client: int) -> int:
    """The id under which the client of a node is known to all others."""
    number = client.to_bytes(8, "big")
    digest = sha256(frame_parts("gatepost/awareness/1", node.encode(), number)).digest()
    return int.from_bytes(digest[:8], "big") & MAX_UINT


class RoomAwareness:
    """The clients connected to this gateway, and the gateway itself with an id from `client`."""

    def __init__(self, node: str, client: int) -> None:
        self._node = node
        self._client = bind_client(node, client)
        self._known_clients: dict[int, _KnownClient] = {}
        self._clients_by_speaker: dict[object, int] = {}
        self._listeners: list[AwarenessListener] = []
        # Connection → the presence that its node published.
        self._node_presences: dict[object, ConnectionPresence] = {}

    def note_presence(self, presence: ConnectionPresence, speaker: object) -> None:
        """Note the presence of a connected node."""
        self._node_presences[speaker] = presence

    def presence_of(self, node: str) -> ConnectionPresence | None:
        """The latest presence of a connected node; None if it is not connected."""
        said = [each for each in self._node_presences.values() if each.node_id == node]
        return max(said, key=lambda each: each.seen_at or 0, default=None)

    def on_change(self, listener: AwarenessListener) -> Callable[[], None]:
        """Call `listener` with every new entry. The returned function unsubscribes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def announce_presence(self, presence: ConnectionPresence) -> None:
        """Publish this gateway's own state. Standard clients drop it unless renewed every 30 s."""
        known = self._known_clients.get(self._client)
        # Standard clients ignore a first entry whose clock is 0.
        clock = known.entry.clock + 1 if known else 1
        self._store_entry(
            AwarenessEntry(self._client, clock, _encode_presence(presence).decode()),
            self,
            self._node,
        )

    def own_entries(self) -> list[AwarenessEntry]:
        return [e for e in self.present_entries() if e.client == self._client]

    def present_entries(self) -> list[AwarenessEntry]:
        return [
            known.entry
            for known in self._known_clients.values()
            if known.entry.state != _GONE_STATE
        ]

    def receive_entries(
        self, entries: Iterable[AwarenessEntry], speaker: object, node: str
    ) -> None:
        """Store the new entries of a connection of `node`. A forged entry raises RoomViolation."""
        bound = [self._bind_entry(entry, node) for entry in entries]
        newer = [entry for entry in bound if self._is_newer(entry, speaker)]
        for entry in newer:
            self._check_entry(entry, speaker, node)
            self._clients_by_speaker.setdefault(speaker, entry.client)
        for entry in newer:
            self._store_entry(entry, speaker, node)

    def remove_connection(self, speaker: object) -> None:
        """Mark the client of a closed connection as gone."""
        self._node_presences.pop(speaker, None)
        client = self._clients_by_speaker.pop(speaker, None)
        known = self._known_clients.get(client) if client is not None else None
        if known and known.speaker is speaker and known.entry.state != _GONE_STATE:
            self._store_entry(
                AwarenessEntry(known.entry.client, known.entry.clock + 1, _GONE_STATE),
                speaker,
                known.node,
            )

    def _bind_entry(self, entry: AwarenessEntry, node: str) -> AwarenessEntry:
        """Give the client of a node the id it has here. An id that we passed on is kept."""
        if entry.client in self._known_clients:
            return entry
        return replace(entry, client=bind_client(node, entry.client))

    def _is_newer(self, entry: AwarenessEntry, speaker: object) -> bool:
        known = self._known_clients.get(entry.client)
        if known is None:
            return entry.state != _GONE_STATE
        if entry.clock == known.entry.clock:
            leaves = entry.state == _GONE_STATE != known.entry.state
            return leaves and known.speaker is speaker
        return entry.clock > known.entry.clock

    def _check_entry(self, entry: AwarenessEntry, speaker: object, node: str) -> None:
        known = self._known_clients.get(entry.client)
        if known is not None and known.node != node:
            raise _forged_error(f"{node} speaks for a client of {known.node}")
        if self._clients_by_speaker.get(speaker, entry.client) != entry.client:
            raise _forged_error(f"{node} speaks for two clients over one connection")
        presence = decode_state(entry.state)
        if presence is not None and presence.node_id not in (None, node):
            raise _forged_error(f"{node} says it is another node")

    def _store_entry(self, entry: AwarenessEntry, speaker: object, node: str) -> None:
        # Move the client to the end: the first one is then the longest unheard.
        self._known_clients.pop(entry.client, None)
        self._known_clients[entry.client] = _KnownClient(entry, speaker, node)
        self._forget_oldest_gone()
        for listener in list(self._listeners):
            listener(entry, speaker)

    def _forget_oldest_gone(self) -> None:
        """Drop the oldest gone client beyond the limit.

        Clocks of gone clients are kept until then, to recognise late echoes of their entries.
        """
        if len(self._known_clients) > _MAX_KNOWN_CLIENTS:
            gone = (
                client for client, k in self._known_clients.items() if k.entry.state == _GONE_STATE
            )
            self._known_clients.pop(next(gone, -1), None)


def decode_state(state: str) -> ConnectionPresence | None:
    """Decode a state; None if its client is gone. Unknown fields raise RoomViolation."""
    try:
        presence: ConnectionPresence | None = _decode_presence(state)
    except (ValueError, RecursionError) as error:
        raise RoomViolation(f"not an awareness state: {error}", rule="awareness") from None
    return presence


def _forged_error(why: str) -> RoomViolation:
    return RoomViolation(f"forged awareness: {why}", rule="awareness")
