"""The proof of a room's epoch: the coordinator's signed record that names it.

A node that was away learns from its peers that the room has moved to a later document. A peer's
word is not enough: only the coordinator starts an epoch, so the peer shows the record by which it
did. Epoch 1 needs no proof.
"""

from typing import Annotated

from msgspec import Meta, Struct

from gatepost.errors import RoomViolation
from gatepost.room.admission_chain import ChainVerifier, Genesis
from gatepost.room.records import CoordinationRecord
from gatepost.room.signed_record import SignedRecord, open_signed_record

# Long enough for a claim with its mandate and a long chain of admissions.
MAX_PROOF_RECORD = 4096
# An elected coordinator may be this far ahead of a node that was away.
MAX_ELECTED_LEAD = 1000
MAX_PROOF_SIGNATURE = 88


class EpochProof(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The text and signature of a coordination record."""

    record: Annotated[str, Meta(max_length=MAX_PROOF_RECORD)]
    signature: Annotated[str, Meta(max_length=MAX_PROOF_SIGNATURE)]


def make_epoch_proof(signed: SignedRecord) -> EpochProof:
    return EpochProof(signed.text, signed.signature)


def proven_epoch(proof: EpochProof, genesis: Genesis, known: int = 1) -> int:
    """The epoch that the proof names; RoomViolation unless the room's coordinator signed it.

    An elected coordinator cannot prove an epoch far beyond the `known` one.
    """
    signed = open_signed_record(proof.record, proof.signature, ChainVerifier(genesis))
    if not isinstance(signed.data, CoordinationRecord):
        raise RoomViolation("the proof of an epoch is another record", rule="epoch")
    is_elected = signed.public_key != genesis.key
    if is_elected and signed.data.room_epoch > known + MAX_ELECTED_LEAD:
        raise RoomViolation("an elected coordinator names an epoch too far ahead", rule="epoch")
    return signed.data.room_epoch
