"""An agent: runs a handler function on the mail of one mailbox and settles every turn."""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, overload

from msgspec import Raw

from gatepost.client._agent_turns import AgentTurn, AgentTurns
from gatepost.client._client import Client
from gatepost.client._encoding import EncodedReply, Moment, encode_payload, fits_frame
from gatepost.client._failure_reason import Reject, failure_reason
from gatepost.client._lease_heartbeat import LeaseHeartbeat
from gatepost.client._mailbox_client import DEFAULT_TIMEOUT
from gatepost.client._message import Message
from gatepost.client._sync_client import BlockingCalls
from gatepost.client._task_runner import TaskHandler, TaskRunner
from gatepost.client._turn_settler import TurnSettler
from gatepost.errors import (
    DeadlineExceeded,
    GatepostError,
    InvalidRequest,
    RateLimited,
    Unavailable,
)
from gatepost.events import EventKind, Order, check_agent_id
from gatepost.wire import Sent, WaitGoal

log = logging.getLogger("gatepost.client")

Handler = Callable[[Message], Any]
H = TypeVar("H", bound=Handler)
TH = TypeVar("TH", bound=TaskHandler)

# Payloads up to this size are fetched before the turn starts, so that `message.payload` works.
_PREFETCH_MAX_BYTES = 1024 * 1024
# Seconds between attempts to upload a large reply.
_FIRST_UPLOAD_DELAY, _LONGEST_UPLOAD_DELAY = 0.2, 5.0
# Yield to the event loop at least this often: handlers that never await would otherwise delay
# acks and heartbeats.
_MAX_UNYIELDING_SECS = 0.005


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
    """

    def __init__(
        self,
        name: str,
        *,
        state_dir: Path | str | None = None,
        url: str | None = None,
        token: str | None = None,
        concurrency: int = 16,
        credit: int = 64,
        stop_timeout: float = 30.0,
        standby: bool = False,
        order: Order | None = None,
    ) -> None:
        self.name = check_agent_id(name)
        self._standby = standby
        self._order = order
        self.client = Client(name, state_dir=state_dir, url=url, token=token)
        self._concurrency = concurrency
        self._credit = max(credit, concurrency)
        self._stop_timeout = stop_timeout
        self._handler: Handler | None = None
        self._is_async = False
        self._threads = ThreadPoolExecutor(concurrency, f"agent-{name}")
        self._tasks = TaskRunner(self.client, name, None, None, self._threads)
        self._turns = AgentTurns()
        self._workers: set[asyncio.Task[None]] = set()
        self._settler = TurnSettler(self.client, name, self._turns)
        self._heartbeat = LeaseHeartbeat(self.client, name, self._turns, self._settler)
        self._stopping = False
        self._end_requested: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    def on_message(self, handler: H) -> H:
        """Call `handler`, a function or coroutine function, for every message."""
        called = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(called)
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
        self._tasks = TaskRunner(self.client, self.name, handler, eta_secs, self._threads)
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
        if self._handler is None and not self._tasks.has_handler:
            raise InvalidRequest(
                f"agent {self.name} has no handler; use @agent.on_message or @agent.on_task"
            )
        self._loop = asyncio.get_running_loop()
        self._end_requested = self._loop.create_future()
        try:
            await self._connect_unless_ended(self._end_requested)
            await self.client.register(self.name, standby=self._standby, order=self._order)
            await self.client.subscribe(self.name, self._accept_delivery, credit=self._credit)
        except BaseException:
            await self.client.close()
            raise
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
        self._stopping = True
        self._turns.drop_all_waiting()
        deadline = self._loop.time() + self._stop_timeout
        await self._finish_turns(deadline)
        await self._settler.wait_until_settled(deadline)
        self._heartbeat.stop()
        try:
            await self.client.unsubscribe(self.name, timeout=5.0)
        except GatepostError as error:
            log.warning("unsettled mail is returned only when its lease ends: %s", error.message)
        await self.client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _finish_turns(self, deadline: float) -> None:
        if not self._workers:
            return
        _, late = await asyncio.wait(self._workers, timeout=deadline - self._loop.time())
        for task in late:
            log.warning("a turn of agent %s did not end in time; its mail is returned", self.name)
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)

    # -- sending as this agent

    async def send(
        self,
        to: str | Sequence[str],
        payload: Any = None,
        *,
        wait: WaitGoal | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        idempotency_key: str | None = None,
        corr_id: str | None = None,
        order: Order | None = None,
        not_before: Moment | None = None,
        max_retries: int | None = None,
    ) -> Sent:
        """Send a message as this agent to one or several agents."""
        return await self.client.send(
            to,
            payload,
            wait=wait,
            timeout=timeout,
            idempotency_key=idempotency_key,
            corr_id=corr_id,
            order=order,
            not_before=not_before,
            max_retries=max_retries,
        )

    async def broadcast(
        self, payload: Any = None, *, wait: WaitGoal | None = None, timeout: float = DEFAULT_TIMEOUT
    ) -> Sent:
        """Send a message as this agent to every other agent."""
        return await self.client.broadcast(payload, wait=wait, timeout=timeout)

    async def request(
        self, to: str, payload: Any = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> Any:
        """Send a message as this agent and return the reply."""
        return await self.client.request(to, payload, timeout=timeout)

    @property
    def skills(self) -> dict[str, Any]:
        """The delegation skills that were distributed to this agent, by capability."""
        return self._tasks.skills

    @property
    def blocking(self) -> BlockingCalls:
        """The client's calls in blocking form, for handlers that are plain functions."""
        return BlockingCalls(self.client, self._loop)

    # -- turns

    def _accept_delivery(self, messages: list[Message]) -> None:
        if self._stopping:
            return
        for turn in self._turns.add_delivered(messages, self._loop.time()):
            self._settler.settle_turn(turn)
        self._start_turns()
        if messages:
            self._heartbeat.start(messages[0].lease_secs)

    def _start_turns(self) -> None:
        while len(self._workers) < self._concurrency:
            turn = self._turns.start_next(self._loop.time())
            if turn is None:
                return
            task = self._loop.create_task(self._run_turns(turn))
            self._workers.add(task)
            task.add_done_callback(self._finish_worker)

    def _finish_worker(self, task: "asyncio.Task[None]") -> None:
        self._workers.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("agent %s failed unexpectedly", self.name, exc_info=error)
            if self._end_requested is not None and not self._end_requested.done():
                self._end_requested.set_exception(error)
        elif not self._stopping:
            self._start_turns()

    async def _run_turns(self, first: AgentTurn) -> None:
        """Take one turn after the other until none is ready."""
        turn: AgentTurn | None = first
        began = self._loop.time()
        while turn is not None:
            await self._take_turn(turn)
            if self._loop.time() - began > _MAX_UNYIELDING_SECS:
                await asyncio.sleep(0)
                began = self._loop.time()
            turn = None if self._stopping else self._turns.start_next(self._loop.time())

    async def _take_turn(self, turn: AgentTurn) -> None:
        if turn.message.kind == EventKind.TASK_CREATE:
            await self._take_task(turn, self._tasks)
        else:
            await self._take_message(turn)

    async def _take_task(self, turn: AgentTurn, tasks: TaskRunner) -> None:
        """Accepting a task settles its mail: from then on the task is no turn any more."""
        try:
            task = await tasks.accept_task(turn.message)
        except asyncio.CancelledError:
            self._turns.abandon_turn(turn)
            raise
        except Exception as error:
            log.warning("the task of %s was not accepted", turn.message, exc_info=error)
            rejected = isinstance(error, InvalidRequest)
            self._turns.mark_failed(turn, failure_reason(error), rejected=rejected)
            self._settler.settle_turn(turn)
            return
        if task is None:
            self._turns.mark_done(turn, None)
            self._settler.settle_turn(turn)
            return
        self._turns.abandon_turn(turn)
        await tasks.run_task(task)

    async def _take_message(self, turn: AgentTurn) -> None:
        try:
            answer = await self._call_handler(turn.message)
            # A reply is never answered, so two agents cannot reply to each other forever.
            quiet = answer is None or turn.message.kind == "reply"
            reply = None if quiet else await self._prepare_reply(turn, encode_payload(answer))
        except asyncio.CancelledError:
            self._turns.abandon_turn(turn)
            raise
        except Exception as error:
            log.warning("the turn for %s failed", turn.message, exc_info=error)
            rejected = isinstance(error, Reject)
            self._turns.mark_failed(turn, failure_reason(error), rejected=rejected)
        else:
            self._turns.mark_done(turn, reply)
        self._settler.settle_turn(turn)

    async def _prepare_reply(self, turn: AgentTurn, reply: Raw) -> EncodedReply:
        """Upload a reply too large for a frame, trying again as long as the lease lasts.

        That is part of the turn, so no later turn of the same sender ends before it.
        """
        if fits_frame(reply):
            return reply
        delay = _FIRST_UPLOAD_DELAY
        while True:
            try:
                return await self.client.upload_reply(reply)
            except (Unavailable, DeadlineExceeded, RateLimited):
                if self._loop.time() + delay >= turn.lease_until:
                    raise
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_UPLOAD_DELAY)

    async def _call_handler(self, message: Message) -> Any:
        if 0 < message.blob_size <= _PREFETCH_MAX_BYTES:
            with contextlib.suppress(InvalidRequest):
                await message.load()
        if self._handler is None:
            raise Reject(f"agent {self.name} takes tasks only")
        if self._is_async:
            return await self._handler(message)
        call = partial(contextvars.copy_context().run, self._handler, message)
        return await self._loop.run_in_executor(self._threads, call)
