"""The Yjs sync protocol with one peer, compatible with y-websocket, without the socket.

A message is a type and its content: sync (step 1: own state vector; step 2: the updates the other
side lacks; update), awareness, auth, and awareness query. Both sides send step 1 when they connect
and answer the other's step 1 with step 2. Content too large for one message precedes step 2 as
updates.

Later room changes are kept per peer as the set of slots to send, not as bytes. A slow peer thus
costs no more memory than the room has keys, and receives the latest version of each key once.
"""

from collections.abc import Callable
from typing import Literal

from gatepost.errors import Forbidden, RoomViolation
from gatepost.room import awareness, lib0
from gatepost.room.awareness import Awareness, Entry
from gatepost.room.document import Place
from gatepost.room.lib0 import Reader
from gatepost.room.room import Applied, Room
from gatepost.room.update import MAX_UPDATE

SYNC, AWARENESS, AUTH, QUERY_AWARENESS = 0, 1, 2, 3
STEP_1, STEP_2, UPDATE = 0, 1, 2
MAX_MESSAGE = MAX_UPDATE + 16
_MAX_REASON = 1024

# The role of the other side: a guest dialed us, a host was dialed by us. A host relays the
# awareness of all its connections, so only a guest must speak for itself alone.
Role = Literal["host", "guest"]


class Peer:
    """One connection to the authenticated node `node`; `role` is the role of the other side.

    `receive_message` raises RoomViolation when the connection has to be closed. The caller calls
    `close` however the connection ends. `synced` tells whether the other side has answered our
    step 1.
    """

    def __init__(self, room: Room, awareness: Awareness, node: str, role: Role) -> None:
        self._room = room
        self._awareness = awareness
        self.node = node
        self._role = role
        self._dirty: dict[Place, None] = {}
        self._said: dict[int, Entry] = {}
        self._ends: tuple[Callable[[], None], ...] = (
            room.on_change(self._changed),
            awareness.on_change(self._heard),
        )
        self.synced = False
        self._handlers: dict[int, Callable[[Reader], list[bytes]]] = {
            SYNC: self._sync,
            AWARENESS: self._aware,
            AUTH: self._auth,
            QUERY_AWARENESS: self._query,
        }

    def connected(self) -> list[bytes]:
        """The messages to send right after connecting."""
        return [_sync_message(STEP_1, self._room.state_vector()), *self._present()]

    def receive(self, message: bytes) -> list[bytes]:
        """Handle a message and return the answers to it."""
        if len(message) > MAX_MESSAGE:
            raise lib0.too_large("a message", len(message), MAX_MESSAGE)
        reader = Reader(message)
        handler = self._handlers.get(reader.uint())
        if handler is None:
            raise RoomViolation("unknown message type", rule="message")
        return handler(reader)

    def outgoing(self) -> list[bytes]:
        """Messages with the changes since the last call; call it when the peer can take more."""
        places, self._dirty = self._dirty, {}
        said, self._said = self._said, {}
        records = [s for place in places if (s := self._room.document.get(place)) is not None]
        updates = self._room.document.chunks(records) if records else ()
        messages = [_sync_message(UPDATE, update) for update in updates]
        return messages + ([_awareness_message(list(said.values()))] if said else [])

    def close(self) -> None:
        """Unsubscribe from room and awareness after the connection ended."""
        unsubscribers, self._ends = self._ends, ()
        for unsubscribe in unsubscribers:
            unsubscribe()
        self._awareness.left(self)

    def _heard(self, entry: Entry, speaker: object) -> None:
        if speaker is self._awareness or (self._role == "guest" and speaker is not self):
            self._said[entry.client] = entry

    def _changed(self, applied: Applied) -> None:
        if applied.origin is not self:
            self._dirty |= dict.fromkeys(signed.place for signed in applied.changed)

    def _sync(self, reader: Reader) -> list[bytes]:
        step, data = reader.uint(), reader.data(MAX_UPDATE)
        reader.end()
        if step == STEP_1:
            return self._answer(data)
        if step not in (STEP_2, UPDATE):
            raise RoomViolation("unknown sync message type", rule="message")
        self._room.apply(data, self)
        self.synced |= step == STEP_2
        return []

    def _answer(self, state_vector: bytes) -> list[bytes]:
        *first, last = self._room.missing(state_vector)
        self._dirty.clear()
        return [*(_sync_message(UPDATE, u) for u in first), _sync_message(STEP_2, last)]

    def _aware(self, reader: Reader) -> list[bytes]:
        entries = awareness.read(reader.data(awareness.MAX_MESSAGE))
        reader.end()
        for entry in entries:
            awareness.check_state(entry.state)
        if self._role == "guest":
            self._awareness.hear(entries, self, self.node)
        return []

    def _auth(self, reader: Reader) -> list[bytes]:
        if self._role == "guest" or reader.uint() != 0:
            raise RoomViolation("only the accepting side may refuse permission", rule="message")
        raise Forbidden(f"{self.node} refused the room: {reader.text(_MAX_REASON)}")

    def _query(self, reader: Reader) -> list[bytes]:
        reader.end()
        return self._present()

    def _present(self) -> list[bytes]:
        relays = self._role == "guest"
        present = self._awareness.present() if relays else self._awareness.own()
        return [_awareness_message(present)] if present else []


def _sync_message(step: int, data: bytes) -> bytes:
    return bytes((SYNC, step)) + lib0.data(data)


def _awareness_message(entries: list[Entry]) -> bytes:
    return bytes((AWARENESS,)) + lib0.data(awareness.write(entries))
