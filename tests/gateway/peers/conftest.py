"""A gateway in this process that founded its room and may publish in it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gatepost.gateway.peers.record_publisher import RecordPublisher
from gatepost.gateway.peers.room_replica import RoomReplica
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
def publisher(replica: RoomReplica) -> RecordPublisher:
    publisher = RecordPublisher(replica)
    publisher.may_publish.set()
    return publisher
