"""Proofs that a writer signed one version twice: one per writer, the same on all replicas.

A replica notices two records of one version only while it holds that version, so replicas notice
different ones, or none. They exchange their proofs (sync_protocol.py). Of several proofs against a
writer all replicas keep the same one: the least map, key and version, and of the records that were
signed for it the two with the least texts. The order of arrival therefore makes no difference.
"""

from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256

from msgspec import Struct

from gatepost.errors import RoomViolation
from gatepost.room.signed_record import SignedRecord

PROOF_HASH_BYTES = 16
# The most proofs in one exchange.
MAX_PROOFS = 2048
# The most writers per branch (writer_quota.py), because a backbone node can admit any number.
_MAX_WRITERS_PER_BRANCH = 64


class SignedTwice(Struct, frozen=True):
    """Two records of one slot and version; the first one has the lesser text."""

    first: SignedRecord
    second: SignedRecord

    @property
    def writer(self) -> str:
        return self.first.writer

    @property
    def place(self) -> tuple[str, str, int]:
        return self.first.map, self.first.key, self.first.version

    @property
    def hash(self) -> bytes:
        texts = (self.first.text.encode(), self.second.text.encode())
        return sha256(b"".join(sha256(text).digest() for text in texts)).digest()[:PROOF_HASH_BYTES]


def prove_signed_twice(one: SignedRecord, other: SignedRecord) -> SignedTwice:
    """Raise RoomViolation unless the two records prove it."""
    same = (one.slot_key, one.version) == (other.slot_key, other.version)
    if not same or one.text == other.text:
        raise RoomViolation("the two records prove nothing", rule="evidence")
    return SignedTwice(*sorted((one, other), key=lambda signed: signed.text))


class Evidence:
    """The proofs that this replica knows."""

    def __init__(self, proofs: Iterable[SignedTwice] = ()) -> None:
        self._proofs = {proof.first.public_key: proof for proof in proofs}

    def __iter__(self) -> Iterator[SignedTwice]:
        return iter(self._proofs.values())

    def add_proof(self, proof: SignedTwice) -> SignedTwice | None:
        """Return the proof against the writer that is kept from now on; None if it is the same."""
        known = self._proofs.get(proof.first.public_key)
        if known is None and not self._has_capacity_for(proof):
            return None
        kept = proof if known is None else _choose_proof(known, proof)
        if kept == known:
            return None
        self._proofs[proof.first.public_key] = kept
        return kept

    def hashes(self) -> list[bytes]:
        return sorted(proof.hash for proof in self)[:MAX_PROOFS]

    def proofs_beyond(self, hashes: Collection[bytes]) -> list[SignedTwice]:
        """The proofs that a replica with these hashes lacks."""
        known = set(hashes)
        return [proof for proof in self if proof.hash not in known]

    def _has_capacity_for(self, proof: SignedTwice) -> bool:
        branch = proof.first.chain[0].key
        of_branch = sum(each.first.chain[0].key == branch for each in self)
        return of_branch < _MAX_WRITERS_PER_BRANCH and len(self._proofs) < MAX_PROOFS


def _choose_proof(one: SignedTwice, other: SignedTwice) -> SignedTwice:
    if one.place != other.place:
        return min(one, other, key=lambda proof: proof.place)
    by_text = {s.text: s for proof in (other, one) for s in (proof.first, proof.second)}
    return SignedTwice(*(by_text[text] for text in sorted(by_text)[:2]))
