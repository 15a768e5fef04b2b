from pathlib import Path
from typing import Any

import pytest

from gatepost.errors import Unavailable
from gatepost.links.service.join_client import JoinClient
from gatepost.mesh.service.transport_choice import create_transport
from gatepost.mesh.service.transport_services import TransportServices
from gatepost.mesh.transports.tor import TorTransport
from gatepost.mesh.transports.udp import UdpTransport
from gatepost.mesh.transports.wireguard import WireGuardTransport
from gatepost.room.service.room_replica import RoomReplica
from gatepost.testing import ManualClock
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio
UNUSED: Any = None


KINDS = {"udp": UdpTransport, "wireguard": WireGuardTransport, "tor": TorTransport}


@pytest.mark.parametrize("name", KINDS)
async def test_the_settings_choose_the_transport(
    state: Path, clock: ManualClock, name: str
) -> None:
    async with opened(state, clock, node__id="ann", mesh__transport=name) as operations:
        assert isinstance(create_transport(operations.core), KINDS[name])


async def test_without_a_mesh_there_is_no_transport(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock, node__id="ann") as operations:
        assert create_transport(operations.core) is None


@pytest.mark.parametrize(
    ("public_url", "local_url", "endpoint"),
    [
        ("", "http://127.0.0.1:7433", "ws://{onion}"),
        ("", "https://127.0.0.1:7433", "wss://{onion}"),
        ("https://vps.example", "http://127.0.0.1:7433", None),
    ],
)
async def test_the_onion_service_is_the_address_of_the_gateway(
    state: Path, clock: ManualClock, public_url: str, local_url: str, endpoint: str | None
) -> None:
    values = {"node__id": "ann", "mesh__transport": "tor", "room__public_url": public_url}
    async with opened(state, clock, **values) as operations:
        replica = RoomReplica(operations.core)
        transport = create_transport(operations.core)
        assert isinstance(transport, TorTransport)
        TransportServices(replica, transport, UNUSED, UNUSED).prepare(local_url)
        expected = None if endpoint is None else endpoint.format(onion=transport.onion_host)
        assert replica.endpoint == expected
        assert replica.transport.onion == transport.onion_host
        assert transport.service.http_target == "127.0.0.1:7433"


async def test_a_gateway_without_tor_says_that_it_cannot_reach_an_onion_service(
    replica: RoomReplica,
) -> None:
    client = JoinClient(replica.core, replica.members)
    with pytest.raises(Unavailable, match=r"mesh\.transport = tor"):
        await client.fetch_descriptor(f"http://{'a' * 56}.onion")
