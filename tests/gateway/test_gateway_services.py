"""The services of a gateway, made in this process: their routes, and what health knows of them."""

from pathlib import Path

import pytest

from gatepost.gateway.gateway_services import GatewayServices
from gatepost.gateway.serve import _operator_access
from gatepost.testing import ManualClock
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio


async def test_every_service_has_its_routes(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        services = GatewayServices(operations, _operator_access(operations.core))
        paths = {route.path for route in services.create_app().routes}
    assert paths >= {
        "/v1/messages",
        "/v1/mesh",
        "/v1/room/nodes",
        "/.well-known/gatepost/descriptor.json",
        "/api/hub/tasks",
    }


@pytest.mark.parametrize("transport", ["off", "udp"])
async def test_a_mesh_tells_others_of_unhealthy_agents(
    state: Path, clock: ManualClock, transport: str
) -> None:
    async with opened(state, clock, mesh__transport=transport) as operations:
        services = GatewayServices(operations, _operator_access(operations.core))
        mesh = services.peering.mesh
        assert (mesh is not None) == (transport == "udp")
        if mesh is not None:
            assert await mesh._find_unhealthy() == ()
            assert "LocalAgentHealth" in mesh._find_unhealthy.__qualname__


async def test_a_problem_of_the_archiver_is_one_of_the_gateway(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        services = GatewayServices(operations, _operator_access(operations.core))
        services._archiver.problem = "the archive is full"
        assert "the archive is full" in operations.core.health.problems()
