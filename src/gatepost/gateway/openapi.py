"""The OpenAPI document. Its schemas come from msgspec, which also decodes the requests."""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from msgspec import Meta, Struct

from gatepost import __version__
from gatepost.access import auth_messages
from gatepost.capabilities.publication import NewCapability
from gatepost.capability_wire import CapabilityHealth, CapabilityView
from gatepost.events import AgentId, Digest, EventId, MsgId, NodeId
from gatepost.gateway.admin import external_agents, feedback, undelivered_api
from gatepost.gateway.api import http_routes, report_views, room_views
from gatepost.gateway.api.route_parameters import AnyRequest
from gatepost.gateway.api.tasks import task_views
from gatepost.gateway.hub import hub_api, hub_messages, hub_state
from gatepost.room.records import Fingerprint
from gatepost.wire import Status

# Types of ids in paths. Handlers check ids themselves, so that the error names the problem.
_ID_TYPES: dict[str, Any] = {
    "mailbox": AgentId,
    "agent": AgentId,
    "msg_id": MsgId,
    "event_id": EventId,
}
_ID_TYPES |= {"digest": Digest, "payload_ref": Digest}
_ID_TYPES |= {"node": NodeId, "invite_id": Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]}
_ID_TYPES |= {"ref": MsgId, "review_id": report_views.ReviewId, "target": AgentId}
_ID_TYPES |= {"fingerprint": Fingerprint, "task_id": EventId, "capability": AgentId}
_ID_TYPES |= {"token_id": Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]}
# Rules between fields, which the types cannot express.
_FIELD_RULES = {
    "NewSend": {
        "allOf": [
            {"oneOf": [{"required": ["payload"]}, {"required": ["payload_ref"]}]},
            {"oneOf": [{"required": ["to_agent"]}, {"required": ["to_agents"]}]},
        ]
    },
}
_BINARY_CONTENT = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
# Any operation of the WebSocket, or one that is known by its name only.
_OPERATION_SCHEMA = {"type": "object", "properties": {"op": {"type": "string"}}, "required": ["op"]}
_INVOCATION_CONTENT = {"application/json": {"schema": _OPERATION_SCHEMA}}


def openapi_config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Gatepost",
        version=__version__,
        path="/openapi",
        render_plugins=[_OpenApiRenderer(path="/openapi.json")],
        components=Components(
            security_schemes={"local": SecurityScheme(type="http", scheme="bearer")}
        ),
        security=[{"local": []}],
    )


class _OpenApiRenderer(JsonRenderPlugin):
    def render(self, request: AnyRequest, openapi_schema: dict[str, Any]) -> bytes:
        openapi_schema["components"]["schemas"].update(_component_schemas())
        for methods in openapi_schema["paths"].values():
            for operation in methods.values():
                _describe_ids(operation.get("parameters", ()))
        for path in ("/v1/blobs", external_agents.UPLOADS_PATH):
            if (upload := openapi_schema["paths"].get(path)) is not None:
                upload["post"]["requestBody"] = {"content": _BINARY_CONTENT}
        invoke = openapi_schema["paths"].get(external_agents.INVOKE_PATH)
        if invoke is not None:
            invoke["post"]["requestBody"] = {"content": _INVOCATION_CONTENT}
        return msgspec.json.encode(_portable_patterns(openapi_schema))


def _describe_ids(parameters: Iterable[dict[str, Any]]) -> None:
    for parameter in parameters:
        if parameter["in"] == "path":
            parameter["schema"] = msgspec.json.schema(_ID_TYPES[parameter["name"]])


def _component_schemas() -> dict[str, Any]:
    modules = [room_views, auth_messages, undelivered_api, report_views]
    modules += [hub_api, hub_messages, hub_state, task_views]
    own = [each for module in modules for each in vars(module).values()]
    found = [each for each in (*vars(http_routes).values(), *own) if isinstance(each, type)]
    found += [CapabilityView, CapabilityHealth, NewCapability]
    found += [feedback.NewIncident, feedback.NewReview, feedback.NewEtaAdvice]
    structs = {each for each in found if issubclass(each, Struct) and each is not Struct}
    _, schemas = msgspec.json.schema_components(
        [*structs, Status], ref_template="#/components/schemas/{name}"
    )
    for name, rule in _FIELD_RULES.items():
        schemas[name] |= rule
    for name in ("event_id", "payload_ref"):
        schemas["NewSend"]["properties"][name] = msgspec.json.schema(_ID_TYPES[name])
    return schemas


def _portable_patterns(schema: Any) -> Any:
    r"""Rewrite patterns for JSON Schema, where `^` and `$` mean `\A` and `\Z`."""
    if isinstance(schema, list):
        return [_portable_patterns(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    portable = {key: _portable_patterns(value) for key, value in schema.items()}
    if isinstance(pattern := portable.get("pattern"), str):
        portable["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
    return portable
