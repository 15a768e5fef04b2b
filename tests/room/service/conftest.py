"""A gateway in this process that founded its room and may publish in it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.room.service.room_replica import RoomReplica
from gatepost.testing import ManualClock
from tests.gateway.tools import opened


@pytest.fixture
async def replica(state: Path, clock: ManualClock) -> AsyncIterator[RoomReplica]:
    async with opened(state, clock, node__id="ann") as operations:
        replica = RoomReplica(operations.core)
        await replica.load_room()
        await replica.found_room(lambda tx: None)
        yield replica


@pytest.fixture
def announcer(replica: RoomReplica) -> RecordAnnouncer:
    announcer = RecordAnnouncer(replica)
    announcer.may_publish.set()
    return announcer
