"""Shared by tests of the replica and its parts: a record to publish, and the records on disk."""

from typing import Any

from gatepost.gateway.peers.room_replica import RoomReplica
from gatepost.room import ReviewRecord
from tests.gateway.tools import dump

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


def records_on_disk(replica: RoomReplica) -> set[str]:
    return {row[4] for row in dump(replica.core)["room_record"]}
