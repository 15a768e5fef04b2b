"""The services of a gateway, made in this process: their routes, and what health knows of them."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gatepost.gateway.api.operations import Operations
from gatepost.gateway.gateway_services import GatewayServices, StartStep
from gatepost.gateway.serve import _create_pools, _operator_access
from gatepost.gateway.settings_reload import SettingsReload
from gatepost.testing import ManualClock
from tests.gateway.tools import asgi_client, opened

pytestmark = pytest.mark.anyio


def _create_services(operations: Operations) -> GatewayServices:
    core = operations.core
    reload = SettingsReload(core, None)
    return GatewayServices(operations, _operator_access(core), _create_pools(core), reload)


async def test_every_service_has_its_routes(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        services = _create_services(operations)
        paths = {route.path for route in services.create_app().routes}
    assert paths >= {
        "/v1/messages",
        "/v1/mesh",
        "/v1/room/nodes",
        "/.well-known/gatepost/descriptor.json",
        "/api/hub/tasks",
    }


async def test_all_that_recovery_consults_is_loaded_before_sessions_are_recovered(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        services = _create_services(operations)
        steps = services.list_start_steps(services.create_app(), None, None, "http://here")
        names = [step.name for step in steps]
        loaded = ["unused blobs", "agents and policy", "room", "capabilities"]
        assert names[:5] == [*loaded, "sessions of before"]
        doors = ["local transports", "peers", "sockets of sessions", "new sessions"]
        assert [name for name in names if name in doors] == doors


async def test_a_gateway_starts_its_services_in_the_order_of_the_list(
    state: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state, clock) as operations:
        services = _create_services(operations)
        done: list[str] = []

        def step(name: str) -> StartStep:
            @contextlib.asynccontextmanager
            async def run() -> AsyncIterator[None]:
                done.append(f"start {name}")
                yield
                done.append(f"stop {name}")

            return StartStep(name, run)

        steps = (step("a"), step("b"))
        monkeypatch.setattr(services, "list_start_steps", lambda *_: steps)
        async with services.running(services.create_app(), None, None, "http://here"):
            assert done == ["start a", "start b"]
        assert done[2:] == ["stop b", "stop a"]


@pytest.mark.parametrize("transport", ["off", "udp"])
async def test_a_mesh_tells_others_of_unhealthy_agents(
    state: Path, clock: ManualClock, transport: str
) -> None:
    async with opened(state, clock, mesh__transport=transport) as operations:
        services = _create_services(operations)
        mesh = services.peering.mesh
        assert (mesh is not None) == (transport == "udp")
        if mesh is not None:
            assert await mesh._find_unhealthy() == ()
            assert "LocalAgentHealth" in mesh._find_unhealthy.__qualname__


async def test_what_makes_a_gateway_fail_makes_it_leave_the_lease_to_others(
    state: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(state, clock, mesh__transport="udp") as operations:
        services = _create_services(operations)
        mesh, archiver = services.peering.mesh, services._archiver
        assert mesh is not None and list(mesh._find_failures()) == []
        monkeypatch.setattr(archiver, "problem", "the archive cannot be written")
        assert list(mesh._find_failures()) == ["the archive cannot be written"]
        monkeypatch.setattr(archiver, "problem", None)
        monkeypatch.setattr(operations.core.writer, "busy_secs", lambda: 61.0)
        async with asgi_client(operations, "127.0.0.1") as http:
            assert (await http.get("/readyz")).status_code == 503
        assert list(mesh._find_failures()) == ["the journal has been busy with one commit for 61 s"]


async def test_a_problem_of_the_archiver_is_one_of_the_gateway(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        services = _create_services(operations)
        services._archiver.problem = "the archive is full"
        assert "the archive is full" in operations.core.health.problems()
