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
from gatepost.room.signed_record import SignedRecord
from gatepost.room.slot_digest import DigestIndex
from gatepost.room.writer_quota import WriterQuotas
from gatepost.room.yjs_update import DeletedRange, RecordSlot, YjsItem, encode_in_chunks

# Small enough that a gateway which checks such an update does not keep others waiting.
CHUNK_BYTES = 64 * 1024

SlotKey = tuple[str, str, bytes]


class RoomDocument:
    """All slots of one room. It trusts its input; update_guard.py checks updates before."""

    def __init__(self, room_id: str) -> None:
        self.room_id = room_id
        self._slots: dict[SlotKey, SignedRecord] = {}
        self._slot_keys: dict[int, SlotKey] = {}
        self._clients: dict[SlotKey, int] = {}
        self.quotas = WriterQuotas()
        self.digests = DigestIndex()

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[SignedRecord]:
        return iter(self._slots.values())

    def record_at(self, slot_key: SlotKey) -> SignedRecord | None:
        return self._slots.get(slot_key)

    def is_newer(self, signed: SignedRecord) -> bool:
        known = self._slots.get(signed.slot_key)
        return known is None or signed.version_order > known.version_order

    def has_capacity_for(self, signed: SignedRecord) -> bool:
        return self.quotas.has_capacity_for(signed, self._slots.get(signed.slot_key))

    def put_record(self, signed: SignedRecord) -> None:
        known = self._slots.get(signed.slot_key)
        if known is None:
            self._open_slot(signed.slot_key)
        self.quotas.replace_record(signed, known)
        self.digests.put_record(self._clients[signed.slot_key], signed)
        self._slots[signed.slot_key] = signed

    def conflicting_record(self, signed: SignedRecord) -> SignedRecord | None:
        """The stored record, if its writer signed another one with the same version."""
        known = self._slots.get(signed.slot_key)
        if known is None or known.version != signed.version or known.text == signed.text:
            return None
        return known

    def matching_record(self, item: YjsItem) -> SignedRecord | None:
        """The stored record, if `item` holds exactly the same text and signature; else None."""
        slot_key = self._slot_keys.get(item.client)
        known = self._slots[slot_key] if slot_key else None
        if known is None or (known.text, known.signature) != (item.record, item.signature):
            return None
        return known

    def check_item(self, item: YjsItem, signed: SignedRecord) -> None:
        """Raise RoomViolation unless the record has its own client, clock, map and key."""
        if item.map_key not in (None, (signed.map, signed.key)):
            raise RoomViolation(f"{signed.map} {signed.key} is at another key", rule="misplaced")
        if (item.client, item.clock) == (self.yjs_client(signed.slot_key), signed.version - 1):
            return
        known = self._slots.get(signed.slot_key)
        rule = "rollback" if known and signed.version <= known.version else "misplaced"
        raise RoomViolation(
            f"version {signed.version} of {signed.map} {signed.key} is at another client or clock",
            rule=rule,
        )

    def check_deletes(
        self, deletes: Iterable[DeletedRange], added: Collection[SignedRecord]
    ) -> None:
        """Raise RoomViolation if a delete covers the latest version of a visible slot.

        Deletes of older versions are normal: every Yjs document lists them. A delete may also cover
        the latest version of a slot that shares its key with another one, because Yjs shows only
        one of the two.
        """
        slot_keys = {self.yjs_client(signed.slot_key): signed.slot_key for signed in added}
        tops = dict.fromkeys(slot_keys, -1)
        for signed in added:
            client = self.yjs_client(signed.slot_key)
            tops[client] = max(tops[client], signed.version - 1)
        deleted = {
            client
            for client, clock, length in deletes
            if clock <= max(tops.get(client, -1), self._latest_clock(client)) < clock + length
        }
        if deleted and deleted & _visible_clients(deleted, self._slot_keys | slot_keys):
            raise RoomViolation("records are not deleted; write a tombstone", rule="deleted")

    def yjs_client(self, slot_key: SlotKey) -> int:
        return self._clients.get(slot_key) or self._derive_client(slot_key)

    def slot_clocks(self) -> list[tuple[int, int]]:
        """The state vector: (client, next clock) of every slot."""
        return [(self._clients[slot_key], s.version) for slot_key, s in self._slots.items()]

    def clients(self) -> Collection[int]:
        """The Yjs clients of all slots."""
        return self._slot_keys.keys()

    def records_newer_than(self, clocks: dict[int, int]) -> list[SignedRecord]:
        """The records that a document with this state vector lacks."""
        return [
            signed
            for slot_key, signed in self._slots.items()
            if signed.version > clocks.get(self._clients[slot_key], 0)
        ]

    def encode_updates(self, records: Iterable[SignedRecord]) -> Iterator[bytes]:
        """Encode the records as one or more updates of about CHUNK_BYTES each."""
        return encode_in_chunks(map(self._as_slot, records), CHUNK_BYTES)

    def _open_slot(self, slot_key: SlotKey) -> None:
        client = self._derive_client(slot_key)
        self._clients[slot_key] = client
        self._slot_keys[client] = slot_key

    def _derive_client(self, slot_key: SlotKey) -> int:
        names = (name.encode() for name in (self.room_id, *slot_key[:2]))
        digest = sha256(frame_parts("gatepost/slot/1", *names, slot_key[2])).digest()
        return int.from_bytes(digest[:8], "big") & MAX_UINT

    def _latest_clock(self, client: int) -> int:
        slot_key = self._slot_keys.get(client)
        return -1 if slot_key is None else self._slots[slot_key].version - 1

    def _as_slot(self, signed: SignedRecord) -> RecordSlot:
        client = self.yjs_client(signed.slot_key)
        where = (signed.map, signed.key)
        return RecordSlot(client, signed.version, *where, signed.text, signed.signature)


def _visible_clients(clients: set[int], slot_keys: dict[int, SlotKey]) -> set[int]:
    """The clients that Yjs shows at the keys of `clients`: the greatest id at each key."""
    keys = {slot_keys[client][:2] for client in clients}
    greatest: dict[tuple[str, str], int] = {}
    for client, (map, key, _) in slot_keys.items() if keys else ():
        if (map, key) in keys:
            greatest[map, key] = max(client, greatest.get((map, key), 0))
    return set(greatest.values())
