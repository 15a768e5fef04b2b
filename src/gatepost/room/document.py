"""The room as a Yjs document: one slot per key and writer, holding the latest version.

Each slot has its own Yjs client id, derived from room, map, key and public key. The version of a
record is its Yjs clock. The rest of the package relies on three consequences.

- Merging two documents means taking the greater version slot by slot. Yjs would resolve concurrent
  writes by client id; here there are none, not even after a restart or from a restored backup.
- A signed record fits exactly one client and clock. Anywhere else it is a violation. An old record
  therefore cannot replace a newer one, no record can replace another, and nobody can occupy the
  clocks of another writer's next version.
- The cost of a slot does not depend on the number of its versions.

The document is a function of its records, so only the records are stored. Updates for Yjs clients
are encoded from them (yjs_update.py); incoming bytes are parsed and never applied as such.
"""

from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256

from gatepost.errors import RoomViolation
from gatepost.events import frame_parts
from gatepost.room.lib0 import MAX_UINT
from gatepost.room.signing import Signed
from gatepost.room.update import Delete, Item, Slot, encode_in_chunks

CHUNK = 256 * 1024
# One writer must not fill the room of all others. Beyond this limit replicas may hold different
# subsets of the writer's keys, but no peer is cut off for passing its records on.
MAX_KEYS_PER_WRITER = 4096

Place = tuple[str, str, bytes]


class Document:
    """All slots of one room. It trusts its input; update_guard.py checks updates before."""

    def __init__(self, room_id: str) -> None:
        self.room_id = room_id
        self._slots: dict[Place, Signed] = {}
        self._places: dict[int, Place] = {}
        self._clients: dict[Place, int] = {}
        self._written: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Signed]:
        return iter(self._slots.values())

    def get(self, place: Place) -> Signed | None:
        return self._slots.get(place)

    def is_news(self, signed: Signed) -> bool:
        known = self._slots.get(signed.place)
        return known is None or signed.order > known.order

    def has_room_for(self, signed: Signed) -> bool:
        written = self._written.get(signed.public_key, 0)
        return signed.place in self._slots or written < MAX_KEYS_PER_WRITER

    def put(self, signed: Signed) -> None:
        if signed.place not in self._slots:
            self._open(signed.place)
        self._slots[signed.place] = signed

    def same(self, item: Item) -> Signed | None:
        """The stored record, if `item` holds exactly the same text and signature; else None."""
        place = self._places.get(item.client)
        known = self._slots[place] if place else None
        if known is None or (known.text, known.signature) != (item.record, item.signature):
            return None
        return known

    def check_item(self, item: Item, signed: Signed) -> None:
        """Raise RoomViolation unless the record has its own client, clock, map and key."""
        if item.place not in (None, (signed.map, signed.key)):
            raise RoomViolation(f"{signed.map} {signed.key} is at another key", rule="misplaced")
        if (item.client, item.clock) == (self.client_of(signed.place), signed.version - 1):
            return
        known = self._slots.get(signed.place)
        rule = "rollback" if known and signed.version <= known.version else "misplaced"
        raise RoomViolation(
            f"version {signed.version} of {signed.map} {signed.key} is at another client or clock",
            rule=rule,
        )

    def check_deletes(self, deletes: Iterable[Delete], news: Collection[Signed]) -> None:
        """Raise RoomViolation if a delete covers the latest version of a visible slot.

        Deletes of older versions are normal: every Yjs document lists them. A delete may also cover
        the latest version of a slot that shares its key with another one, because Yjs shows only
        one of the two.
        """
        places = {self.client_of(signed.place): signed.place for signed in news}
        tops = dict.fromkeys(places, -1)
        for signed in news:
            client = self.client_of(signed.place)
            tops[client] = max(tops[client], signed.version - 1)
        deleted = {
            client
            for client, clock, length in deletes
            if clock <= max(tops.get(client, -1), self._top(client)) < clock + length
        }
        if deleted & _shown(deleted, self._places | places):
            raise RoomViolation("records are not deleted; write a tombstone", rule="deleted")

    def client_of(self, place: Place) -> int:
        return self._clients.get(place) or self._derive(place)

    def clocks(self) -> list[tuple[int, int]]:
        """The state vector: (client, next clock) of every slot."""
        return [(self._clients[place], s.version) for place, s in self._slots.items()]

    def newer_than(self, clocks: dict[int, int]) -> list[Signed]:
        """The records that a document with this state vector lacks."""
        return [
            signed
            for place, signed in self._slots.items()
            if signed.version > clocks.get(self._clients[place], 0)
        ]

    def chunks(self, records: Iterable[Signed]) -> Iterator[bytes]:
        """Encode the records as one or more updates of about CHUNK_BYTES each."""
        return encode_in_chunks(map(self._slot, records), CHUNK)

    def _open(self, place: Place) -> None:
        client = self._derive(place)
        self._clients[place] = client
        self._places[client] = place
        self._written[place[2]] = self._written.get(place[2], 0) + 1

    def _derive(self, place: Place) -> int:
        names = (name.encode() for name in (self.room_id, *place[:2]))
        digest = sha256(frame_parts("gatepost/slot/1", *names, place[2])).digest()
        return int.from_bytes(digest[:8], "big") & MAX_UINT

    def _top(self, client: int) -> int:
        place = self._places.get(client)
        return -1 if place is None else self._slots[place].version - 1

    def _slot(self, signed: Signed) -> Slot:
        client = self.client_of(signed.place)
        where = (signed.map, signed.key)
        return Slot(client, signed.version, *where, signed.text, signed.signature)


def _shown(clients: set[int], places: dict[int, Place]) -> set[int]:
    """The clients that Yjs shows at the keys of `clients`: the greatest id at each key."""
    keys = {places[client][:2] for client in clients}
    greatest: dict[tuple[str, str], int] = {}
    for client, (map, key, _) in places.items() if keys else ():
        if (map, key) in keys:
            greatest[map, key] = max(client, greatest.get((map, key), 0))
    return set(greatest.values())
