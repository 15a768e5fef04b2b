"""A gateway in this process that founded its room, and a mesh service without a socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gatepost.mesh.service.mesh_service import MeshService
from gatepost.room.service.room_replica import RoomReplica
from gatepost.testing import ManualClock
from tests.gateway.tools import opened
from tests.mesh.service.memory_transport import MemoryTransport


@pytest.fixture
async def replica(state: Path, clock: ManualClock) -> AsyncIterator[RoomReplica]:
    settings = {"mesh__transport": "udp", "mesh__priority": 7, "mesh__peers": "127.0.0.1:9"}
    async with opened(state, clock, node__id="ann", **settings) as operations:
        replica = RoomReplica(operations.core)
        await replica.load_room()
        yield replica


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def mesh(replica: RoomReplica, transport: MemoryTransport) -> MeshService:
    async def read_token() -> str | None:
        return None

    return MeshService(replica, transport, read_token)
