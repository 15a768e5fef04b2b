"""Requests of tasks that are blobs: written beside other work, and kept with their tasks."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gatepost.errors import StorageFailed
from gatepost.gateway.api.operations import Operations
from gatepost.room.records import SkillRef
from gatepost.tasks.capabilities.contract import ContractDocument, encode_contract, keep_contract
from gatepost.tasks.policy import Operator
from gatepost.tasks.task_routing import CapabilityEntry
from gatepost.wire.operations import Register
from gatepost.wire.tasks import NewTask
from tests.gateway.tools import opened
from tests.pause_watch import PauseWatch
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio

_MIB = 1024 * 1024


@pytest.fixture
async def operations(tmp_path: Path) -> AsyncIterator[Operations]:
    async with opened(tmp_path / "g") as running:
        core = running.core
        contract = encode_contract(ContractDocument(input={"type": "array"}))
        entry = CapabilityEntry(
            id="listing", version="1", owner_agent="bo", executor_skill_version="1",
            delegation_skill=SkillRef(ref="ask", version="1"), default_eta_secs=60,
            is_active=True, eligible=("bo",), policy_version=1,
            contract=await core.commit(lambda tx: keep_contract(tx, contract)),
        )  # fmt: skip
        core.tasks.parts.router.capabilities = {entry.id: entry}
        await running.perform(Register(agent="bo"))
        yield running


async def upload(operations: Operations, content: bytes) -> str:
    return (await operations.core.keep_payload([content])).digest


def listing(digest: str) -> NewTask:
    return NewTask("al", "go", required_capabilities=["listing"], input_ref=digest)


def blob_names(operations: Operations) -> set[str]:
    return {path.name for path in operations.core.state.blobs.iterdir()}


async def test_an_input_of_60_mib_keeps_nobody_waiting(operations: Operations) -> None:
    digest = await upload(operations, b'["x"' + b',"x"' * (15 * _MIB - 2) + b"]")
    with PauseWatch() as watch:
        (task,) = await operations.tasks.create_tasks(listing(digest), Operator())
    assert task.state == "pending"
    print(f"longest pause {watch.worst * 1000:.0f} ms")
    assert watch.worst < 0.1


@pytest.mark.parametrize("error", [StorageFailed("full"), KeyError("odd")])
async def test_a_request_whose_task_is_not_created_in_the_end_leaves_nothing(
    operations: Operations, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    digest = await upload(operations, b"[1]" + b" " * 100_000)
    before = blob_names(operations)
    requested = operations.core.tasks.requested
    honest, calls = requested.create_tasks, []

    def fail_at_last(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise error
        return honest(*given)

    monkeypatch.setattr(requested, "create_tasks", fail_at_last)
    with pytest.raises(Exception, match=r"full|internal"):
        await operations.tasks.create_tasks(listing(digest), Operator())
    assert len(calls) == 2
    assert blob_names(operations) == before


async def test_an_input_that_breaks_its_contract_leaves_nothing(operations: Operations) -> None:
    digest = await upload(operations, b'{"no": "list"}' + b" " * 100_000)
    before = blob_names(operations)
    with pytest.raises(Exception, match="is not of type"):
        await operations.tasks.create_tasks(listing(digest), Operator())
    assert blob_names(operations) == before


async def test_a_task_is_created_although_whoever_asked_is_gone(operations: Operations) -> None:
    digest = await upload(operations, b"[1]" + b" " * 100_000)
    before = blob_names(operations)
    core = operations.core
    committed = core.begin_commit

    def leave(operation: Any) -> Any:
        result = committed(operation)
        if operation.__name__ == "create":
            asking.cancel()
        return result

    core.begin_commit = leave  # type: ignore[method-assign]
    asking = asyncio.ensure_future(operations.tasks.create_tasks(listing(digest), Operator()))
    with pytest.raises(asyncio.CancelledError):
        await asking
    sql = "SELECT request_ref FROM task_payload WHERE request_ref NOTNULL"

    async def created() -> list[Any]:
        return await core.read(lambda tx: tx.fetch_all(sql))

    await async_wait_until(created)
    ((ref,),) = await created()
    assert blob_names(operations) - before == {ref.removeprefix("sha256:")}
