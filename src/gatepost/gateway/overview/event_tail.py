"""Tells operators every event that this gateway writes or takes, as soon as it is on disk.

An event is told as the step that it stands for in a journey, and without its payload. Without a
listener nothing is kept. A listener that does not read misses events, and is told how many.
"""

import asyncio
from collections.abc import AsyncGenerator

from gatepost.core.commit_observer import CommittedEvents
from gatepost.core.gateway_core import Core
from gatepost.core.wait_registry import WaitRegistry
from gatepost.errors import GatepostError, Unavailable
from gatepost.events import Envelope
from gatepost.links.event_trace import describe_event_step
from gatepost.wire.report_views import JourneyStep

_MAX_LISTENERS = 16
_MAX_QUEUED = 2000
_WAIT_SECS = 3600.0
# Signals that gateways send each other about their pairs, not about one message.
_UNTOLD = frozenset(("pair_closed", "restored", "resumed", "expire"))


class _Listener:
    def __init__(self, agent: str | None) -> None:
        self._agent = agent
        self._steps: list[JourneyStep] = []
        self._missed = 0
        self.changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note(self, steps: list[JourneyStep]) -> None:
        wanted = [each for each in steps if self._is_wanted(each)]
        room = max(0, _MAX_QUEUED - len(self._steps))
        self._steps += wanted[:room]
        self._missed += len(wanted[room:])
        if wanted and not self.changed.done():
            self.changed.set_result(None)

    def take(self, node: str, now: int) -> list[JourneyStep]:
        steps, missed = self._steps, self._missed
        self._steps, self._missed = [], 0
        self.changed = asyncio.get_running_loop().create_future()
        if missed:
            steps.append(JourneyStep(now, node, "missed", "", detail=f"{missed:,}"))
        return steps

    def _is_wanted(self, step: JourneyStep) -> bool:
        return self._agent is None or self._agent in (step.agent, step.to_agent)


class EventTail:
    def __init__(self, core: Core, waits: WaitRegistry) -> None:
        self._core = core
        self._waits = waits
        self._listeners: set[_Listener] = set()

    def require_place(self) -> None:
        if len(self._listeners) >= _MAX_LISTENERS:
            raise Unavailable("too many watch the events already", retry_after=5.0)

    async def listen(self, agent: str | None) -> AsyncGenerator[list[JourneyStep], None]:
        """Yield the events from now on, or those of an agent, until the gateway stops."""
        self.require_place()
        listener = _Listener(agent)
        self._listeners.add(listener)
        self._core.observer.watch_commits(self._note_commit)
        try:
            # The caller knows by the first, empty list that it listens.
            yield []
            while not self._waits.is_stopping:
                if await self._waits.wait_for(listener.changed, _WAIT_SECS):
                    yield listener.take(self._core.node.id, self._core.clock.now())
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._core.observer.ignore_commits(self._note_commit)

    def _note_commit(self, group: CommittedEvents, error: GatepostError | None) -> None:
        node = self._core.node.id
        steps = [_as_step(each, node, group.at) for each in group.drafts]
        steps += [_as_step(each, each.source_node_id, group.at) for each in group.received]
        told = [step for step in steps if step.what not in _UNTOLD]
        for listener in self._listeners:
            listener.note(told)


def _as_step(envelope: Envelope, node: str, at: int) -> JourneyStep:
    step = describe_event_step(envelope)
    return JourneyStep(
        at, node, step.what, step.event_id, step.kind, step.agent, step.to_agent, step.peer,
        step.detail,
    )  # fmt: skip
