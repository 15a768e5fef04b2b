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
from gatepost.events import AgentId, Digest, EventId, MsgId, NodeId
from gatepost.gateway.admin import external_agents, feedback, undelivered_api
from gatepost.gateway.api import http_routes
from gatepost.listening.route_parameters import AnyRequest
from gatepost.mesh.bootstrap import BootstrapAnswer, BootstrapRequest
from gatepost.room.records import Fingerprint
from gatepost.tasks.capabilities.publication import NewCapability
from gatepost.tasks.service import hub_api, hub_messages, hub_state
from gatepost.wire import agent_tokens, hub_views, report_views, room_views
from gatepost.wire.capabilities import CapabilityHealth, CapabilityView
from gatepost.wire.gateway_views import Status
from gatepost.wire.operations import AnyAnswer, EventInfo, Operation
from gatepost.wire.tasks import TaskView

# Types of ids in paths. Handlers check ids themselves, so that the error names the problem.
_ID_TYPES: dict[str, Any] = {
    "mailbox": AgentId,
    "agent": AgentId,
    "alias": AgentId,
    "msg_id": MsgId,
    "event_id": EventId,
}
_ID_TYPES |= {"digest": Digest, "payload_ref": Digest}
_ID_TYPES |= {"node": NodeId, "invite_id": Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]}
_ID_TYPES |= {"ref": MsgId, "review_id": report_views.ReviewId, "target": AgentId}
_ID_TYPES |= {"fingerprint": Fingerprint, "task_id": EventId, "capability": AgentId}
_ID_TYPES |= {"join_secret": Annotated[str, Meta(max_length=256)]}
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
_REFERENCE = "#/components/schemas/{name}"
# The one operation that has no frame on a WebSocket.
_STATUS_OPERATION = {
    "type": "object",
    "properties": {"op": {"const": "status"}},
    "required": ["op"],
}
OPENAPI_PATH = "/openapi/openapi.json"


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
        openapi_schema["components"]["schemas"].update(component_schemas())
        for methods in openapi_schema["paths"].values():
            for operation in methods.values():
                _describe_ids(operation.get("parameters", ()))
        for path in ("/v1/blobs", external_agents.UPLOADS_PATH):
            if (upload := openapi_schema["paths"].get(path)) is not None:
                upload["post"]["requestBody"] = {"content": _BINARY_CONTENT}
        for path in (http_routes.OPERATIONS_PATH, external_agents.INVOKE_PATH):
            if (calls := openapi_schema["paths"].get(path)) is not None:
                _describe_invocation(calls["post"], path == external_agents.INVOKE_PATH)
        openapi_schema["paths"] |= _extra_paths()
        return msgspec.json.encode(_portable_patterns(openapi_schema))


def _describe_invocation(operation: dict[str, Any], of_session: bool) -> None:
    """State the operations of the WebSocket as bodies, and their answers.

    A session asks for the status as one more operation.
    """
    (asked, answered), _ = msgspec.json.schema_components(
        [Operation, AnyAnswer], ref_template=_REFERENCE
    )
    status = {"$ref": _REFERENCE.format(name=Status.__name__)}
    body = {"anyOf": [asked, _STATUS_OPERATION]} if of_session else asked
    answer = {"anyOf": [answered, status]} if of_session else answered
    operation["requestBody"] = {"content": {"application/json": {"schema": body}}, "required": True}
    operation["responses"]["200"]["content"] = {"application/json": {"schema": answer}}


def _extra_paths() -> dict[str, Any]:
    """Paths that the framework does not describe: a stream of events, and a secret address."""
    (asked, answered, task), _ = msgspec.json.schema_components(
        [BootstrapRequest, BootstrapAnswer, TaskView], ref_template=_REFERENCE
    )
    failure = {
        "description": "The token is missing or wrong.",
        "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(name="Failure")}}},
    }
    events = {
        "summary": "Changes of tasks, as server-sent events: `task.started` or `task.<state>`",
        "operationId": "StreamEvents",
        "responses": {
            "200": {"description": "A stream", "content": {"text/event-stream": {"schema": task}}},
            "401": failure,
        },
    }
    bootstrap = {
        "summary": "Join the mesh with its join secret; any failure is 404 without a body",
        "operationId": "Bootstrap",
        "security": [],
        "parameters": [
            {"name": "join_secret", "in": "path", "required": True, "schema": {"type": "string"}}
        ],
        "requestBody": {"content": {"application/json": {"schema": asked}}, "required": True},
        "responses": {
            "200": {"description": "Joined", "content": {"application/json": {"schema": answered}}},
            "401": failure,
            "404": {"description": "Refused"},
        },
    }
    return {"/api/events": {"get": events}, "/.rb/{join_secret}": {"post": bootstrap}}


def _describe_ids(parameters: Iterable[dict[str, Any]]) -> None:
    for parameter in parameters:
        if parameter["in"] == "path":
            parameter["schema"] = msgspec.json.schema(_ID_TYPES[parameter["name"]])


def component_schemas() -> dict[str, Any]:
    """The schemas of all bodies; those of agents' operations are the types of clients too."""
    modules = [room_views, auth_messages, undelivered_api, report_views]
    modules += [hub_api, hub_messages, hub_state, hub_views, agent_tokens]
    own = [each for module in modules for each in vars(module).values()]
    found = [each for each in (*vars(http_routes).values(), *own) if isinstance(each, type)]
    found += [CapabilityView, CapabilityHealth, NewCapability]
    found += [feedback.NewIncident, feedback.NewReview, feedback.NewEtaAdvice]
    structs = {each for each in found if issubclass(each, Struct) and each is not Struct}
    public = [each for each in structs if not each.__name__.startswith("_")]
    more = [Operation, AnyAnswer, EventInfo, Status, BootstrapRequest, BootstrapAnswer]
    _, schemas = msgspec.json.schema_components([*public, *more], ref_template=_REFERENCE)
    for name, rule in _FIELD_RULES.items():
        schemas[name] |= rule
    for name in ("event_id", "payload_ref"):
        schemas["NewSend"]["properties"][name] = msgspec.json.schema(_ID_TYPES[name])
    # It travels as it was stored.
    schemas["LeasedMessage"]["properties"]["event"] = {"$ref": _REFERENCE.format(name="EventInfo")}
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
