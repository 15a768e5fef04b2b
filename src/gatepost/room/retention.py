"""Retention of room records, and rotation to a new document without the ended ones.

The latest version of a record stays as long as its document, because a node that was away may
bring an older version back. A writer therefore replaces its ended records by tombstones. From time
to time the coordinator names a later epoch in its claim. An epoch is a new document, and every
replica copies the records worth keeping into it, signatures included. Replicas need not agree on
the selection; the new document merges like any other.

A node that was away when the epoch started copies only its own records. It cannot know which
records of other nodes were withdrawn meanwhile.
"""

from collections.abc import Iterable

from gatepost.room.document import RoomDocument
from gatepost.room.epoch_proof import EpochProof, proven_epoch
from gatepost.room.records import (
    DescriptorRecord,
    IncidentRecord,
    InviteRecord,
    RecordRetention,
    ReviewRecord,
    RoomRecord,
)
from gatepost.room.room import SharedRoom
from gatepost.room.signed_record import SignedRecord
from gatepost.room.writer_quota import MAX_SLOTS_PER_WRITER

# A rotation must save this much, because it costs every node a full sync.
_MIN_SAVED_BYTES = 64 * 1024
# A tombstone is needed only until every connected replica has it, so it may go early.
_CROWDED_TOMBSTONE_MS = 3_600_000


def finished_records(
    room: SharedRoom, now: int, retention: RecordRetention
) -> list[tuple[str, str]]:
    """Map and key of this node's ended records, ready to be tombstoned."""
    own = room.drafter.author.key.public
    return [
        (signed.map, signed.key)
        for signed in room.document
        if signed.public_key == own and signed.data and _is_over(signed.data, now, retention)
    ]


def is_rotation_due(room: SharedRoom, now: int, retention: RecordRetention) -> bool:
    """Whether a rotation would drop most of the document and enough bytes.

    It is also due if it drops tombstones of a writer that runs out of slots.
    """
    kept = {signed.slot_key for signed in _records_to_keep(room.document, now, retention)}
    dropped = [signed for signed in room.document if signed.slot_key not in kept]
    dropped_size = sum(len(signed.text) for signed in dropped)
    kept_size = sum(len(signed.text) for signed in room.document) - dropped_size
    crowded = _crowded_writers(room.document)
    return dropped_size > max(_MIN_SAVED_BYTES, kept_size) or any(
        signed.public_key in crowded for signed in dropped
    )


def rotate_room(
    room: SharedRoom, proof: EpochProof, now: int, retention: RecordRetention
) -> SharedRoom:
    """Move the room to a later epoch, on a node that was present when the epoch started."""
    return _move_room(room, proof, _records_to_keep(room.document, now, retention))


def rejoin_room(room: SharedRoom, proof: EpochProof) -> SharedRoom:
    """Move the room to a later epoch on a node that was away: own records first, then a sync."""
    own = room.drafter.author.key.public
    return _move_room(
        room, proof, (s for s in room.document.held_records() if s.public_key == own and s.data)
    )


def _move_room(room: SharedRoom, proof: EpochProof, records: Iterable[SignedRecord]) -> SharedRoom:
    drafter = room.drafter
    return SharedRoom(
        room.genesis,
        author=drafter.author,
        epoch=proven_epoch(proof, room.genesis, room.epoch),
        epoch_proof=proof,
        records=records,
        leap=drafter.leap,
        node_keys=room.node_keys.identities(),
        owners=room.owners,
        evidence=room.evidence,
    )


def _crowded_writers(document: RoomDocument) -> set[bytes]:
    """The writers for which tombstones use up a quarter of their slots."""
    limit = MAX_SLOTS_PER_WRITER // 4
    quotas = document.quotas
    return {writer for writer in quotas.slot_counts if quotas.tombstone_count(writer) > limit}


def _records_to_keep(
    document: RoomDocument, now: int, retention: RecordRetention
) -> Iterable[SignedRecord]:
    crowded = _crowded_writers(document)
    for signed in document.held_records():
        if signed.data is None:
            kept_ms = retention.tombstone_ms
            if signed.public_key in crowded:
                kept_ms = min(kept_ms, _CROWDED_TOMBSTONE_MS)
            over = signed.at + kept_ms <= now and not _is_node_record(signed)
        else:
            over = _is_over(signed.data, now, retention)
        if not over:
            yield signed


def _is_node_record(signed: SignedRecord) -> bool:
    """Whether this is a node's record about itself. Its key still verifies old agent transfers."""
    return signed.map == "nodes" and signed.key == signed.writer


def _is_over(data: RoomRecord, now: int, retention: RecordRetention) -> bool:
    if isinstance(data, InviteRecord):
        ended = min(t for t in (data.expires_at, data.used_at, data.revoked_at) if t is not None)
        return ended + retention.invite_ms <= now
    if isinstance(data, ReviewRecord | IncidentRecord) and data.settled_at is not None:
        return data.settled_at + retention.review_ms <= now
    if isinstance(data, DescriptorRecord):
        return data.expires_at <= now
    if isinstance(data, IncidentRecord):
        return data.raised_at + retention.review_ms <= now
    return False
