"""Attacks with contracts and contents: a gateway interprets neither in its own process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import msgspec
import psutil  # type: ignore[import-untyped]
import pytest

from gatepost.config.hub_settings import HubSettings
from gatepost.events import TaskInfo
from gatepost.room import claim_key
from gatepost.room.records import CapabilityRecord, EligibilityRecord, SkillRef
from gatepost.tasks.capabilities.contract import (
    MAX_CONTRACTS,
    ContractDocument,
    contract_digest,
    encode_contract,
    keep_contract,
)
from gatepost.tasks.skill_distribution import SkillDistribution
from gatepost.wire.tasks import NewTask
from simulation.hostile import HostileConnection, HostileNode
from tests.delivery.mesh import Mesh
from tests.gateway.tools import client
from tests.live_mesh.tools import Gateway
from tests.security.siege import Siege, spy_of
from tests.tasks.task_mesh import TaskGate
from tests.tasks.test_task_contracts import TEXT, capability
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

SKILL = SkillRef(ref="skills/ask", version="1")
_numbers = count(1)


def multiplying(levels: int, prefix: str = "#/$defs") -> dict[str, Any]:
    """Every definition refers eight times to the next one."""
    chain: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"{prefix}/d{n + 1}"}] * 8} for n in range(levels)
    }
    return chain | {f"d{levels}": {"type": ["object", "integer"]}}


# `$defs` is the name of a property here, and so is every definition.
HIDDEN = {
    "dependentSchemas": {
        "$defs": {
            "properties": multiplying(12, "#/dependentSchemas/$defs/properties"),
            "allOf": [{"$ref": "#/dependentSchemas/$defs/properties/d0"}],
        }
    }
}
ITEMS = [*range(6000)]
# Name → schema, and the input that is slow to check against it.
BOMBS: dict[str, tuple[Any, Any]] = {
    "a hidden chain of references": (HIDDEN, {"$defs": 1}),
    "a chain of references": ({"$defs": multiplying(12), "$ref": "#/$defs/d0"}, 1),
    "expressions that need much memory": (
        {"anyOf": [{"pattern": f"(a{{1,{n}}}){{1,100}}"} for n in range(100, 900)]},
        "a" * 1000,
    ),
    "nested repetitions": ({"pattern": "^(((a?){30}){30}){30}$"}, "a" * 30_000),
    "unique items": ({"items": {"uniqueItems": True}}, [[{"a": [n]} for n in range(4000)]] * 2),
    "looking for each": (
        {"allOf": [{"not": {"contains": {"const": n}}} for n in range(1500)]},
        ITEMS,
    ),
    "options": ({"items": {"enum": [{"a": n} for n in range(3000)]}}, [{"a": -1}] * 7000),
    "a schema that applies to itself": ({"not": {"$ref": "#"}}, [[[[1]]]]),
}


class HostileCapability:
    """A capability of a hostile node, whose contract the gateway `ann` has got."""

    def __init__(self, node: HostileNode, connection: HostileConnection, schema: Any) -> None:
        self._node = node
        self._connection = connection
        self.id = f"{node.name}-{next(_numbers)}"
        self._contract = ContractDocument(input=schema)
        self.digest = contract_digest(encode_contract(self._contract))

    def publish(self) -> None:
        node, key = self._node, claim_key(self.id, self._node.name)
        catalog = CapabilityRecord(
            name="Slow", version="1", owner_agent_id=spy_of(node), delegation_skill_ref=SKILL,
            executor_skill_ref=SKILL, default_eta_seconds=60, contract_schema_ref=self.digest,
            status="active", epoch=1,
        )  # fmt: skip
        index = EligibilityRecord(
            eligible_agent_ids=("al", spy_of(node)),
            updated_at=node.clock.now(),
            policy_version=1,
            epoch=1,
        )
        self._connection.send_records(
            node.sign("capabilities.catalog", key, catalog),
            node.sign("capabilities.index", key, index),
        )

    def distribute(self) -> None:
        """Bring the contract, as the gateway of the owner."""
        skill = SkillDistribution(
            capability_id=self.id, owner_agent_id=spy_of(self._node), delegation_skill=SKILL,
            default_eta_seconds=60, contract=self._contract,
        )  # fmt: skip
        request = {"description": "x", "taskType": "skill_distribution", "input": skill}
        self._request(request, "gateway", TaskInfo(task_type="skill_distribution"))

    def create_task(self, given: Any) -> None:
        """A task for `al`, who lives at ann."""
        info = TaskInfo(capability_id=self.id, capability_version="1")
        self._request({"description": "x", "input": given}, spy_of(self._node), info)

    def _request(self, request: Any, sender: str, info: TaskInfo) -> None:
        self._node.outbox.add_message(
            "ann", self._node.host_key, "al", msgspec.json.encode(request),
            kind="task_create", source_agent_id=sender, task=info,
        )  # fmt: skip


def bring(
    ann: Gateway, node: HostileNode, connection: HostileConnection, schema: Any
) -> HostileCapability:
    """A capability that ann knows, with its contract, which no other node has."""
    made = HostileCapability(node, connection, {**schema, "$comment": node.name})
    made.publish()
    key = f"capabilities.catalog {made.id}@{node.name}"
    wait_until(lambda: key in ann.records())
    wait_until(lambda: made.id in {each["capability_id"] for each in ann.get("/v1/capabilities")})
    made.distribute()
    connection.deliver()
    wait_until(lambda: made.digest in _rows(ann, "SELECT digest FROM contract"))
    return made


def _rows(gateway: Gateway, sql: str) -> list[Any]:
    connection = apsw.Connection(
        str(gateway.state_dir / "journal.db"), flags=apsw.SQLITE_OPEN_READONLY
    )
    try:
        return [row[0] for row in connection.execute(sql)]
    finally:
        connection.close()


def _held(gateway: Gateway) -> int:
    return int(_rows(gateway, "SELECT count(*) FROM held WHERE why = 'check'")[0])


@contextmanager
def answering(gateway: Gateway) -> Iterator[None]:
    """The gateway answers and writes before and after what is inside."""
    waits: list[float] = []
    with client(gateway) as http:
        http.get("/healthz").raise_for_status()
        yield
        for _ in range(9):
            began = time.monotonic()
            http.get("/healthz").raise_for_status()
            http.put("/v1/agents/al").raise_for_status()
            waits.append(time.monotonic() - began)
    # A machine with much other work may lend a gateway no processor for a while.
    assert sorted(waits)[len(waits) // 2] < 1.0, waits


@pytest.fixture(scope="module")
def contracts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    with Siege.laid(tmp_path_factory.mktemp("contracts")) as laid:
        yield laid


@pytest.mark.parametrize("name", BOMBS)
def test_a_contract_that_is_slow_to_check_keeps_nobody_waiting(contracts: Siege, name: str) -> None:
    siege, (schema, given) = contracts, BOMBS[name]
    mallory = siege.admit(f"bomber{next(_numbers)}")
    with siege.linked(mallory) as connection:
        bomb = bring(siege.ann, mallory, connection, schema)
        with siege.expect_no_harm(mallory, named=False, grow_mib=256):
            for _ in range(2):
                bomb.create_task(given)
            connection.deliver()
            wait_until(lambda: _held(siege.ann) == 0, 60)
    ended = _rows(siege.ann, "SELECT error_code FROM task WHERE requester_node LIKE 'bomber%'")
    assert set(ended) <= {"contract_mismatch", None}


def test_whoever_sends_slow_checks_again_and_again_is_named(contracts: Siege) -> None:
    siege = contracts
    mallory = siege.admit(f"offender{next(_numbers)}")
    with siege.linked(mallory) as connection:
        bomb = bring(siege.ann, mallory, connection, HIDDEN)
        with siege.expect_no_harm(mallory, grow_mib=256):
            for n in range(6):
                bomb.create_task({"$defs": n})
            connection.deliver()
            wait_until(lambda: _held(siege.ann) == 0, 120)
    (named,) = [each for each in siege.naming(mallory.name) if "slow_contract" in each["subject"]]
    assert "takes too much time" in named["detail"]


def test_a_gateway_ends_in_seconds_while_it_checks_and_goes_on_after_its_restart(
    tmp_path: Path,
) -> None:
    with Siege.laid(tmp_path) as siege:
        mallory = siege.admit("mallory")
        ann = siege.ann
        with siege.linked(mallory) as connection:
            bomb = bring(ann, mallory, connection, HIDDEN)
            for n in range(4):
                bomb.create_task({"$defs": n})
            connection.deliver()
            with answering(ann):
                wait_until(lambda: _held(ann) > 0)
            children = psutil.Process(ann.pid).children(recursive=True)
            began = time.monotonic()
            assert ann.stop() == 0
            assert time.monotonic() - began < 15
            psutil.wait_procs(children, 15)
            assert not [each for each in children if each.is_running()]
        ann.start()
        with answering(ann):
            wait_until(lambda: _held(ann) == 0, 120)


def test_the_processes_of_a_gateway_that_is_killed_end_with_it(tmp_path: Path) -> None:
    with Siege.laid(tmp_path) as siege:
        mallory = siege.admit("mallory")
        with siege.linked(mallory) as connection:
            bomb = bring(siege.ann, mallory, connection, HIDDEN)
            bomb.create_task({"$defs": 1})
            connection.deliver()
            workers = wait_until(lambda: _workers(siege.ann.pid))
        siege.ann.kill9()
        _, left = psutil.wait_procs(workers, 10)
        assert not left
        siege.ann.start()


def _workers(pid: int) -> list[Any]:
    children = psutil.Process(pid).children(recursive=True)
    return [each for each in children if "contract_worker" in " ".join(each.cmdline())]


def test_a_node_that_floods_the_store_of_contracts_harms_no_other(contracts: Siege) -> None:
    siege, ann = contracts, contracts.ann
    mallory = siege.admit(f"flooder{next(_numbers)}")
    mine = f"SELECT count(*) FROM contract WHERE source = '{mallory.name}'"
    with siege.linked(mallory) as connection:
        floods = [
            HostileCapability(mallory, connection, {"maximum": n})
            for n in range(MAX_CONTRACTS + 40)
        ]
        for made in floods:
            made.publish()
        last = f"capabilities.catalog {floods[-1].id}@{mallory.name}"
        wait_until(lambda: last in ann.records(), 60)
        for made in floods:
            made.distribute()
        connection.deliver(60)
        wait_until(lambda: _rows(ann, mine)[0] > 0, 60)
        assert _rows(ann, mine)[0] <= MAX_CONTRACTS
    skill = {"ref": "skills/ask", "version": "1"}
    body = {
        "capability_id": "honest", "name": "Honest", "version": "1", "owner_agent_id": "al",
        "delegation_skill": skill, "executor_skill": skill, "default_eta_seconds": 60,
        "contract": {"input": {"type": "integer"}},
    }  # fmt: skip
    with client(ann) as http:
        http.put("/v1/capabilities/honest", json=body).raise_for_status()
        http.delete("/v1/capabilities/honest").raise_for_status()


def nested(levels: int) -> msgspec.Raw:
    return msgspec.Raw(b"[" * levels + b"]" * levels)


def test_an_input_nested_deeply_is_refused_and_its_sender_keeps_its_link(contracts: Siege) -> None:
    siege = contracts
    mallory = siege.admit(f"deep{next(_numbers)}")
    with siege.linked(mallory) as connection:
        made = bring(siege.ann, mallory, connection, {"type": "integer"})
        with siege.expect_no_harm(mallory):
            made.create_task(nested(3000))
            made.create_task(1)
            connection.deliver()
            tasks = f"SELECT state FROM task WHERE requester_node = '{mallory.name}'"
            wait_until(lambda: _rows(siege.ann, f"{tasks} AND state = 'pending'"))
    (named,) = [each for each in siege.naming(mallory.name) if "unreadable" in each["subject"]]
    assert "JSON" in named["detail"]


@pytest.mark.parametrize("levels", [300, 3000, 30_000])
def test_an_input_nested_deeply_cuts_no_relay_off(levels: int) -> None:
    mesh = Mesh("a", "b", "c", "s", relays=["s"])
    gates = {name: TaskGate(mesh[name], HubSettings()) for name in "abc"}
    wires = [mesh.link(name, "s") for name in "acb"]
    mesh.flow()
    digest = gates["b"].gate.do(lambda tx: keep_contract(tx, TEXT))
    for gate in gates.values():
        gate.engine.parts.router.capabilities = {"double": capability(digest)}
    gates["a"].create_new(
        NewTask("A", "x", to_agents=["B"], input=nested(levels), required_capabilities=["double"])
    )
    mesh.flow()
    assert not mesh["c"].mail()
    honest = mesh["c"].send(mesh["b"]).event_id
    later = gates["a"].create(gates["b"], input=2)
    mesh.flow()
    assert honest in mesh["b"].mail()
    assert gates["b"].knows(later)
    assert not [error for wire in wires for error in wire.errors]
