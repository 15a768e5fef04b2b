"""One call of a tool: its caller, the caller's desk, and the progress reports."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from msgspec import Struct

from gatepost.access import Scope
from gatepost.errors import Forbidden
from gatepost.gateway.doors import DoorCaller, DoorServices
from gatepost.mcp.server.agent_desk import AgentDesk, AgentDesks
from gatepost.mcp.server.fenced_text import Fence
from gatepost.wire.frame_types import Op

_REPORT_EVERY_SECS = 5.0

# Takes the seconds that have passed, those of the whole wait, and what is waited for.
ReportProgress = Callable[[float, float, str], Awaitable[None]]


class ToolCall(Struct, frozen=True):
    services: DoorServices
    desks: AgentDesks
    fence: Fence
    caller: DoorCaller
    report: ReportProgress

    @property
    def agent(self) -> str:
        if self.caller.agent is None:
            raise Forbidden(
                "this needs an agent: connect with `gatepost mcp --agent NAME`, or over HTTP with"
                " an agent's token or the header `Gatepost-Agent: NAME`"
            )
        return self.caller.agent

    @property
    def desk(self) -> AgentDesk:
        _ = self.agent
        return self.desks.open_desk(self.caller)

    async def register(self) -> None:
        """Register the agent at its first call, so that it can receive mail."""
        session = self.caller.session
        if session is None or self.desk.problem is not None:
            return
        may_read = Scope.MESSAGE_READ in session.scopes
        self.desk.problem = await self.services.register(self.caller) if may_read else ""

    async def perform(self, op: Op) -> Any:
        return await self.services.perform(self.caller, op)

    @contextlib.asynccontextmanager
    async def reporting(self, secs: float, what: str) -> AsyncIterator[None]:
        """Report every few seconds that the call still waits."""
        ticking = asyncio.create_task(self._report_waiting(secs, what)) if secs > 0 else None
        try:
            yield
        finally:
            if ticking is not None:
                ticking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await ticking

    async def _report_waiting(self, secs: float, what: str) -> None:
        passed = 0.0
        while True:
            await asyncio.sleep(_REPORT_EVERY_SECS)
            passed += _REPORT_EVERY_SECS
            await self.report(min(passed, secs), secs, what)
