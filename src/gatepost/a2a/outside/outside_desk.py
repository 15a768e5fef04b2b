"""The agents elsewhere that the operator has added, each with its courier; and their routes."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Annotated, Any
from urllib.parse import urlsplit

from litestar.params import JSONBody
from msgspec import Meta, Struct

from gatepost.a2a.door_records import DoorRecords, OutsideAgent
from gatepost.errors import ExtraMissing, InvalidRequest, UnknownAgent
from gatepost.events import check_agent_id
from gatepost.events.reserved_names import require_agent_name
from gatepost.gateway.doors import DoorServices
from gatepost.listening.route_decorators import delete, get, put
from gatepost.listening.route_parameters import PathName
from gatepost.wire.operations import Done

log = logging.getLogger(__name__)

# Returns the module with the courier, which needs the SDK; ExtraMissing if that is not installed.
LoadCourier = Callable[[], Awaitable[ModuleType]]

_RESTART_SECS = 5.0
_MAX_AGENTS = 100


class OutsideAddress(Struct, forbid_unknown_fields=True):
    """Where an agent of A2A is, and the file with the token for it on the gateway's machine."""

    url: Annotated[str, Meta(min_length=1, max_length=2000)]
    token_file: Annotated[str, Meta(max_length=4096)] = ""


class OutsideDesk:
    def __init__(
        self, services: DoorServices, records: DoorRecords, load_courier: LoadCourier
    ) -> None:
        self._services = services
        self._records = records
        self._load_courier = load_courier
        self._couriers: dict[str, asyncio.Task[None]] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        if self._records.exists:
            for agent in await self._records.list_outside_agents():
                self._start(agent)
        try:
            yield
        finally:
            couriers = list(self._couriers.values())
            for each in couriers:
                each.cancel()
            await asyncio.gather(*couriers, return_exceptions=True)

    def _start(self, agent: OutsideAgent) -> None:
        if (before := self._couriers.get(agent.name)) is not None:
            before.cancel()
        self._couriers[agent.name] = asyncio.create_task(self._run_courier(agent))

    async def _run_courier(self, agent: OutsideAgent) -> None:
        while True:
            try:
                courier = await self._load_courier()
                await courier.Courier(self._services, self._records, agent).run()
            except ExtraMissing as error:
                log.warning("mail of %s waits: %s", agent.name, error.message)
                return
            except Exception:
                log.exception("the courier of %s has failed, and starts again", agent.name)
            await asyncio.sleep(_RESTART_SECS)

    async def list_agents(self) -> list[OutsideAgent]:
        return await self._records.list_outside_agents() if self._records.exists else []

    async def add(self, name: str, address: OutsideAddress) -> OutsideAgent:
        await self._load_courier()
        parts = urlsplit(address.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InvalidRequest("the address begins with http:// or https://, without credentials")
        agent = OutsideAgent(
            require_agent_name(check_agent_id(name)), address.url, address.token_file
        )
        others = [each for each in await self.list_agents() if each.name != name]
        if len(others) >= _MAX_AGENTS:
            raise InvalidRequest(f"a gateway carries mail for at most {_MAX_AGENTS} agents of A2A")
        await self._services.register(self._services.local_caller(name, is_operator=False))
        await self._records.add_outside_agent(agent)
        self._start(agent)
        return agent

    async def remove(self, name: str) -> None:
        if (courier := self._couriers.pop(name, None)) is not None:
            courier.cancel()
            await asyncio.gather(courier, return_exceptions=True)
        if not self._records.exists or not await self._records.remove_outside_agent(name):
            raise UnknownAgent(f"{name} is not an agent of A2A elsewhere")


def create_routes(desk: OutsideDesk) -> list[Any]:
    """The operator's alone."""

    @get("/v1/a2a/agents", summary="Agents of A2A elsewhere")
    async def listed() -> list[OutsideAgent]:
        return await desk.list_agents()

    @put("/v1/a2a/agents/{agent:str}", summary="Make an agent of A2A elsewhere an agent here")
    async def added(agent: PathName, data: JSONBody[OutsideAddress]) -> OutsideAgent:
        return await desk.add(agent, data)

    @delete(
        "/v1/a2a/agents/{agent:str}",
        status_code=200,
        summary="Carry no more mail to an agent of A2A elsewhere",
    )
    async def removed(agent: PathName) -> Done:
        await desk.remove(check_agent_id(agent))
        return Done()

    return [listed, added, removed]
