"""Runs the tasks of an agent: accepts each, keeps it alive while the handler works, ends it."""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from gatepost.client._agents.failure_reason import Reject, failure_reason
from gatepost.client._agents.task_heartbeat import HAS_ENDED, TaskHeartbeat
from gatepost.client._client import Client
from gatepost.client._message import Message
from gatepost.client._task import AgentTask, load_task
from gatepost.errors import ContractMismatch, GatepostError
from gatepost.events import SKILL_DISTRIBUTION
from gatepost.events.reserved_names import GATEWAY

log = logging.getLogger("gatepost.client")

TaskHandler = Callable[[AgentTask], Any]

_RETRY_SECS = 1.0
_MAX_TRIES = 60


class HandlerOutcome(NamedTuple):
    """The result of a handler, or the error that it raised."""

    result: Any
    error: Exception | None = None


class TaskRunner:
    def __init__(
        self,
        client: Client,
        agent: str,
        handler: TaskHandler | None,
        eta_secs: float | None,
        threads: ThreadPoolExecutor,
    ) -> None:
        self._client = client
        self._agent = agent
        self._handler = handler
        self._eta_secs = eta_secs
        self._threads = threads
        self._is_async = inspect.iscoroutinefunction(handler)
        self._heartbeat = TaskHeartbeat()
        # The delegation skills that were distributed to this agent, by capability.
        self.skills: dict[str, Any] = {}

    @property
    def has_handler(self) -> bool:
        return self._handler is not None

    async def accept_task(self, message: Message) -> AgentTask | None:
        """Accept the task of a message, and so settle its mail; None if it has ended already."""
        task = await load_task(message, self._client, self._agent)
        try:
            await task.accept(message.receipt, self._eta_secs)
        except HAS_ENDED as error:
            log.info("%s is not accepted: %s", task, error.message)
            return None
        return task

    async def run_task(self, task: AgentTask) -> None:
        """Call the handler and report how it ended. A task that is cancelled ends the handler."""
        self._heartbeat.add_task(task)
        try:
            outcome = await self._run_handler(task)
            if outcome is None:
                log.warning("%s was ended; its handler is cancelled", task)
            else:
                await self._report_end(task, outcome)
        finally:
            self._heartbeat.remove_task(task)

    async def _run_handler(self, task: AgentTask) -> HandlerOutcome | None:
        """The outcome of the handler; None if the task has ended in another way meanwhile."""
        try:
            outcome = HandlerOutcome(await self._call_handler(task))
        except asyncio.CancelledError:
            if not self._heartbeat.end_handler(task):
                raise
            return None
        except Exception as error:
            outcome = HandlerOutcome(None, error)
        return None if self._heartbeat.end_handler(task) else outcome

    async def _report_end(self, task: AgentTask, outcome: HandlerOutcome) -> None:
        error = outcome.error
        if error is None:
            report = partial(task.complete, outcome.result)
        else:
            log.warning("%s failed", task, exc_info=error)
            code = "rejected" if isinstance(error, Reject) else "failed"
            report = partial(task.fail, code, failure_reason(error))
        for _ in range(_MAX_TRIES):
            try:
                await report()
            except HAS_ENDED as ended:
                log.warning("the end of %s does not count: %s", task, ended.message)
            except ContractMismatch as mismatch:
                log.warning("%s failed: %s", task, mismatch.message)
            except GatepostError as problem:
                if problem.status < 429 and problem.status >= 400 and error is None:
                    error = problem
                    report = partial(task.fail, "failed", problem.message)
                else:
                    await asyncio.sleep(_RETRY_SECS)
                continue
            return
        log.error("the end of %s could not be reported", task)

    async def _call_handler(self, task: AgentTask) -> Any:
        if task.task_type == SKILL_DISTRIBUTION:
            return self._install_skill(task)
        if self._handler is None:
            raise Reject(f"agent {self._agent} takes no tasks")
        if self._is_async:
            return await self._handler(task)
        call = partial(contextvars.copy_context().run, self._handler, task)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _install_skill(self, task: AgentTask) -> dict[str, Any]:
        """Remember the delegation skill of a capability, and report its version.

        The agent's own gateway has checked where the skill is from, and its name is reserved.
        """
        if task.requester != GATEWAY:
            raise Reject(f"{task.requester} is not the gateway of agent {self._agent}")
        offered = task.input
        skill = offered["delegation_skill"]
        self.skills[offered["capability_id"]] = offered
        return {"status": "installed", "version": skill["version"]}
