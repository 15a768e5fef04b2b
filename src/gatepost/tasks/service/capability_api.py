"""Operator API for capabilities: /v1/capabilities."""

from typing import Any

from litestar.params import JSONBody

from gatepost.errors import InvalidRequest
from gatepost.events import check_agent_id
from gatepost.listening.route_decorators import delete, get, put
from gatepost.listening.route_parameters import PathName
from gatepost.tasks.capabilities.publication import NewCapability
from gatepost.tasks.service.capability_service import CapabilityService
from gatepost.wire.capabilities import CapabilityHealth, CapabilityView


def create_routes(service: CapabilityService) -> list[Any]:
    path = "/v1/capabilities/{capability:str}"

    @get("/v1/capabilities", summary="Every capability of the room")
    async def list_capabilities() -> list[CapabilityView]:
        return service.list_capabilities()

    @get(path, summary="A capability of the room")
    async def show(capability: PathName) -> CapabilityView:
        return service.show(check_agent_id(capability))

    @get(f"{path}/health", summary="How a capability fares")
    async def health(capability: PathName) -> CapabilityHealth:
        return await service.describe_health(check_agent_id(capability))

    @put(path, summary="Publish a capability of an agent of this gateway")
    async def publish(capability: PathName, data: JSONBody[NewCapability]) -> CapabilityView:
        if check_agent_id(capability) != data.capability_id:
            raise InvalidRequest("`capability_id` differs from the one in the path")
        return await service.publish(data)

    @delete(path, status_code=200, summary="Withdraw a capability that this gateway publishes")
    async def unpublish(capability: PathName) -> CapabilityView:
        return await service.unpublish(check_agent_id(capability))

    return [list_capabilities, show, health, publish, unpublish]
