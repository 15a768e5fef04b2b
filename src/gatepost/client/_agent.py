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
from typing import Any, Self, TypeVar

from gatepost.client._client import Client, Wait
from gatepost.client._desk import Desk, State, Turn
from gatepost.client._encoding import encode_reply
from gatepost.client._mailbox import TIMEOUT
from gatepost.client._message import Message
from gatepost.client._reason import reason_of
from gatepost.client._sync import Blocking
from gatepost.errors import (
    GatepostError,
    InvalidRequest,
    StaleLeaseHandle,
    UnknownMessage,
    WrongState,
)
from gatepost.events import check_agent_id
from gatepost.wire import Sent

log = logging.getLogger("gatepost.client")

Handler = Callable[[Message], Any]
H = TypeVar("H", bound=Handler)

# Payloads up to this size are fetched before the turn starts, so that `message.payload` works.
_FETCH_BEFORE = 1024 * 1024
# Yield to the event loop at least this often: handlers that never await would otherwise delay
# acks and heartbeats.
_LONGEST_STRETCH = 0.005


class Agent:
    """Runs a handler on incoming mail: `concurrency` senders at a time, each sender in order.

    The handler's return value is sent back as the reply. If the handler raises, the turn fails and
    the message is delivered again later. Leases are extended while the handler runs. A `standby`
    takes the mail of an agent that lives behind another gateway, if a route names this gateway as
    its fallback.
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
    ) -> None:
        self.name = check_agent_id(name)
        self._standby = standby
        self.client = Client(name, state_dir=state_dir, url=url, token=token)
        self._concurrency = concurrency
        self._credit = max(credit, concurrency)
        self._stop_timeout = stop_timeout
        self._handler: Handler | None = None
        self._is_async = False
        self._threads = ThreadPoolExecutor(concurrency, f"agent-{name}")
        self._desk = Desk()
        self._working: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Future[Any]] = set()
        self._extending: set[asyncio.Task[None]] = set()
        self._beat: asyncio.TimerHandle | None = None
        self._stopping = False
        self._ending: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    def on_message(self, handler: H) -> H:
        """Call `handler`, a function or coroutine function, for every message."""
        called = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(called)
        return handler

    # -- start and stop

    def run(self) -> None:
        """Handle mail until SIGINT or SIGTERM; then finish running turns and return other mail."""
        asyncio.run(self._run())

    async def serve(self) -> None:
        """Handle mail until `end` is called or the task is cancelled."""
        async with self:
            assert self._ending is not None
            await self._ending

    def end(self) -> None:
        """Make `serve` return."""
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)

    async def __aenter__(self) -> Self:
        if self._handler is None:
            raise InvalidRequest(f"agent {self.name} has no handler; use @agent.on_message")
        self._loop = asyncio.get_running_loop()
        self._ending = self._loop.create_future()
        await self.client.__aenter__()
        try:
            await self.client.register(self.name, standby=self._standby)
            await self.client.subscribe(self.name, self._deliver, credit=self._credit)
        except BaseException:
            await self.client.close()
            raise
        log.info("agent %s is ready for mail", self.name)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        await self.serve()

    def _signalled(self) -> None:
        # A second signal ends the process at once.
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)
        log.info("agent %s finishes its turns; press again to exit at once", self.name)
        self.end()

    async def _stop(self) -> None:
        """Take no more mail, finish running turns, and return waiting mail to the gateway."""
        self._stopping = True
        self._desk.drop_all_waiting()
        deadline = self._loop.time() + self._stop_timeout
        await self._end_turns(deadline)
        while self._settling and self._loop.time() < deadline:
            await asyncio.wait(list(self._settling), timeout=deadline - self._loop.time())
        if self._beat is not None:
            self._beat.cancel()
        for task in self._extending:
            task.cancel()
        try:
            await self.client.unsubscribe(self.name, timeout=5.0)
        except GatepostError as error:
            log.warning("unsettled mail is returned only when its lease ends: %s", error.message)
        await self.client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _end_turns(self, deadline: float) -> None:
        if not self._working:
            return
        _, late = await asyncio.wait(self._working, timeout=deadline - self._loop.time())
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
        wait: Wait | None = None,
        timeout: float = TIMEOUT,
        idempotency_key: str | None = None,
        corr_id: str | None = None,
    ) -> Sent:
        """Send a message as this agent to one or several agents."""
        return await self.client.send(
            to,
            payload,
            wait=wait,
            timeout=timeout,
            idempotency_key=idempotency_key,
            corr_id=corr_id,
        )

    async def broadcast(
        self, payload: Any = None, *, wait: Wait | None = None, timeout: float = TIMEOUT
    ) -> Sent:
        """Send a message as this agent to every other agent."""
        return await self.client.broadcast(payload, wait=wait, timeout=timeout)

    async def request(self, to: str, payload: Any = None, *, timeout: float = TIMEOUT) -> Any:
        """Send a message as this agent and return the reply."""
        return await self.client.request(to, payload, timeout=timeout)

    @property
    def blocking(self) -> Blocking:
        """The client's calls in blocking form, for handlers that are plain functions."""
        return Blocking(self.client, self._loop)

    # -- turns

    def _deliver(self, messages: list[Message]) -> None:
        if self._stopping:
            return
        for turn in self._desk.take(messages, self._loop.time()):
            self._settle(turn)
        self._start_turns()
        if self._beat is None and messages:
            self._beat_later(messages[0].lease_secs)

    def _start_turns(self) -> None:
        while len(self._working) < self._concurrency:
            turn = self._desk.next(self._loop.time())
            if turn is None:
                return
            task = self._loop.create_task(self._work(turn))
            self._working.add(task)
            task.add_done_callback(self._worked)

    def _worked(self, task: "asyncio.Task[None]") -> None:
        self._working.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("agent %s failed unexpectedly", self.name, exc_info=error)
            if self._ending is not None and not self._ending.done():
                self._ending.set_exception(error)
        elif not self._stopping:
            self._start_turns()

    async def _work(self, first: Turn) -> None:
        """Take one turn after the other until none is ready."""
        turn: Turn | None = first
        began = self._loop.time()
        while turn is not None:
            await self._take_turn(turn)
            if self._loop.time() - began > _LONGEST_STRETCH:
                await asyncio.sleep(0)
                began = self._loop.time()
            turn = None if self._stopping else self._desk.next(self._loop.time())

    async def _take_turn(self, turn: Turn) -> None:
        try:
            answer = await self._handle(turn.message)
            # A reply is never answered, so two agents cannot reply to each other forever.
            quiet = answer is None or turn.message.kind == "reply"
            reply = None if quiet else encode_reply(answer)
        except asyncio.CancelledError:
            self._desk.abandoned(turn)
            raise
        except Exception as error:
            log.warning("the turn for %s failed", turn.message, exc_info=error)
            self._desk.failed(turn, reason_of(error))
        else:
            self._desk.done(turn, reply)
        self._settle(turn)

    async def _handle(self, message: Message) -> Any:
        if 0 < message.blob_size <= _FETCH_BEFORE:
            with contextlib.suppress(InvalidRequest):
                await message.load()
        assert self._handler is not None
        if self._is_async:
            return await self._handler(message)
        call = partial(contextvars.copy_context().run, self._handler, message)
        return await self._loop.run_in_executor(self._threads, call)

    # -- settling

    def _settle(self, turn: Turn) -> None:
        """Ack or nack the turn; `_handle_settled` gets the gateway's answer."""
        if turn.settling:
            return
        turn.settling = True
        receipt = turn.receipt
        if turn.state is State.DONE:
            future = self.client.ack(self.name, receipt, reply=turn.reply)
        else:
            future = self.client.nack(self.name, receipt, reason=turn.reason)
        self._settling.add(future)
        future.add_done_callback(partial(self._settled, turn, receipt))

    def _settled(self, turn: Turn, receipt: str, future: "asyncio.Future[Any]") -> None:
        self._settling.discard(future)
        turn.settling = False
        error = None if future.cancelled() else future.exception()
        if error is None:
            self._desk.forget(turn)
        elif not isinstance(error, StaleLeaseHandle | WrongState | UnknownMessage):
            # The turn has ended, so it is settled again at the next heartbeat or when the message
            # is delivered again.
            log.warning("the end of the turn for %s is not confirmed yet: %s", turn.message, error)
        elif turn.receipt != receipt:
            self._settle(turn)
        else:
            log.warning(
                "the turn for %s ended too late and does not count: %s", turn.message, error
            )
            self._desk.forget(turn)

    # -- heartbeats

    def _beat_later(self, lease_secs: float) -> None:
        self._beat = self._loop.call_later(lease_secs / 3, self._heartbeat, lease_secs)

    def _heartbeat(self, lease_secs: float) -> None:
        """Extend leases that were not just renewed; settle again turns that ended unconfirmed."""
        self._beat = None
        if not len(self._desk):
            return
        now = self._loop.time()
        for turn in self._desk:
            if turn.ended:
                self._settle(turn)
        due = [t for t in self._desk if t.lease_until - now < lease_secs * 0.75]
        if due:
            extending = self._loop.create_task(self._extend(due, lease_secs))
            self._extending.add(extending)
            extending.add_done_callback(self._extending.discard)
        self._beat_later(lease_secs)

    async def _extend(self, turns: list[Turn], lease_secs: float) -> None:
        until = self._loop.time() + lease_secs
        receipts = [turn.receipt for turn in turns]
        try:
            stale = await self.client.extend(self.name, receipts, timeout=lease_secs)
        except GatepostError as error:
            log.warning("leases of agent %s could not be extended: %s", self.name, error)
        except Exception:
            log.exception("a heartbeat of agent %s failed unexpectedly", self.name)
        else:
            for turn in turns:
                turn.lease_until = max(turn.lease_until, until)
            self._desk.lost(stale)
