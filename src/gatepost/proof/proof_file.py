"""The file of a proof: commit groups with the events of one message, and what vouches for them.

Each part is signed by the gateway it speaks for. The gateway that gathered the parts signs them as
a whole, and the file has one spelling only, so that no byte of it can change unnoticed.
"""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from gatepost.archive.signed_json import bytes_to_sign, encode_canonical
from gatepost.errors import ProofRejected
from gatepost.events import (
    ChainHead,
    EventId,
    NodeId,
    NodeKey,
    Signature,
    frame_parts,
    verify_signature,
)
from gatepost.events.chain import ChainHash, Incarnation
from gatepost.events.encryption import KEY_SIZE
from gatepost.events.envelope import EpochMs, Seq
from gatepost.room import Genesis
from gatepost.room.admission_chain import AdmissionChain

MAX_PROOF_BYTES: Final = 4 * 1024 * 1024
MAX_GROUPS: Final = 64
MAX_EVENTS: Final = 64
MAX_SEEN: Final = 256
MAX_NODES: Final = 64
MAX_RECORDS: Final = 512
# Behind its group, a message is pinned by a head that is at most this many events away.
MAX_STRETCH: Final = 16_384

_DOMAIN = "gatepost/proof/1"
_HASH = 32

ProofText = Annotated[str, Meta(max_length=300)]


class ProvenGroup(Struct, frozen=True, kw_only=True, rename="camel"):
    """One commit group of an outbox: its signed head, all its digests, and the events of interest.

    `events` are the encoded events as they travelled.
    """

    source: NodeId
    incarnation: Incarnation
    first: Seq
    last: Seq
    previous: ChainHash
    chain: ChainHash
    signature: Signature
    digests: bytes
    events: Annotated[list[bytes], Meta(min_length=1, max_length=MAX_EVENTS)]

    @property
    def head(self) -> ChainHead:
        return ChainHead(
            self.source, self.incarnation, self.first, self.last, self.chain, self.signature
        )

    @property
    def size(self) -> int:
        return len(self.digests) + sum(map(len, self.events))

    def split_digests(self) -> list[bytes]:
        return split_digests(self.digests)


class SeenHead(Struct, frozen=True, kw_only=True, rename="camel"):
    """What one gateway says of the outbox of another: it has read it up to `seq`, by `at`.

    `chain` is the hash chain there, if the gateway checked it. A gateway that reads only its own
    events from a direct link cannot check it.
    """

    witness: NodeId
    source: NodeId
    incarnation: Incarnation
    seq: Seq
    at: EpochMs
    chain: Annotated[bytes, Meta(max_length=_HASH)] = b""
    signature: Annotated[bytes, Meta(max_length=64)] = b""


class DigestStretch(Struct, frozen=True, kw_only=True, rename="camel"):
    """The digests of the events behind `after`: they lead from a group to a head seen later."""

    source: NodeId
    incarnation: Incarnation
    after: Seq
    digests: bytes

    @property
    def upto(self) -> int:
        return self.after + len(self.digests) // _HASH


class SignedText(Struct, frozen=True):
    """A signed record of the room, as the room holds it."""

    record: Annotated[str, Meta(max_length=65_536)]
    signature: Annotated[str, Meta(max_length=128)]


class ProofFile(Struct, frozen=True, kw_only=True, rename="camel"):
    """`chains` name the keys of all nodes in the file. `missing` lists the parts that no node
    supplied.

    `revocations` are the revocations of these nodes that the maker knew. `keys` are content keys of
    events whose payloads the proof shows.
    """

    format: Literal["gatepost-proof/1"] = "gatepost-proof/1"
    event_id: EventId
    genesis: Genesis
    made_by: NodeId
    made_at: EpochMs
    chains: Annotated[list[AdmissionChain], Meta(min_length=1, max_length=MAX_NODES)]
    groups: Annotated[list[ProvenGroup], Meta(min_length=1, max_length=MAX_GROUPS)]
    seen: Annotated[list[SeenHead], Meta(max_length=MAX_SEEN)] = []
    stretches: Annotated[list[DigestStretch], Meta(max_length=MAX_GROUPS)] = []
    revocations: Annotated[list[SignedText], Meta(max_length=MAX_RECORDS)] = []
    keys: Annotated[
        dict[EventId, Annotated[bytes, Meta(min_length=KEY_SIZE, max_length=KEY_SIZE)]],
        Meta(max_length=MAX_EVENTS),
    ] = {}
    missing: Annotated[list[ProofText], Meta(max_length=MAX_NODES)] = []
    signature: Annotated[bytes, Meta(max_length=64)] = b""


def sign_seen_head(key: NodeKey, seen: SeenHead) -> SeenHead:
    return replace(seen, signature=key.sign(_seen_statement(seen)))


def is_seen_head_signed(seen: SeenHead, public_key: bytes) -> bool:
    return verify_signature(public_key, _seen_statement(seen), seen.signature)


def sign_proof(key: NodeKey, proof: ProofFile) -> ProofFile:
    return replace(proof, signature=key.sign(bytes_to_sign(_DOMAIN, proof)))


def is_proof_signed(proof: ProofFile, public_key: bytes) -> bool:
    return verify_signature(public_key, bytes_to_sign(_DOMAIN, proof), proof.signature)


def encode_proof(proof: ProofFile) -> bytes:
    """Return the bytes of the file; ProofRejected if they are too many."""
    data = encode_canonical(proof)
    if len(data) > MAX_PROOF_BYTES:
        raise ProofRejected(
            f"the proof takes {len(data)} bytes, at most {MAX_PROOF_BYTES} are allowed"
        )
    return data


def decode_proof(data: bytes) -> ProofFile:
    """Decode a file of a proof; any other input raises ProofRejected and nothing else."""
    if len(data) > MAX_PROOF_BYTES:
        raise ProofRejected(f"a proof takes at most {MAX_PROOF_BYTES} bytes, not {len(data)}")
    try:
        proof = msgspec.json.decode(data, type=ProofFile)
    except (ValueError, RecursionError) as error:
        raise ProofRejected(f"not a proof of a message: {error}") from None
    if encode_canonical(proof) != data:
        raise ProofRejected("the proof is not spelled as it was written: it was changed")
    return proof


def split_digests(digests: bytes) -> list[bytes]:
    return [digests[at : at + _HASH] for at in range(0, len(digests), _HASH)]


def named_nodes(proof: ProofFile) -> Iterator[str]:
    """The nodes whose keys it takes to verify the proof."""
    yield proof.made_by
    yield from (group.source for group in proof.groups)
    yield from (seen.witness for seen in proof.seen)


def _seen_statement(seen: SeenHead) -> bytes:
    names = (each.encode() for each in (seen.witness, seen.source, seen.incarnation))
    numbers = seen.seq.to_bytes(8, "big"), seen.at.to_bytes(8, "big")
    return frame_parts("gatepost/seen-head/1", *names, *numbers, seen.chain)
