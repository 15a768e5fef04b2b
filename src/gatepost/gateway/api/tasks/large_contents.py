"""Contracts of inputs and results that are blobs: checked beside the writer, before they count."""

import asyncio
from collections.abc import Iterable

from msgspec import UNSET, UnsetType

from gatepost.capabilities.contract import Contract
from gatepost.delivery.blob_records import find_blob
from gatepost.errors import ContractMismatch
from gatepost.gateway.api.tasks.contract_checks import ContractChecks
from gatepost.gateway.core import Core
from gatepost.hub import tasks
from gatepost.hub.task_request import input_of
from gatepost.hub.tasks import CONTRACT_MISMATCH
from gatepost.journal import Tx
from gatepost.task_wire import NewTask, TaskReport


class LargeContents:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._parts = core.tasks.parts
        self._checks = ContractChecks()

    @property
    def has_contracts(self) -> bool:
        """Whether any capability is known: most gateways have none."""
        return bool(self._parts.router.capabilities)

    async def check_new_input(self, new: NewTask, pieces: Iterable[bytes]) -> None:
        """Raise ContractMismatch unless the large input of a new task fits its capability."""
        wanted = new.required_capabilities
        if isinstance(wanted, UnsetType) or not wanted:
            return
        entry = self._parts.router.capabilities.get(wanted[0])
        if entry is not None:
            contract = await self._core.read(
                lambda tx: self._parts.contract_of(tx, entry.public_part)
            )
            if contract is not None:
                given = await asyncio.to_thread(b"".join, pieces)
                await self._checks.check(contract, "input", given)

    async def check_input(self, task_id: str, request: bytes) -> None:
        """Raise ContractMismatch unless a large request fits the capability of its task."""
        contract = await self._find_contract(task_id)
        if contract is not None:
            given = await asyncio.to_thread(input_of, request)
            await self._checks.check(contract, "input", given)

    async def check_result(self, task_id: str, result: bytes) -> None:
        contract = await self._find_contract(task_id)
        if contract is not None:
            await self._checks.check(contract, "result", result)

    async def check_report(self, report: TaskReport) -> None:
        """Turn a completion into a failure if its large result does not fit."""
        if report.action != "complete" or isinstance(report.result_ref, UnsetType):
            return
        contract = await self._find_contract(report.task_id)
        if contract is None:
            return
        digest = report.result_ref
        key, _ = await self._core.read(lambda tx: find_blob(tx, digest))
        pieces = self._core.blobs.read_payload(digest, key)
        try:
            result = await asyncio.to_thread(b"".join, pieces)
            await self._checks.check(contract, "result", result)
        except ContractMismatch as error:
            report.action, report.result_ref = "fail", UNSET
            report.error_code, report.error = CONTRACT_MISMATCH, error.message[:2000]

    async def _find_contract(self, task_id: str) -> Contract | None:
        if not self.has_contracts:
            return None

        def find(tx: Tx) -> Contract | None:
            task = tasks.find_requested_task(tx, task_id)
            return None if task is None else self._parts.find_contract(tx, task.info)

        return await self._core.read(find)
