"""The room as a Yjs document: one slot per key and writer, holding the latest version.

A slot is (map, key, public key of the writer). Each slot has its own Yjs client id, derived from
the room and these three; the version of a record is its Yjs clock. Invariants, on which the rest of
the package relies:

1. **One writer.** Only the holder of the key can sign for a slot, so concurrent writes of one slot
   do not exist. Yjs would resolve them by client id, which a client can choose freely.
2. **Merge by version.** Merging two documents means taking the greater version slot by slot. The
   result does not depend on the order of arrival, and a merge repeated changes nothing.
3. **One place.** A signed record fits exactly one client and clock. Anywhere else it is a violation
   (`check_item`). So an old record cannot replace a newer one, no record can replace another, and
   no writer can occupy the clocks of another's next version.
4. **A version is signed once.** A gateway has its own record on disk before it sends it
   (service/record_announcer.py), and begins with a leap of versions after a restore. A writer that
   signs one version twice leaves two replicas different, although they hold the same versions.
   Replicas therefore compare digests (slot_digest.py), keep the record with the greater text, and
   keep the proof against the writer (evidence.py).
5. **Constant cost.** A slot costs the same however often it was written: older clocks are one range
   of deletes. A record that ended is replaced by a tombstone, whose slot stays until the next
   rotation (retention.py); quotas count slots, keys and bytes for each writer (writer_quota.py).
6. **Collisions lose nothing.** A client id has 53 bits, so a writer that tries long enough finds
   two slots with one id. Of the latest records of such slots, the one with the senior writer
   counts, and among equals the one with the smaller slot key. The other record is held but neither
   served nor shown. The outcome is the same in any order of arrival, and ends with the document:
   in the next one the slots have other clients.
7. **Deletes hide nothing.** Deletes cover older versions only, and the latest version of a slot
   that Yjs hides anyway, because another slot with the same key has a greater client id
   (`check_deletes`). A record ends by a tombstone.
8. **Bytes of others are never applied.** Incoming updates are parsed and checked (`UpdateGuard` in
   room.py). The document is a function of its records: only the records are stored, and updates for
   Yjs clients are encoded from them (yjs_update.py).

Being stored is not the same as counting: effective_records.py says which records count.
"""

from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256

from gatepost.errors import RoomViolation
from gatepost.events import frame_parts
from gatepost.room.lib0 import MAX_UINT
from gatepost.room.membership import SeniorityRank, rank_chain
from gatepost.room.signed_record import SignedRecord
from gatepost.room.slot_digest import DigestIndex
from gatepost.room.writer_quota import WriterQuotas
from gatepost.room.yjs_update import DeletedRange, RecordSlot, YjsItem, encode_in_chunks

# Small enough to be checked without blocking other work.
CHUNK_BYTES = 64 * 1024

SlotKey = tuple[str, str, bytes]


