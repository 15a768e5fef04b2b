"""The workers of an agent: they run its handlers on delivered mail, and settle every turn."""

import asyncio
import contextlib
import contextvars
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec import Raw

from gatepost.client._agents.agent_turns import AgentTurn, AgentTurns
from gatepost.client._agents.failure_reason import Reject, Retry, failure_reason
from gatepost.client._agents.lease_heartbeat import LeaseHeartbeat
from gatepost.client._agents.task_runner import TaskRunner
from gatepost.client._agents.turn_settler import TurnSettler
from gatepost.client._client import Client
from gatepost.client._encoding import EncodedReply, encode_payload, fits_frame
from gatepost.client._message import Message
from gatepost.errors import (
    DeadlineExceeded,
    InvalidRequest,
    RateLimited,
    Unavailable,
)
from gatepost.events import EventKind

log = logging.getLogger("gatepost.client")

Handler = Callable[[Message], Any]

# The most turns that hold payloads over this size in memory at once; further turns wait.
_LARGE_PAYLOAD_BYTES = 1024 * 1024
_LARGE_TURNS = 4
# Seconds between attempts to upload a large reply.
_FIRST_UPLOAD_DELAY, _LONGEST_UPLOAD_DELAY = 0.2, 5.0
# Yield to the event loop at least this often: handlers that never await would otherwise delay
# acks and heartbeats.
_MAX_UNYIELDING_SECS = 0.005


class AgentWorkers:
    """At most `concurrency` turns at a time. `on_failure` hears of errors that are bugs of ours."""

    def __init__(
        self,
        client: Client,
        name: str,
        concurrency: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._name = name
        self._concurrency = concurrency
        self._on_failure = on_failure
        self._handler: Handler | None = None
        self._is_async = False
        self.threads = ThreadPoolExecutor(concurrency, f"agent-{name}")
        self.tasks = TaskRunner(client, name, None, None, self.threads)
        self._turns = AgentTurns()
        self._workers: set[asyncio.Task[None]] = set()
        self._settler = TurnSettler(client, name, self._turns)
        self._heartbeat = LeaseHeartbeat(client, name, self._turns, self._settler)
        self._stopping = False
        self._large_turns = asyncio.Semaphore(_LARGE_TURNS)
        self._loop: asyncio.AbstractEventLoop

    @property
    def has_handler(self) -> bool:
        return self._handler is not None or self.tasks.has_handler

    def set_handler(self, handler: Handler) -> None:
        called = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(called)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def finish_turns(self, timeout: float) -> None:
        """Take no more mail, and let running turns end and settle."""
        self._stopping = True
        self._turns.drop_all_waiting()
        deadline = self._loop.time() + timeout
        await self._end_workers(deadline)
        await self._settler.wait_until_settled(deadline)
        self._heartbeat.stop()

    async def _end_workers(self, deadline: float) -> None:
        if not self._workers:
            return
        _, late = await asyncio.wait(self._workers, timeout=deadline - self._loop.time())
        for task in late:
            log.warning("a turn of agent %s did not end in time; its mail is returned", self._name)
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)

    def accept_delivery(self, messages: list[Message]) -> None:
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
            log.error("agent %s failed unexpectedly", self._name, exc_info=error)
            self._on_failure(error)
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
            await self._take_task(turn, self.tasks)
        else:
            await self._take_message(turn)

    async def _take_task(self, turn: AgentTurn, tasks: TaskRunner) -> None:
        """Accepting a task settles its mail; from then on the task does not belong to a turn."""
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
            _log_failed_turn(turn, error)
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
                return await self._client.upload_reply(reply)
            except (Unavailable, DeadlineExceeded, RateLimited):
                if self._loop.time() + delay >= turn.lease_until:
                    raise
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_UPLOAD_DELAY)

    async def _call_handler(self, message: Message) -> Any:
        """Call the handler with a payload that is loaded, so that `message.payload` works."""
        if self._handler is None:
            raise Reject(f"agent {self._name} takes tasks only")
        is_large = message.blob_size > _LARGE_PAYLOAD_BYTES
        async with self._large_turns if is_large else contextlib.nullcontext():
            if message.blob_size:
                # A payload that is not JSON is for `message.stream`.
                with contextlib.suppress(InvalidRequest):
                    await message.load()
            return await self._run_handler(message, self._handler)

    async def _run_handler(self, message: Message, handler: Handler) -> Any:
        if self._is_async:
            return await handler(message)
        call = partial(contextvars.copy_context().run, handler, message)
        return await self._loop.run_in_executor(self.threads, call)


def _log_failed_turn(turn: AgentTurn, error: Exception) -> None:
    """A handler that fails a turn on purpose has said all; any other error has a traceback."""
    if isinstance(error, Reject | Retry):
        log.warning("the turn for %s failed: %s", turn.message, failure_reason(error))
    else:
        log.warning("the turn for %s failed", turn.message, exc_info=error)
