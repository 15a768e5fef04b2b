"""Shared by tests of the replica and its parts: records to publish, members, records on disk."""

from typing import Any

from gatepost.room import RecordAuthor, ReviewRecord, sign_admission
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from gatepost.wire.operations import Tier
from tests.gateway.tools import dump
from tests.room.sample_records import key, node, update

REVIEW_SLOT = ("reviews", "r1@ann")


def review(status: Any = "open") -> ReviewRecord:
    return ReviewRecord(
        capability_id="c",
        delegation_skill_version="1",
        executor_skill_version="1",
        failure_class="eta_breach",
        raised_at=1,
        status=status,
    )


def admit_member(replica: RoomReplica, name: str, tier: Tier = "backbone") -> RecordAuthor:
    """Another member of the room, which has no gateway; this gateway, ann, admitted it."""
    room, own = replica.current_room, replica.author
    link = sign_admission(own.key, "ann", name, key(name).public, tier, 1)
    author = RecordAuthor(key(name), (link,))
    signed = sign_record(author, "nodes", name, 1, 1, node(author, room.genesis))
    room.apply_update(update(signed), "peer")
    return author


def records_on_disk(replica: RoomReplica) -> set[str]:
    return {row[4] for row in dump(replica.core)["room_record"]}
