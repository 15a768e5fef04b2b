"""Large inputs of other gateways, for agents that run by themselves: checked when they arrive.

The input of a session is checked before the session starts. An agent takes its task from its
mailbox, so its input is checked beside that: a task whose input does not fit ends.
"""

import asyncio
import logging

from gatepost.delivery.blob_records import find_blob
from gatepost.errors import ContractMismatch
from gatepost.gateway.api.tasks.large_contents import LargeContents
from gatepost.gateway.core import Core
from gatepost.hub import tasks
from gatepost.hub.task_states import TaskState
from gatepost.hub.tasks import CONTRACT_MISMATCH, Task
from gatepost.journal import Tx

log = logging.getLogger(__name__)

_AT_ONCE = 2


class ArrivedInputs:
    def __init__(self, core: Core, contents: LargeContents) -> None:
        self._core = core
        self._contents = contents
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._checks: set[asyncio.Task[None]] = set()

    def task_changed(self, task: Task) -> None:
        """Check the input of a task that has just arrived for an agent of this gateway."""
        is_new = task.state is TaskState.PENDING and task.requester_node is not None
        if is_new and task.executor == "agent" and self._contents.has_contracts:
            check = asyncio.create_task(self._check(task.id))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check(self, id: str) -> None:
        try:
            async with self._slots:
                request = await self._load_large_request(id)
                if request is not None:
                    await self._contents.check_input(id, request)
        except ContractMismatch as error:
            why = error.message
            await self._core.commit(lambda tx: self._end_task(tx, id, why))
        except Exception as error:
            log.warning("the input of task %s could not be checked: %s", id, error)

    async def _load_large_request(self, id: str) -> bytes | None:
        payload = await self._core.read(lambda tx: tasks.load_payload(tx, id))
        digest = payload.request_ref
        if digest is None:
            return None
        key, _ = await self._core.read(lambda tx: find_blob(tx, digest))
        pieces = self._core.blobs.read_payload(digest, key)
        return await asyncio.to_thread(lambda: b"".join(pieces))

    def _end_task(self, tx: Tx, id: str, error: str) -> None:
        task, executed = tasks.load_task(tx, id), self._core.tasks.executed
        if task.state is TaskState.PENDING:
            executed.refuse_task(tx, task, CONTRACT_MISMATCH, error)
        elif not task.has_ended:
            executed.fail_task(tx, id, CONTRACT_MISMATCH, error)
