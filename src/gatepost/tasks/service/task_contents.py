"""Inputs and results of tasks, checked against their contracts before a transaction acts on them.

The transaction that takes an input or a result looks up the verdict about exactly this content. If
there is none, it raises ContractUnchecked and changes nothing.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct, UnsetType

from gatepost.core.gateway_core import Core
from gatepost.delivery.blob_records import find_blob
from gatepost.errors import ContractUnchecked, GatepostError, UnknownBlob
from gatepost.journal import Tx
from gatepost.tasks import task_table
from gatepost.tasks.agent_reports import read_result
from gatepost.tasks.capabilities.contract import (
    RETRY_MS,
    ContractPart,
    ContractVerdict,
    KeptContract,
)
from gatepost.tasks.service.json_contents import find_input
from gatepost.tasks.task_request import RequestContent, input_of, mark_input
from gatepost.tasks.task_table import TaskPayload
from gatepost.wire.tasks import NewTask, TaskReport

T = TypeVar("T")

_TRIES = 3
_AT_ONCE = 64


class UncheckedContent(Struct, frozen=True):
    """A content that needs a verdict: `inline` has it, or else the blob `digest`.

    `source` is the node or the agent whose content it is.
    """

    contract: KeptContract
    part: ContractPart
    mark: bytes
    source: str
    inline: bytes | None = None
    digest: str = ""


class TaskContents:
    """`find_key` gives the key of a blob that holds a request or a result."""

    def __init__(
        self,
        core: Core,
        find_key: Callable[[Tx, str], bytes] = lambda tx, digest: find_blob(tx, digest)[0],
    ) -> None:
        self._core = core
        self._find_key = find_key
        self._parts = core.tasks.parts

    @property
    def has_contracts(self) -> bool:
        """Whether any capability is known. Most gateways have none."""
        return bool(self._parts.router.capabilities)

    # -- before a transaction

    def needs_check(self, new: NewTask) -> bool:
        """Whether a new task may be for a capability whose contract restricts the input."""
        return bool(self._contract_of_new(new))

    def _contract_of_new(self, new: NewTask) -> str:
        wanted = new.required_capabilities
        if isinstance(wanted, UnsetType) or not wanted:
            return ""
        entry = self._parts.router.capabilities.get(wanted[0])
        return "" if entry is None else entry.contract

    async def check_new(self, pairs: Sequence[tuple[NewTask, RequestContent]]) -> None:
        """Ensure that the inputs of new tasks have verdicts."""

        def find(tx: Tx) -> list[UncheckedContent]:
            found = []
            for new, content in pairs:
                contract = self._parts.load_contract(tx, self._contract_of_new(new))
                if contract is not None and contract.checks_input:
                    found.append(describe_input(contract, f"agent:{new.from_agent}", content))
            return found

        if any(self.needs_check(new) for new, _ in pairs):
            await self.check_contents(await self._core.read(find))

    async def check_reports(self, reports: Iterable[TaskReport]) -> None:
        """Ensure that the results in reports have verdicts."""

        def find(tx: Tx) -> list[UncheckedContent]:
            found = []
            for report in reports:
                # A missing result is refused when the report is applied.
                with contextlib.suppress(UnknownBlob):
                    if report.action == "complete":
                        found += self._find_result(tx, report.task_id, read_result(tx, report))
            return found

        await self.check_contents(await self._core.read(find))

    async def check_result(self, task_id: str, result: TaskPayload) -> None:
        """Ensure that the result of a task has a verdict."""
        if self.has_contracts:
            find = partial(self._find_result, task_id=task_id, result=result)
            await self.check_contents(await self._core.read(find))

    def _find_result(self, tx: Tx, task_id: str, result: TaskPayload) -> list[UncheckedContent]:
        task = task_table.find_requested_task(tx, task_id)
        contract = None if task is None else self._parts.find_contract(tx, task.info)
        if task is None or contract is None or not contract.checks_output or result.mark is None:
            return []
        source, digest = f"agent:{task.agent}", result.result_ref or ""
        return [UncheckedContent(contract, "output", result.mark, source, result.result, digest)]

    async def commit_checked(
        self, operation: Callable[[Tx], T], check: Callable[[], Awaitable[None]]
    ) -> T:
        """Commit an operation; run `check`, and commit it again, if it misses a verdict."""
        for _ in range(_TRIES):
            try:
                return await self._core.commit(operation)
            except ContractUnchecked:
                await check()
        return await self._core.commit(operation)

    # -- verdicts

    async def check_contents(self, contents: Iterable[UncheckedContent]) -> None:
        """Ensure that contents have verdicts, checking many at once.

        ContractUnchecked if one of them could not be checked now.
        """
        now = self._core.clock.now()
        missing = [
            each
            for each in contents
            if self._parts.verdicts.find(each.contract, each.part, each.mark, now) is None
        ]
        for begin in range(0, len(missing), _AT_ONCE):
            batch = missing[begin : begin + _AT_ONCE]
            ends = await asyncio.gather(
                *(self._check_content(each) for each in batch), return_exceptions=True
            )
            for end in ends:
                if isinstance(end, BaseException):
                    raise end

    async def _check_content(self, unchecked: UncheckedContent) -> None:
        contract, part, content = unchecked.contract, unchecked.part, unchecked.inline
        load = partial(self._load_content, unchecked)
        source = (contract.source, unchecked.source)
        try:
            verdict = await self._core.contracts.check(
                source, contract.digest, part, load if content is None else content
            )
        except ContractUnchecked:
            raise
        except (GatepostError, OSError, ValueError) as error:
            problem = f"{part}: cannot be read: {error}"
            verdict = ContractVerdict(problem, self._core.clock.now() + RETRY_MS)
        self._parts.verdicts.note(contract, part, unchecked.mark, verdict)

    async def _load_content(self, unchecked: UncheckedContent) -> bytes:
        digest = unchecked.digest
        key = await self._core.read(lambda tx: self._find_key(tx, digest))
        pieces = self._core.blobs.read_payload(digest, key)
        content = await asyncio.to_thread(lambda: b"".join(pieces))
        return await find_input(content) if unchecked.part == "input" else content


def describe_input(
    contract: KeptContract, source: str, content: RequestContent
) -> UncheckedContent:
    """The input of a request, which `source` sends."""
    mark = mark_input(content)
    if content.digest is not None:
        return UncheckedContent(contract, "input", mark, source, digest=content.digest)
    return UncheckedContent(contract, "input", mark, source, input_of(content.payload))
