"""Large inputs that another gateway did not check."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatepost.capabilities.contract import ContractDocument, encode_contract, keep_contract
from gatepost.events import TaskInfo
from gatepost.gateway.core import Core
from gatepost.gateway.hub.arrived_inputs import ArrivedInputs
from gatepost.hub import tasks
from gatepost.hub.task_routing import CapabilityEntry
from gatepost.hub.task_states import TaskState
from gatepost.hub.tasks import Task, TaskPayload
from gatepost.testing import ManualClock
from tests.gateway.tools import opened
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio

CONTRACT = encode_contract(ContractDocument(input={"type": "object", "required": ["text"]}))


async def add_large_task(core: Core, given: Any, state: str = "pending") -> Task:
    """A task of another gateway with a large input, under a contract that wants a text."""
    digest = await core.commit(lambda tx: keep_contract(tx, CONTRACT))
    entry = CapabilityEntry(
        id="grow", version="1", owner_agent="bo", delegation_skill_version="1",
        executor_skill_version="1", default_eta_secs=1, is_active=True, eligible=("bo",),
        policy_version=1, contract=digest,
    )  # fmt: skip
    core.tasks.parts.router.capabilities = {"grow": entry}
    request = msgspec.json.encode({"description": "grow", "input": given})
    blob = await core.keep_payload([request])
    task = Task(
        id=core.node.event_ids.next_id(),
        agent="bo",
        requester="al",
        requester_node="ann",
        executor="agent",
        state=TaskState(state),
        info=msgspec.json.encode(TaskInfo(capability_id="grow")),
    )
    await core.commit(lambda tx: tasks.add_task(tx, task, TaskPayload(request_ref=blob.digest)))
    return task


@pytest.mark.parametrize("state", ["pending", "running"])
async def test_an_input_that_does_not_fit_ends_its_task(
    tmp_path: Path, clock: ManualClock, state: str
) -> None:
    async with opened(tmp_path / "g", clock) as operations:
        core = operations.core
        task = await add_large_task(core, {"no text": "x" * 100_000}, state)
        arrived = ArrivedInputs(core, operations.tasks.large_contents)
        # It may have begun before its input is read.
        arrived.task_changed(msgspec.structs.replace(task, state=TaskState.PENDING))

        async def has_failed() -> bool:
            found = await core.read(lambda tx: tasks.load_task(tx, task.id))
            return found.error_code == "contract_mismatch"

        await async_wait_until(has_failed, 30)


async def test_an_input_that_fits_changes_nothing(tmp_path: Path, clock: ManualClock) -> None:
    async with opened(tmp_path / "g", clock) as operations:
        core = operations.core
        task = await add_large_task(core, {"text": "x" * 100_000})
        arrived = ArrivedInputs(core, operations.tasks.large_contents)
        arrived.task_changed(task)
        await async_wait_until(lambda: not arrived._checks, 30)
        found = await core.read(lambda tx: tasks.load_task(tx, task.id))
        assert found.state == "pending"