class RoomDocument:
    """All slots of one room. It trusts its input; `UpdateGuard` checks updates before."""

    def __init__(self, room_id: str) -> None:
        self.room_id = room_id
        self._slots: dict[SlotKey, SignedRecord] = {}
        # The slot that each client serves, and all slots of clients that have several.
        self._slot_keys: dict[int, SlotKey] = {}
        self._colliding: dict[int, set[SlotKey]] = {}
        self._clients: dict[SlotKey, int] = {}
        self.quotas = WriterQuotas()
        self.digests = DigestIndex()

    def __len__(self) -> int:
        return len(self._slot_keys)

    def __iter__(self) -> Iterator[SignedRecord]:
        """The records that are served."""
        return (self._slots[slot_key] for slot_key in self._slot_keys.values())

    def held_records(self) -> Collection[SignedRecord]:
        """All records, including those that are not served because they collide."""
        return self._slots.values()

    def record_at(self, slot_key: SlotKey) -> SignedRecord | None:
        return self._slots.get(slot_key)

    def served_instead_of(self, slot_key: SlotKey) -> SignedRecord | None:
        """The record served under this slot's Yjs client id; two slots can share one id."""
        served = self._slot_keys.get(self.yjs_client(slot_key))
        return None if served is None else self._slots[served]

    def is_newer(self, signed: SignedRecord) -> bool:
        known = self._slots.get(signed.slot_key)
        return known is None or signed.version_order > known.version_order

    def has_capacity_for(self, signed: SignedRecord) -> bool:
        return self.quotas.has_capacity_for(signed, self._slots.get(signed.slot_key))

    def put_record(self, signed: SignedRecord) -> SignedRecord | None:
        """Store a record; return the one that its client served before."""
        slot_key, known = signed.slot_key, self._slots.get(signed.slot_key)
        if known is None:
            self._open_slot(slot_key)
        client = self._clients[slot_key]
        before = self._slots.get(self._slot_keys[client])
        self.quotas.replace_record(signed, known)
        self._slots[slot_key] = signed
        if client in self._colliding:
            slot_key = min(self._colliding[client], key=self._precedence)
            self._slot_keys[client] = slot_key
        self.digests.put_record(client, self._slots[slot_key])
        return before

    @property
    def has_collisions(self) -> bool:
        return bool(self._colliding)

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
        if item.first > self._next_clock(item.client):
            raise RoomViolation(f"{signed.map} {signed.key} begins in a gap", rule="form")
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
        """Raise RoomViolation unless the deletes cover older versions only.

        Every Yjs document lists these. A delete may also cover the latest version of a slot that
        shares its key with another one, because Yjs shows only one of the two.
        """
        slot_keys = {self.yjs_client(signed.slot_key): signed.slot_key for signed in added}
        versions = {self.yjs_client(signed.slot_key): signed.version for signed in added}
        hidden = set()
        for client, clock, length in deletes:
            latest = max(versions.get(client, 0), self._next_clock(client))
            if clock + length > latest or not length:
                raise RoomViolation("a delete of clocks that no record has", rule="deleted")
            if clock + length == latest:
                hidden.add(client)
        if hidden and hidden & _visible_clients(hidden, self._slot_keys | slot_keys):
            raise RoomViolation("records are not deleted; write a tombstone", rule="deleted")

    def yjs_client(self, slot_key: SlotKey) -> int:
        return self._clients.get(slot_key) or self._derive_client(slot_key)

    def slot_clocks(self) -> list[tuple[int, int]]:
        """The state vector: (client, next clock) of every slot."""
        return [
            (client, self._slots[slot_key].version) for client, slot_key in self._slot_keys.items()
        ]

    def clients(self) -> Collection[int]:
        """The Yjs clients of all slots."""
        return self._slot_keys.keys()

    def records_newer_than(self, clocks: dict[int, int]) -> list[SignedRecord]:
        """The records that a document with this state vector lacks."""
        return [
            self._slots[slot_key]
            for client, slot_key in self._slot_keys.items()
            if self._slots[slot_key].version > clocks.get(client, 0)
        ]

    def encode_updates(self, records: Iterable[SignedRecord]) -> Iterator[bytes]:
        """Encode the records as one or more updates of about CHUNK_BYTES each."""
        return encode_in_chunks(map(self._as_slot, records), CHUNK_BYTES)

    def _open_slot(self, slot_key: SlotKey) -> None:
        client = self._derive_client(slot_key)
        self._clients[slot_key] = client
        first = self._slot_keys.setdefault(client, slot_key)
        if first != slot_key:
            self._colliding.setdefault(client, {first}).add(slot_key)

    def _precedence(self, slot_key: SlotKey) -> tuple[SeniorityRank, SlotKey]:
        return rank_chain(self._slots[slot_key].chain), slot_key

    def _derive_client(self, slot_key: SlotKey) -> int:
        names = (name.encode() for name in (self.room_id, *slot_key[:2]))
        digest = sha256(frame_parts("gatepost/slot/1", *names, slot_key[2])).digest()
        return int.from_bytes(digest[:8], "big") & MAX_UINT

    def _next_clock(self, client: int) -> int:
        """The next clock of this client's slot, which is also its latest version."""
        slot_key = self._slot_keys.get(client)
        return 0 if slot_key is None else self._slots[slot_key].version

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
