"""Inputs and results are checked before the transaction that takes them, and callers are told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from gatepost.errors import ContractMismatch
from gatepost.gateway.api.operations import Operations
from gatepost.room.records import SkillRef
from gatepost.tasks import task_table
from gatepost.tasks.capabilities.contract import ContractDocument, encode_contract, keep_contract
from gatepost.tasks.policy import Operator
from gatepost.tasks.task_routing import CapabilityEntry
from gatepost.tasks.task_states import TaskState
from gatepost.testing import ManualClock
from gatepost.wire.tasks import (
    CreatedTask,
    NewTask,
    RefusedReport,
    TaskCreate,
    TaskReport,
    TaskReports,
    TasksCreated,
    TasksReported,
)
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio

CONTRACT = ContractDocument(input={"type": ["integer", "string"]}, output={"type": "integer"})
LARGE = "x" * 200_000


@asynccontextmanager
async def contracted(
    folder: Path, clock: ManualClock, contract: ContractDocument = CONTRACT
) -> AsyncIterator[Operations]:
    """A gateway whose agent `bo` has the capability `double`."""
    async with opened(folder, clock) as operations:
        core = operations.core
        digest = await core.commit(lambda tx: keep_contract(tx, encode_contract(contract)))
        entry = CapabilityEntry(
            id="double", version="1", owner_agent="bo", eligible=("bo",), contract=digest,
            delegation_skill=SkillRef(ref="ask", version="1"), executor_skill_version="1",
            default_eta_secs=1, is_active=True, policy_version=1,
        )  # fmt: skip
        core.tasks.parts.router.capabilities = {"double": entry}
        await core.commit(lambda tx: core.agents.register(tx, "bo"))
        await core.commit(lambda tx: core.agents.register(tx, "al"))
        yield operations


def request(given: Any) -> NewTask:
    input = Raw(msgspec.json.encode(given))
    return NewTask("al", "double it", required_capabilities=["double"], input=input)


async def create(operations: Operations, *given: Any) -> list[CreatedTask]:
    answer = await operations.perform(TaskCreate(id=1, tasks=[request(each) for each in given]))
    assert isinstance(answer, TasksCreated)
    return answer.results


async def running_task(operations: Operations) -> str:
    (created,) = await create(operations, 1)
    (task,) = created.tasks
    await report(operations, TaskReport(task.id, "bo", "accept"))
    return task.id


async def report(operations: Operations, *reports: TaskReport) -> list[RefusedReport]:
    answer = await operations.perform(TaskReports(id=1, reports=list(reports)))
    assert isinstance(answer, TasksReported)
    return answer.refused


def completion(id: str, result: Any) -> TaskReport:
    return TaskReport(id, "bo", "complete", result=Raw(msgspec.json.encode(result)))


@pytest.mark.parametrize("fitting", [1, LARGE])
async def test_only_tasks_whose_inputs_fit_are_created(
    tmp_path: Path, clock: ManualClock, fitting: Any
) -> None:
    async with contracted(tmp_path / "g", clock) as operations:
        fits, misfits, large = await create(operations, fitting, {}, [LARGE])
        assert fits.tasks and not fits.code
        assert [(each.tasks, each.code) for each in (misfits, large)] == [
            ([], "contract_mismatch")
        ] * 2
        with pytest.raises(ContractMismatch, match="input: "):
            await operations.tasks.create_tasks(request({}), Operator())


async def test_a_completion_that_breaks_its_contract_is_answered_so(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with contracted(tmp_path / "g", clock) as operations:
        id, other = await running_task(operations), await running_task(operations)
        for _ in range(2):
            refused = await report(operations, completion(id, "x"), completion(other, 2))
            assert [(each.index, each.code) for each in refused] == [(0, "contract_mismatch")]
            assert refused[0].error == 'result: "x" is not of type "integer"'
        core = operations.core
        found = [await core.read(partial(task_table.load_task, id=each)) for each in (id, other)]
        assert [each.state for each in found] == [TaskState.FAILED, TaskState.COMPLETED]
        reviews = await core.read(lambda tx: tx.fetch_all("SELECT failure_class FROM review"))
        assert reviews == [("contract_mismatch",)]


async def test_a_large_result_is_judged_as_a_small_one(tmp_path: Path, clock: ManualClock) -> None:
    async with contracted(tmp_path / "g", clock) as operations:
        id = await running_task(operations)
        (refused,) = await report(operations, completion(id, LARGE))
        assert refused.code == "contract_mismatch"


async def test_a_result_that_is_not_here_refuses_its_report_alone(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with contracted(tmp_path / "g", clock) as operations:
        id, other = await running_task(operations), await running_task(operations)
        gone = TaskReport(id, "bo", "complete", result_ref="sha256:" + "0" * 64)
        (refused,) = await report(operations, gone, completion(other, 2))
        assert (refused.index, refused.code) == (0, "unknown_blob")


async def test_contents_without_a_schema_need_no_process(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with contracted(tmp_path / "g", clock, ContractDocument()) as operations:
        id = await running_task(operations)
        assert await report(operations, completion(id, "x")) == []
        assert operations.core.contracts.process_ids() == []


async def test_a_task_without_a_capability_is_one_transaction(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with contracted(tmp_path / "g", clock) as operations:
        plain = NewTask("al", "double it", to_agents=["bo"], input=UNSET)
        assert operations.plan_transaction(TaskCreate(id=1, tasks=[plain])) is not None
        assert operations.plan_transaction(TaskCreate(id=1, tasks=[request(1)])) is None
