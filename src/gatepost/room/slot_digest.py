"""Digests of the slots: how two replicas notice that they hold different records.

A sync compares versions only. A writer that signs one version twice could leave two replicas
different for ever. So replicas also compare digests: first of 256 buckets of slots, then of the
slots in the buckets that differ. Each side sends the records that differ, and both keep the same
one. The digest is not a sum of parts, so that a writer cannot choose records that cancel out.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from hashlib import sha256

from msgspec import Struct

from gatepost.room import lib0
from gatepost.room.lib0 import Lib0Reader
from gatepost.room.signed_record import SignedRecord

BUCKETS = 256
HASH_BYTES = 16
# Slots of one answer. The buckets that are left out come next time.
MAX_SLOTS = 1024


class SlotDigest(Struct, frozen=True):
    """The state of one slot: its Yjs client, its version, and the hash of its record."""

    client: int
    version: int
    hash: bytes


def digest_slot(client: int, signed: SignedRecord) -> SlotDigest:
    hash = sha256(signed.text.encode()).digest()[:HASH_BYTES]
    return SlotDigest(client, signed.version, hash)


class DigestIndex:
    """The digests of a document's buckets. Only buckets that changed are digested again."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, SignedRecord]] = defaultdict(dict)
        self._digests = [b"\0" * HASH_BYTES] * BUCKETS
        self._stale: set[int] = set()

    def put_record(self, client: int, signed: SignedRecord) -> None:
        self._buckets[client % BUCKETS][client] = signed
        self._stale.add(client % BUCKETS)

    def bucket_digests(self) -> list[bytes]:
        for bucket in self._stale:
            self._digests[bucket] = self._digest_bucket(bucket)
        self._stale.clear()
        return list(self._digests)

    def differing_buckets(self, theirs: list[bytes]) -> list[int]:
        ours = self.bucket_digests()
        return [bucket for bucket in range(BUCKETS) if ours[bucket] != theirs[bucket]]

    def slots_in(self, buckets: Iterable[int]) -> list[SlotDigest]:
        """The slots of these buckets, at most MAX_SLOTS."""
        found: list[SlotDigest] = []
        for bucket in buckets:
            slots = self._buckets[bucket]
            if found and len(found) + len(slots) > MAX_SLOTS:
                break
            found += [digest_slot(client, signed) for client, signed in slots.items()]
        return found[:MAX_SLOTS]

    def differing_records(self, slots: Iterable[SlotDigest]) -> list[SignedRecord]:
        """Our records that differ from the peer's in the same slot, unless the peer's is newer."""
        found = []
        for theirs in slots:
            ours = self._buckets[theirs.client % BUCKETS].get(theirs.client)
            if ours is None or ours.version < theirs.version:
                continue
            if digest_slot(theirs.client, ours) != theirs:
                found.append(ours)
        return found

    def _digest_bucket(self, bucket: int) -> bytes:
        digest = sha256()
        for client, signed in sorted(self._buckets[bucket].items()):
            text = signed.text.encode()
            digest.update(client.to_bytes(8, "big") + len(text).to_bytes(4, "big") + text)
        return digest.digest()[:HASH_BYTES]


def encode_buckets(digests: Collection[bytes]) -> bytes:
    return b"".join(digests)


def decode_buckets(data: bytes) -> list[bytes]:
    if len(data) != BUCKETS * HASH_BYTES:
        raise lib0.malformed_error("this is no digest of the slots")
    return [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]


def encode_slots(slots: Collection[SlotDigest]) -> bytes:
    entries = (lib0.encode_uint(s.client) + lib0.encode_uint(s.version) + s.hash for s in slots)
    return lib0.encode_uint(len(slots)) + b"".join(entries)


def decode_slots(reader: Lib0Reader) -> list[SlotDigest]:
    return [
        SlotDigest(reader.read_uint(), reader.read_uint(), reader.read_exactly(HASH_BYTES))
        for _ in range(reader.read_count(MAX_SLOTS))
    ]
