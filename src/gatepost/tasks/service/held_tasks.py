"""Tasks of other gateways that are held until their inputs are checked against their contracts.

The transaction that takes the batch of a link holds such a request, as it holds one whose blob is
not here yet. So the link goes on, and other events pass it. One loop per node checks its held
tasks, the oldest first, and then releases them.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial

from gatepost.core.gateway_core import Core
from gatepost.delivery.acceptance_check import open_inline_payload
from gatepost.delivery.inbox.held_events import events_to_check, sources_to_check
from gatepost.errors import GatepostError
from gatepost.events import Envelope
from gatepost.journal import Tx
from gatepost.tasks.service.task_contents import TaskContents, UncheckedContent, describe_input
from gatepost.tasks.task_request import content_of

log = logging.getLogger(__name__)

_BATCH = 64
_RETRY_SECS = 1.0


class HeldTasks:
    def __init__(self, core: Core, contents: TaskContents) -> None:
        self._core = core
        self._contents = contents
        self._loops: dict[str, asyncio.Task[None]] = {}
        # Nodes with new held tasks since their loop started.
        self._wanted: set[str] = set()
        self._is_stopped = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Check tasks held by an earlier process and new ones, until exit."""
        self._core.coordinator.observe(on_check_wanted=self.check_source)
        for source in await self._core.read(sources_to_check):
            self.check_source(source)
        try:
            yield
        finally:
            self._is_stopped = True
            loops = list(self._loops.values())
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    def check_source(self, source: str) -> None:
        """Check the held tasks of a node."""
        self._wanted.add(source)
        if source not in self._loops and not self._is_stopped:
            self._loops[source] = asyncio.create_task(self._serve(source))

    async def _serve(self, source: str) -> None:
        try:
            while source in self._wanted:
                self._wanted.discard(source)
                try:
                    while await self._check_batch(source):
                        pass
                except Exception as error:
                    log.warning("tasks of %s could not be checked: %s", source, error)
                    self._wanted.add(source)
                    await asyncio.sleep(_RETRY_SECS)
        finally:
            del self._loops[source]

    async def _check_batch(self, source: str) -> bool:
        """Check the oldest tasks that are held, and release them; False if there are none."""
        ids, contents = await self._core.read(partial(self._find_held, source=source))
        if not ids:
            return False
        try:
            await self._contents.check_contents(contents)
        finally:
            # Tasks without a verdict are held again.
            coordinator = self._core.coordinator
            await self._core.commit(lambda tx: coordinator.contents_checked(tx, source, ids))
        return True

    def _find_held(self, tx: Tx, source: str) -> tuple[list[str], list[UncheckedContent]]:
        """The ids of the oldest tasks that are held, and their inputs that have a contract."""
        events = events_to_check(tx, source, _BATCH)
        contents = [self._find_content(tx, source, each) for each in events]
        return [each.event_id for each in events], [each for each in contents if each is not None]

    def _find_content(self, tx: Tx, source: str, envelope: Envelope) -> UncheckedContent | None:
        parts = self._core.tasks.parts
        contract = None if envelope.task is None else parts.contract_of(tx, envelope.task)
        if contract is None or not contract.checks_input:
            return None
        open_payload = partial(open_inline_payload, parts.core.parts, envelope)
        try:
            return describe_input(contract, source, content_of(envelope, open_payload))
        except (GatepostError, ValueError):
            return None  # It is no longer readable, and is refused for that.
