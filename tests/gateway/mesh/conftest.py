"""A gateway in this process that founded its room, and a mesh service without a socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gatepost.gateway.mesh.mesh_service import MeshService
from gatepost.gateway.peers.room_replica import RoomReplica
from gatepost.testing import ManualClock
from tests.gateway.mesh.memory_transport import MemoryTransport
from tests.gateway.tools import opened


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
