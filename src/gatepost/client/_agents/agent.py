"""An agent: runs a handler function on the mail of one mailbox and settles every turn."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack, overload

from gatepost.client._agents.agent_workers import AgentWorkers, Handler
from gatepost.client._agents.task_runner import TaskHandler, TaskRunner
from gatepost.client._client import Client
from gatepost.client._send_options import SendOptions
from gatepost.client._sync_client import BlockingCalls
from gatepost.errors import (
    GatepostError,
    InvalidRequest,
)
from gatepost.events import Order, check_agent_id
from gatepost.wire.operations import Sent, WaitGoal

log = logging.getLogger("gatepost.client")

H = TypeVar("H", bound=Handler)
TH = TypeVar("TH", bound=TaskHandler)


_USUAL_CREDIT = 64


class AgentEndedEarly(Exception):
    """`end` was called while the agent waited for its gateway."""


class Agent:
    """Runs a handler on incoming mail: `concurrency` senders at a time, each sender in order.

    The handler's return value is sent back as the reply. If the handler raises, the turn fails and
    the message is delivered again later, unless it raises `Reject`. Leases are extended while the
    handler runs. A `standby` takes the mail of an agent that lives behind another gateway, if a
    route names this gateway as its fallback. With `order="none"` the mailbox is a work queue: the
    messages of one sender are handled at the same time, here and in other processes that run this
    agent, except those that ask for order.

    `credit` is how many messages the gateway leases to this process at a time. By default that is
    64, and twice the `concurrency` for a work queue: mail that no handler can take yet is left to
    other processes.

    `executor_skills` are the skills that the agent hosts for its capabilities, the version by the
    id or path of each: `{"skills/review": "1.0"}`.
    """

    def __init__(
        self,
        name: str,
        *,
        state_dir: Path | str | None = None,
        url: str | None = None,
        token: str | None = None,
        token_file: Path | str | None = None,
        context: str | None = None,
        concurrency: int = 16,
        credit: int | None = None,
        stop_timeout: float = 30.0,
        standby: bool = False,
        order: Order | None = None,
        executor_skills: Mapping[str, str] | None = None,
    ) -> None:
        self.name = check_agent_id(name)
        self._executor_skills = executor_skills
        self._standby = standby
        self._order = order
        self.client = Client(
            name, state_dir=state_dir, url=url, token=token, token_file=token_file, context=context
        )
        self._credit = max(credit or _default_credit(concurrency, order), concurrency)
        self._stop_timeout = stop_timeout
        self._workers = AgentWorkers(self.client, name, concurrency, self._fail)
        self._end_requested: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    def on_message(self, handler: H) -> H:
        """Call `handler`, a function or coroutine function, for every message."""
        self._workers.set_handler(handler)
        return handler

    @overload
    def on_task(self, handler: TH) -> TH: ...

    @overload
    def on_task(self, *, eta_secs: float | None = None) -> Callable[[TH], TH]: ...

    def on_task(self, handler: Any = None, *, eta_secs: float | None = None) -> Any:
        """Call `handler`, a function or coroutine function, for every task.

        Its return value is the result of the task. If it raises, the task fails. `eta_secs` is the
        ETA that is stated when a task is accepted: `@agent.on_task(eta_secs=60)`.
        """
        if handler is None:
            return partial(self._set_task_handler, eta_secs)
        return self._set_task_handler(eta_secs, handler)

    def _set_task_handler(self, eta_secs: float | None, handler: TH) -> TH:
        threads = self._workers.threads
        self._workers.tasks = TaskRunner(self.client, self.name, handler, eta_secs, threads)
        return handler

    # -- start and stop

    def run(self) -> None:
        """Handle mail until SIGINT or SIGTERM; then finish running turns and return other mail.

        If the program has not set up logging, the agent's own lines go to standard error.
        """
        if not log.hasHandlers():
            logging.basicConfig(format="%(levelname)s %(message)s")
            log.setLevel(logging.INFO)
        asyncio.run(self._run_until_signal())

    async def serve(self) -> None:
        """Handle mail until `end` is called or the task is cancelled.

        A gateway that does not run yet is waited for.
        """
        with contextlib.suppress(AgentEndedEarly):
            async with self:
                assert self._end_requested is not None
                await self._end_requested

    def end(self) -> None:
        """Make `serve` return."""
        if self._end_requested is not None and not self._end_requested.done():
            self._end_requested.set_result(None)

    async def __aenter__(self) -> Self:
        if not self._workers.has_handler:
            raise InvalidRequest(
                f"agent {self.name} has no handler; use @agent.on_message or @agent.on_task"
            )
        self._loop = asyncio.get_running_loop()
        self._workers.start()
        self._end_requested = self._loop.create_future()
        try:
            await self._connect_unless_ended(self._end_requested)
            problem = await self.client.register(
                self.name,
                standby=self._standby,
                order=self._order,
                takes_skills=True,
                executor_skills=self._executor_skills,
            )
            await self.client.subscribe(
                self.name, self._workers.accept_delivery, credit=self._credit
            )
        except BaseException:
            await self.client.close()
            raise
        if problem:
            log.warning("agent %s gets no mail here: %s", self.name, problem)
        else:
            log.info("agent %s is ready for mail", self.name)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_gracefully()

    async def _connect_unless_ended(self, ended: "asyncio.Future[None]") -> None:
        connecting = asyncio.ensure_future(self.client.open_when_reachable())
        try:
            await asyncio.wait((connecting, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            connecting.cancel()
        if ended.done():
            raise AgentEndedEarly(f"agent {self.name} was ended before it was connected")
        await connecting

    async def _run_until_signal(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._handle_signal)
        await self.serve()

    def _handle_signal(self) -> None:
        # A second signal ends the process at once.
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)
        log.info("agent %s finishes its turns; press again to exit at once", self.name)
        self.end()

    async def _stop_gracefully(self) -> None:
        """Take no more mail, finish running turns, and return waiting mail to the gateway."""
        await self._workers.finish_turns(self._stop_timeout)
        try:
            await self.client.unsubscribe(self.name, timeout=5.0)
        except GatepostError as error:
            log.warning("unsettled mail is returned only when its lease ends: %s", error.message)
        await self.client.close()
        self._workers.threads.shutdown(wait=False, cancel_futures=True)

    def _fail(self, error: BaseException) -> None:
        """Make `serve` raise an error."""
        if self._end_requested is not None and not self._end_requested.done():
            self._end_requested.set_exception(error)

    # -- sending as this agent

    async def send(
        self,
        to: str | Sequence[str],
        payload: Any = None,
        *,
        wait: WaitGoal | None = None,
        **options: Unpack[SendOptions],
    ) -> Sent:
        """Send a message as this agent to one or several agents."""
        return await self.client.send(to, payload, wait=wait, **options)

    async def broadcast(
        self,
        payload: Any = None,
        *,
        wait: WaitGoal | None = None,
        **options: Unpack[SendOptions],
    ) -> Sent:
        """Send a message as this agent to every other agent."""
        return await self.client.broadcast(payload, wait=wait, **options)

    async def request(self, to: str, payload: Any = None, **options: Unpack[SendOptions]) -> Any:
        """Send a message as this agent and return the reply."""
        return await self.client.request(to, payload, **options)

    @property
    def skills(self) -> dict[str, Any]:
        """The delegation skills that were distributed to this agent, by capability."""
        return self._workers.tasks.skills

    @property
    def blocking(self) -> BlockingCalls:
        """The client's calls in blocking form, for handlers that are plain functions."""
        return BlockingCalls(self.client, self._loop)


def _default_credit(concurrency: int, order: Order | None) -> int:
    return 2 * concurrency if order == "none" else _USUAL_CREDIT
