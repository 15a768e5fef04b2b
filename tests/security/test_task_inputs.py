"""Large inputs of tasks: what an agent with nothing but the scope to send can do with them."""

from collections.abc import Iterator
from typing import Any

import pytest

from gatepost.testing import GatewayProcess
from tests.gateway.admin.test_agent_blobs import upload
from tests.gateway.admin.test_external_agents import SEND, External, refusal
from tests.gateway.tools import client

LARGE = b'"' + b"x" * 400_000 + b'"'
LIMITS = {"limits__max_blob_bytes": 1_000_000, "limits__max_payload_inline": 1000}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    state = tmp_path_factory.mktemp("inputs") / "state"
    with GatewayProcess(state, room__join_burst=10_000, **LIMITS) as running:
        with client(running) as http:
            assert http.put("/v1/agents/worker").is_success
        yield running


def uploaded(agent: External, content: bytes = LARGE) -> str:
    digest: str = upload(agent, content).raise_for_status().json()["digest"]
    return digest


def task_for(agent: External, to: str, digest: str, **fields: object) -> dict[str, object]:
    about = {"from_agent": agent.name, "to_agents": [to], "input_ref": digest}
    return {"description": "work", **about, **fields}


def create(agent: External, *tasks: dict[str, object]) -> Any:
    return agent.invoke("task_create", tasks=tasks)


def blob_bytes(host: GatewayProcess) -> int:
    return sum(path.stat().st_size for path in (host.state_dir / "blobs").iterdir())


def test_tasks_that_nobody_takes_leave_nothing_of_their_inputs(host: GatewayProcess) -> None:
    agent = External(host, "mallory", SEND)
    digest = uploaded(agent)
    before = blob_bytes(host)
    wanted = [task_for(agent, "nobody", digest, description=f"{n}") for n in range(20)]
    answer = create(agent, *wanted).raise_for_status().json()
    assert {each["code"] for each in answer["results"]} == {"invalid_targets"}
    assert blob_bytes(host) == before


def test_a_call_takes_as_many_bytes_of_inputs_as_one_blob_can_have(host: GatewayProcess) -> None:
    agent = External(host, "eve", SEND)
    digest = uploaded(agent)
    before = blob_bytes(host)
    wanted = [task_for(agent, "worker", digest, description=f"{n}") for n in range(3)]
    assert refusal(create(agent, *wanted)) == (413, "payload_too_large")
    assert blob_bytes(host) == before
    answer = create(agent, *wanted[:2], task_for(agent, "nobody", digest)).json()
    codes = [each.get("code", "") for each in answer["results"]]
    assert codes == ["", "", "invalid_targets"]
    assert 2 * len(LARGE) <= blob_bytes(host) - before < 2.5 * len(LARGE)


def test_a_repeated_call_writes_no_input_again(host: GatewayProcess) -> None:
    agent = External(host, "repeater", SEND)
    task = task_for(agent, "worker", uploaded(agent), idempotency_key="once")
    first = create(agent, task).json()["results"][0]["tasks"][0]["id"]
    before = blob_bytes(host)
    for _ in range(3):
        assert create(agent, task).json()["results"][0]["tasks"][0]["id"] == first
    assert blob_bytes(host) == before
    assert refusal_of(create(agent, task | {"description": "other"})) == "idempotency_conflict"
    assert blob_bytes(host) == before


def refusal_of(answer: Any) -> str:
    code: str = answer.json()["results"][0]["code"]
    return code


@pytest.mark.parametrize("levels", [300, 900, 300_000])
def test_an_input_that_is_nested_too_deeply_is_refused_and_leaves_nothing(
    host: GatewayProcess, levels: int
) -> None:
    agent = External(host, f"digger{levels}", SEND)
    digest = uploaded(agent, b"[" * levels + b"1," * 40_000 + b"1" + b"]" * levels)
    before = blob_bytes(host)
    assert refusal(create(agent, task_for(agent, "worker", digest))) == (400, "invalid_request")
    assert blob_bytes(host) == before
