"""The share of the room that one writer may fill: keys, slots and bytes.

One writer must not fill the room of all others. Beyond its limits replicas may hold different
subsets of the writer's keys, but no peer is cut off for passing its records on. A tombstone frees
one key of its writer. It stays in the document until the next rotation, so the number of slots has
a separate limit.

A backbone node can admit as many writers as it likes. So there are also limits for a *branch*: the
node that the genesis admitted, together with all nodes whose chain begins with it.
"""

from collections import Counter, defaultdict

from gatepost.room.signed_record import SignedRecord

MAX_KEYS_PER_WRITER = 16_384
MAX_SLOTS_PER_WRITER = 2 * MAX_KEYS_PER_WRITER
MAX_BYTES_PER_WRITER = 32 << 20
MAX_WRITERS_PER_BRANCH = 4096
MAX_BYTES_PER_BRANCH = 256 << 20


class WriterQuotas:
    """What each writer and each branch has in one document."""

    def __init__(self) -> None:
        # Per writer: all slots, and those that hold more than a tombstone.
        self.slot_counts: Counter[bytes] = Counter()
        self._live_counts: Counter[bytes] = Counter()
        self._bytes: Counter[bytes] = Counter()
        self._branch_bytes: Counter[bytes] = Counter()
        self._branch_writers: dict[bytes, set[bytes]] = defaultdict(set)

    def tombstone_count(self, writer: bytes) -> int:
        return self.slot_counts[writer] - self._live_counts[writer]

    def has_capacity_for(self, signed: SignedRecord, known: SignedRecord | None) -> bool:
        """Whether a record fits in place of the known one of its slot."""
        writer = signed.public_key
        if known is None and self.slot_counts[writer] >= MAX_SLOTS_PER_WRITER:
            return False
        was_live = known is not None and known.data is not None
        is_one_more = signed.data is not None and not was_live
        if is_one_more and self._live_counts[writer] >= MAX_KEYS_PER_WRITER:
            return False
        return self._has_bytes_for(signed, known) and self._has_place_in_branch(signed)

    def replace_record(self, signed: SignedRecord, known: SignedRecord | None) -> None:
        """Count a record in place of the known one of its slot."""
        writer, branch = signed.public_key, signed.chain[0].key
        was_live = known is not None and known.data is not None
        self.slot_counts[writer] += known is None
        self._live_counts[writer] += (signed.data is not None) - was_live
        self._bytes[writer] += len(signed.text)
        self._branch_bytes[branch] += len(signed.text)
        self._branch_writers[branch].add(writer)
        if known is not None:
            self._bytes[writer] -= len(known.text)
            self._branch_bytes[known.chain[0].key] -= len(known.text)

    def _has_bytes_for(self, signed: SignedRecord, known: SignedRecord | None) -> bool:
        more = len(signed.text) - (len(known.text) if known else 0)
        if more <= 0:
            return True
        in_branch = self._branch_bytes[signed.chain[0].key] + more
        return (
            self._bytes[signed.public_key] + more <= MAX_BYTES_PER_WRITER
            and in_branch <= MAX_BYTES_PER_BRANCH
        )

    def _has_place_in_branch(self, signed: SignedRecord) -> bool:
        writers = self._branch_writers[signed.chain[0].key]
        return signed.public_key in writers or len(writers) < MAX_WRITERS_PER_BRANCH
