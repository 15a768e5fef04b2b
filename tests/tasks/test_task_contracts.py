"""Tasks under contracts: a transaction acts on verdicts, and never checks a content itself."""

from typing import Any

import msgspec
import pytest

from gatepost.delivery.inbox.held_events import events_to_check, sources_to_check
from gatepost.errors import ContractMismatch, ContractUnchecked
from gatepost.events import fingerprint_content
from gatepost.room.records import SkillRef
from gatepost.tasks.capabilities.contract import (
    ContractDocument,
    ContractPart,
    ContractVerdict,
    encode_contract,
    find_contract,
    keep_contract,
)
from gatepost.tasks.task_routing import CapabilityEntry
from gatepost.tasks.task_states import TaskState
from tests.tasks.task_mesh import TaskGate, TaskMesh

NUMBER = {"type": "integer"}
TEXT = encode_contract(ContractDocument(input=NUMBER, output=NUMBER))


class ContractMesh(TaskMesh):
    """Both gates know the capability `double`; only B has its contract, unless `a` has it too."""

    def __init__(self, *having: str) -> None:
        super().__init__()
        for gate in (self.a, self.b):
            if gate.gate.id in having:
                self.digest = gate.gate.do(lambda tx: keep_contract(tx, TEXT))
        for gate in (self.a, self.b):
            gate.engine.parts.router.capabilities = {"double": capability(self.digest)}

    def request(self, given: Any) -> str:
        """A task under the contract, which has arrived."""
        return self.create(required_capabilities=["double"], input=given)

    def note(self, at: TaskGate, part: ContractPart, content: Any, problem: str = "") -> None:
        contract = at.gate.do(lambda tx: find_contract(tx, self.digest))
        mark = fingerprint_content(msgspec.json.encode(content))
        at.engine.parts.verdicts.note(contract, part, mark, ContractVerdict(problem))

    def release(self, *ids: str) -> None:
        self.b.gate.do(lambda tx: self.b.gate.coordinator.contents_checked(tx, "a", list(ids)))
        self.flow()

    def held(self) -> list[str]:
        events = self.b.gate.do(lambda tx: events_to_check(tx, "a", 10))
        return [each.event_id for each in events]


def capability(digest: str) -> CapabilityEntry:
    skill = SkillRef(ref="ask", version="1")
    return CapabilityEntry(
        id="double", version="1", owner_agent="B", delegation_skill=skill,
        executor_skill_version="1", default_eta_secs=1, is_active=True, eligible=("B",),
        policy_version=1, contract=digest,
    )  # fmt: skip


def test_a_task_waits_for_its_verdict_and_others_pass_it() -> None:
    mesh = ContractMesh("b")
    id = mesh.request(1)
    assert not mesh.b.knows(id) and mesh.held() == [id]
    assert mesh.b.gate.do(sources_to_check) == ["a"]
    other = mesh.create(input=2)
    assert mesh.states(other) == ("pending", "pending")
    mesh.note(mesh.b, "input", 1)
    mesh.release(id)
    assert mesh.states(id) == ("pending", "pending") and mesh.held() == []
    mesh.b.accept(id)
    mesh.flow()
    assert mesh.states(id) == ("running", "running")


def test_the_gateway_is_told_whose_requests_are_held() -> None:
    mesh, told = ContractMesh("b"), list[str]()
    mesh.b.gate.coordinator.observe(on_check_wanted=told.append)
    mesh.request(1)
    mesh.request(2)
    assert set(told) == {"a"}


def test_a_task_whose_input_does_not_fit_is_refused() -> None:
    mesh = ContractMesh("b")
    id = mesh.request("x")
    mesh.note(mesh.b, "input", "x", "input: no number")
    mesh.release(id)
    assert mesh.states(id) == ("failed", "failed")
    assert mesh.a.task(id).error_code == "contract_mismatch"
    assert mesh.a.task(id).error == "input: no number"


def test_a_verdict_about_another_content_releases_nothing() -> None:
    mesh = ContractMesh("b")
    id = mesh.request("x")
    mesh.note(mesh.b, "input", 1)
    mesh.note(mesh.b, "output", "x")
    mesh.release(id)
    assert not mesh.b.knows(id) and mesh.held() == [id]


def test_tasks_are_released_one_by_one() -> None:
    mesh = ContractMesh("b")
    ids = [mesh.request(n) for n in range(3)]
    assert mesh.held() == ids
    mesh.note(mesh.b, "input", 1)
    mesh.release(*ids)
    assert mesh.held() == [ids[0], ids[2]]
    assert mesh.b.knows(ids[1])


def test_a_task_that_is_cancelled_while_it_is_held_ends() -> None:
    mesh = ContractMesh("b")
    id = mesh.request(1)
    mesh.a.cancel(id)
    mesh.flow()
    mesh.note(mesh.b, "input", 1)
    mesh.release(id)
    assert mesh.states(id) == ("cancelled", "cancelled")


def test_a_task_whose_capability_is_withdrawn_meanwhile_is_released() -> None:
    mesh = ContractMesh("b")
    id = mesh.request("x")
    mesh.b.engine.parts.router.capabilities = {}
    mesh.release(id)
    assert mesh.states(id) == ("pending", "pending")


def test_a_task_is_created_only_with_a_verdict() -> None:
    mesh = ContractMesh("a", "b")
    with pytest.raises(ContractUnchecked):
        mesh.request(1)
    mesh.note(mesh.a, "input", "x", "input: no number")
    with pytest.raises(ContractMismatch, match="no number"):
        mesh.request("x")
    mesh.note(mesh.a, "input", 1)
    id = mesh.request(1)
    assert mesh.held() == [id]


def running_task(mesh: ContractMesh) -> str:
    id = mesh.request(1)
    mesh.note(mesh.b, "input", 1)
    mesh.release(id)
    mesh.b.accept(id)
    return id


def test_a_result_counts_only_with_a_verdict() -> None:
    mesh = ContractMesh("b")
    id = running_task(mesh)
    mesh.note(mesh.b, "output", 3)
    with pytest.raises(ContractUnchecked):
        mesh.b.complete(id, 2)
    assert mesh.b.task(id).state is TaskState.RUNNING
    mesh.note(mesh.b, "output", 2)
    assert mesh.b.complete(id, 2).state is TaskState.COMPLETED


def test_a_result_that_does_not_fit_fails_its_task_and_so_does_a_repeat() -> None:
    mesh = ContractMesh("b")
    id = running_task(mesh)
    mesh.note(mesh.b, "output", "x", "result: no number")
    for _ in range(2):
        failed = mesh.b.complete(id, "x")
        assert (failed.state, failed.error_code) == (TaskState.FAILED, "contract_mismatch")
    mesh.flow()
    assert mesh.a.task(id).error == "result: no number"
    (review,) = mesh.a.gate.rows("SELECT failure_class FROM review")
    assert review == ("contract_mismatch",)
