"""The Yjs sync protocol with one peer, as y-websocket speaks it, without the socket.

A message is a type and its content: sync (step 1: my state vector; step 2: what you lack; update),
awareness, auth, and the wish to hear awareness again. Both sides send step 1 when they connect and
answer the other's with step 2. What is too much for one message goes ahead of step 2 as updates.

What changed in the room since is kept per peer as the set of slots to send, not as bytes: a slow
peer costs no more memory than the room has keys, and gets each key's latest version once.
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

# Who opened the connection. A host tells its guests of all others connected to it, so only a
# guest is held to speak for itself alone.
Role = Literal["host", "guest"]


class Peer:
    """One connection to the authenticated node `node`; `role` is what the other side is.

    `receive` raises RoomViolation when the connection has to be closed. Either way of ending calls
    `close`. `synced` says whether the other side has answered our step 1.
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
        """The first messages."""
        return [_sync_message(STEP_1, self._room.state_vector()), *self._present()]

    def receive(self, message: bytes) -> list[bytes]:
        """The answer to a message."""
        if len(message) > MAX_MESSAGE:
            raise lib0.too_large("a message", len(message), MAX_MESSAGE)
        reader = Reader(message)
        handler = self._handlers.get(reader.uint())
        if handler is None:
            raise RoomViolation("a message of a type nobody knows", rule="message")
        return handler(reader)

    def outgoing(self) -> list[bytes]:
        """What changed since the last call; to be sent when the peer can take it."""
        places, self._dirty = self._dirty, {}
        said, self._said = self._said, {}
        records = [s for place in places if (s := self._room.document.get(place)) is not None]
        updates = self._room.document.chunks(records) if records else ()
        messages = [_sync_message(UPDATE, update) for update in updates]
        return messages + ([_awareness_message(list(said.values()))] if said else [])

    def close(self) -> None:
        """The connection ended."""
        ends, self._ends = self._ends, ()
        for end in ends:
            end()
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
            raise RoomViolation("a sync message of a type nobody knows", rule="message")
        self._room.apply(data, self)
        self.synced |= step == STEP_2
        return []

    def _answer(self, state_vector: bytes) -> list[bytes]:
        *ahead, last = self._room.missing(state_vector)
        self._dirty.clear()
        return [*(_sync_message(UPDATE, u) for u in ahead), _sync_message(STEP_2, last)]

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
            raise RoomViolation("only a host refuses permission", rule="message")
        raise Forbidden(f"{self.node} refused the room: {reader.text(_MAX_REASON)}")

    def _query(self, reader: Reader) -> list[bytes]:
        reader.end()
        return self._present()

    def _present(self) -> list[bytes]:
        all = self._role == "guest"
        present = self._awareness.present() if all else self._awareness.own()
        return [_awareness_message(present)] if present else []


def _sync_message(step: int, data: bytes) -> bytes:
    return bytes((SYNC, step)) + lib0.data(data)


def _awareness_message(entries: list[Entry]) -> bytes:
    return bytes((AWARENESS,)) + lib0.data(awareness.write(entries))
