"""Runs the tasks of an agent: accepts each, keeps it alive while the handler works, ends it."""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from gatepost.client._client import Client
from gatepost.client._failure_reason import Reject, failure_reason
from gatepost.client._message import Message
from gatepost.client._task import AgentTask, load_task
from gatepost.errors import (
    Forbidden,
    GatepostError,
    IdempotencyConflict,
    UnknownTask,
    WrongState,
)

log = logging.getLogger("gatepost.client")

TaskHandler = Callable[[AgentTask], Any]

# How often a task without reports is kept alive. This also finds out that it was cancelled.
_HEARTBEAT_SECS = 5.0
_RETRY_SECS = 1.0
_MAX_TRIES = 60
_DISTRIBUTION = "skill_distribution"
# The task has ended in another way: nothing that is said about it counts any more.
_HAS_ENDED = (WrongState, UnknownTask, Forbidden, IdempotencyConflict)


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
        except _HAS_ENDED as error:
            log.info("%s is not accepted: %s", task, error.message)
            return None
        return task

    async def run_task(self, task: AgentTask) -> None:
        """Call the handler and report how it ended. A task that is cancelled ends the handler."""
        work = asyncio.ensure_future(self._call_handler(task))
        heartbeat = asyncio.ensure_future(self._keep_alive(task))
        try:
            await asyncio.wait((work, heartbeat), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.warning("%s was ended; its handler is cancelled", task)
                return
            await self._report_end(task, work)
        finally:
            work.cancel()
            heartbeat.cancel()
            await asyncio.gather(work, heartbeat, return_exceptions=True)

    async def _report_end(self, task: AgentTask, work: "asyncio.Future[Any]") -> None:
        error = work.exception()
        if error is None:
            report = partial(task.complete, work.result())
        else:
            log.warning("%s failed", task, exc_info=error)
            code = "rejected" if isinstance(error, Reject) else "failed"
            report = partial(task.fail, code, failure_reason(error))
        for _ in range(_MAX_TRIES):
            try:
                await report()
            except _HAS_ENDED as ended:
                log.warning("the end of %s does not count: %s", task, ended.message)
            except GatepostError as problem:
                if problem.status < 429 and problem.status >= 400 and error is None:
                    error = problem
                    report = partial(task.fail, "failed", problem.message)
                else:
                    await asyncio.sleep(_RETRY_SECS)
                continue
            return
        log.error("the end of %s could not be reported", task)

    async def _keep_alive(self, task: AgentTask) -> None:
        """Report that the task is alive; returns once it has ended in another way."""
        while True:
            await asyncio.sleep(_HEARTBEAT_SECS)
            try:
                await task.update()
            except _HAS_ENDED:
                return
            except GatepostError as error:
                log.warning("%s could not be kept alive: %s", task, error.message)

    async def _call_handler(self, task: AgentTask) -> Any:
        if task.task_type == _DISTRIBUTION:
            return self._install_skill(task.input)
        if self._handler is None:
            raise Reject(f"agent {self._agent} takes no tasks")
        if self._is_async:
            return await self._handler(task)
        call = partial(contextvars.copy_context().run, self._handler, task)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _install_skill(self, offered: Any) -> dict[str, Any]:
        """Remember the delegation skill of a capability, and report its version."""
        skill = offered["delegation_skill"]
        self.skills[offered["capability_id"]] = offered
        return {"status": "installed", "version": skill["version"]}
