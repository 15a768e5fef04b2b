"""The OpenAPI document. Its schemas come from msgspec, which also decodes the requests."""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from litestar import Request
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from msgspec import Meta, Struct

from gatepost import __version__
from gatepost.access import auth_messages
from gatepost.events import AgentId, Digest, EventId, MsgId, NodeId
from gatepost.gateway import external_agents, feedback, http, reports, undelivered_api, views
from gatepost.wire import Status

# Types of ids in paths. Handlers check ids themselves, so that the error names the problem.
_IDS: dict[str, Any] = {"mailbox": AgentId, "agent": AgentId, "msg_id": MsgId, "event_id": EventId}
_IDS |= {"digest": Digest, "payload_ref": Digest}
_IDS |= {"node": NodeId, "invite_id": Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]}
_IDS |= {"ref": MsgId, "review_id": reports.ReviewId, "target": AgentId}
# Rules between fields, which the types cannot express.
_RULES = {
    "NewMessage": {"anyOf": [{"required": ["msg_id"]}, {"required": ["msgId"]}]},
    "NewSend": {
        "allOf": [
            {"oneOf": [{"required": ["payload"]}, {"required": ["payload_ref"]}]},
            {"oneOf": [{"required": ["to_agent"]}, {"required": ["to_agents"]}]},
        ]
    },
}
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
# Any operation of the WebSocket, or one that is known by its name only.
_OPERATION = {"type": "object", "properties": {"op": {"type": "string"}}, "required": ["op"]}
_INVOCATION = {"application/json": {"schema": _OPERATION}}


def config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Gatepost",
        version=__version__,
        path="/openapi",
        render_plugins=[_Render(path="/openapi.json")],
        components=Components(
            security_schemes={"local": SecurityScheme(type="http", scheme="bearer")}
        ),
        security=[{"local": []}],
    )


class _Render(JsonRenderPlugin):
    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        openapi_schema["components"]["schemas"].update(_schemas())
        for methods in openapi_schema["paths"].values():
            for operation in methods.values():
                _describe_ids(operation.get("parameters", ()))
        openapi_schema["paths"]["/v1/blobs"]["post"]["requestBody"] = {"content": _BINARY}
        invoke = openapi_schema["paths"].get(external_agents.INVOKE_PATH)
        if invoke is not None:
            invoke["post"]["requestBody"] = {"content": _INVOCATION}
        return msgspec.json.encode(_portable(openapi_schema))


def _describe_ids(parameters: Iterable[dict[str, Any]]) -> None:
    for parameter in parameters:
        if parameter["in"] == "path":
            parameter["schema"] = msgspec.json.schema(_IDS[parameter["name"]])


def _schemas() -> dict[str, Any]:
    modules = (views, auth_messages, undelivered_api, reports)
    own = [each for module in modules for each in vars(module).values()]
    found = [each for each in (*vars(http).values(), *own) if isinstance(each, type)]
    found += [feedback.NewIncident, feedback.NewReview, feedback.NewEtaAdvice]
    structs = {each for each in found if issubclass(each, Struct) and each is not Struct}
    _, schemas = msgspec.json.schema_components(
        [*structs, Status], ref_template="#/components/schemas/{name}"
    )
    for name, rule in _RULES.items():
        schemas[name] |= rule
    for name in ("event_id", "payload_ref"):
        schemas["NewSend"]["properties"][name] = msgspec.json.schema(_IDS[name])
    return schemas


def _portable(schema: Any) -> Any:
    r"""Rewrite patterns for JSON Schema, where `^` and `$` mean `\A` and `\Z`."""
    if isinstance(schema, list):
        return [_portable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    portable = {key: _portable(value) for key, value in schema.items()}
    if isinstance(pattern := portable.get("pattern"), str):
        portable["pattern"] = pattern.replace(r"\A", "^").replace(r"\Z", "$")
    return portable
