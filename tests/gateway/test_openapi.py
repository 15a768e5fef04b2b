"""The OpenAPI document is true: generated requests get documented answers and never a 5xx."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from gatepost.access.scopes import OPERATION_SCOPES
from gatepost.testing import GatewayProcess
from gatepost.wire.operations import Operation
from tests.conftest import choose
from tests.gateway.tools import client, mail
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    path = tmp_path_factory.mktemp("openapi") / "state"
    with GatewayProcess(path, limits__long_poll_max_secs=0.01) as gateway:
        with client(gateway) as http:
            http.put("/v1/agents/bob")
            http.post("/v1/enqueue", json=mail("m:1", "bob"))
            http.post("/v1/messages", json={"from_agent": "al", "to_agent": "bob", "payload": 1})
            # Generated invites would found a room, whose secrets are unavailable for a moment.
            http.post("/v1/room/invites", json={}).raise_for_status()
            wait_until(lambda: http.get("/v1/mesh/secrets").is_success)
        yield gateway


def _operations(gateway: GatewayProcess) -> list[Any]:
    # Imported late: every worker collects this file, and one asks.
    import schemathesis

    headers = {"authorization": f"Bearer {gateway.token}"}
    url = f"{gateway.url}/openapi/openapi.json"
    found: Any = schemathesis.openapi.from_url(url, headers=headers)
    operations = [result.ok() for result in found.get_all_operations()]
    # A stream never ends, and the join secret's address tells nothing.
    return [each for each in operations if not each.path.startswith(("/api/events", "/.rb/"))]


def _checks() -> list[Any]:
    from schemathesis import checks
    from schemathesis.specs.openapi import checks as openapi

    return [
        checks.not_a_server_error,
        openapi.status_code_conformance,
        openapi.content_type_conformance,
        openapi.response_schema_conformance,
    ]


def _answers_as_documented(operation: Any, headers: dict[str, str]) -> None:
    @settings(max_examples=choose(5, 200), suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        case.call_and_validate(headers=headers, checks=_checks())

    ask()


def test_generated_requests_are_answered_as_documented(target: GatewayProcess) -> None:
    """Not by schemathesis' own parametrisation, which does not know this pytest yet."""
    headers = {"authorization": f"Bearer {target.token}"}
    operations = _operations(target)
    assert len(operations) > 25
    for operation in operations:
        _answers_as_documented(operation, headers)


def test_the_document_says_what_is_required_and_in_which_form(http: httpx.Client) -> None:
    document = http.get("/openapi/openapi.json").json()
    new = document["components"]["schemas"]["NewMessage"]
    assert sorted(new["required"]) == ["from", "msg_id", "payload", "to"]
    assert new["properties"]["to"]["pattern"] == "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            failure = operation["responses"]["401"]["content"]["application/json"]["schema"]
            assert failure == {"$ref": "#/components/schemas/Failure"}, (method, path)


def test_every_reference_leads_somewhere(http: httpx.Client) -> None:
    document = http.get("/openapi/openapi.json").json()

    def walk(node: Any, found: Callable[[str], None]) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if key == "$ref":
                found(value)
            elif isinstance(value, dict | list):
                walk(value, found)

    references: set[str] = set()
    walk(document, references.add)
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references
    assert references <= known


def test_every_operation_has_its_body(http: httpx.Client) -> None:
    document = http.get("/openapi/openapi.json").json()
    schemas, paths = document["components"]["schemas"], document["paths"]
    invoke = paths["/ansible/agent/invoke"]["post"]
    asked = invoke["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    named = {each["$ref"].rpartition("/")[2] for each in asked[0]["anyOf"]}
    assert named == {each.__name__ for each in get_args(Operation)}
    assert {schemas[name]["properties"]["op"]["enum"][0] for name in named} == set(
        OPERATION_SCOPES
    ) - {"status"}
    for path, name in (
        ("/ansible/auth/exchange", "ExchangeRequest"),
        ("/.rb/{join_secret}", "BootstrapRequest"),
        ("/api/hub/tasks", "NewTaskBody"),
    ):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{name}"}
    stream = paths["/api/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    assert stream["schema"] == {"$ref": "#/components/schemas/TaskView"}
    assert not any(name.startswith("_") for name in schemas)
