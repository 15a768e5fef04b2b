"""A WebSocket that reconnects with backoff until it is closed."""

import asyncio
import logging
from collections.abc import Callable

from gatepost.client._frame_socket import FrameSocket
from gatepost.clock import Clock
from gatepost.connect.gateway_endpoint import LocateGateway, Target
from gatepost.errors import ExpiredToken, GatepostError, Unavailable

log = logging.getLogger("gatepost.client")

_PING_EVERY = 15.0
_CONNECT_WITHIN = 10.0
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 5.0
_LASTING_SECS = 2.0


class ReconnectingSocket:
    """`current` is the open socket; if it is None, `problem` says why.

    `on_open` is called after each connect, `on_lost` with the socket when a connection ends,
    `on_writable` when a socket that was full takes frames again.
    """

    def __init__(
        self,
        locate: LocateGateway,
        clock: Clock,
        *,
        on_open: Callable[[], None],
        on_frame: Callable[[bytes], None],
        on_lost: Callable[[FrameSocket], None],
        on_writable: Callable[[], None],
    ) -> None:
        self._locate = locate
        self._clock = clock
        self._on_open = on_open
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_writable = on_writable
        self._loop: asyncio.AbstractEventLoop
        self._reconnecting: asyncio.Task[None] | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._opened_at = 0.0
        self._delay = _FIRST_DELAY
        self._closed = False
        self.current: FrameSocket | None = None
        self.problem = ""

    async def open(self) -> None:
        """Connect or raise: only a connection that was open once is opened again."""
        self._loop = asyncio.get_running_loop()
        await self._open_socket()

    async def open_when_reachable(self) -> None:
        """Connect; wait for a gateway that does not run yet. Other errors are raised."""
        self._loop = asyncio.get_running_loop()
        while True:
            try:
                await self._open_socket()
            except Unavailable as error:
                self._report_problem(f"waiting for the gateway: {error.message}")
                await self._pause()
            else:
                break
        if self.problem:
            log.info("connected to the gateway")

    async def close(self) -> None:
        self._closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if self.current is not None:
            await self.current.close()

    def drop_connection(self, reason: str) -> None:
        """Abort the current connection and reconnect."""
        if self.current is not None:
            self.current.abort(reason)

    async def _open_socket(self) -> None:
        target = await asyncio.to_thread(self._locate)
        try:
            await self._open_socket_to(target)
        except ExpiredToken:
            if target.expire_token is None:
                raise
            # Because the clocks differ, the token has expired at the gateway but not here.
            await asyncio.to_thread(target.expire_token)
            await self._open_socket_to(await asyncio.to_thread(self._locate))

    async def _open_socket_to(self, target: Target) -> None:
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                self.current = await FrameSocket.open(
                    target, self._on_frame, self._handle_lost, self._on_writable
                )
        except TimeoutError:
            raise Unavailable(f"the gateway at {target.url} does not answer") from None
        self._opened_at = self._loop.time()
        self._ping_timer = self._loop.call_later(_PING_EVERY, self._ping_or_drop, self.current)
        self._on_open()

    def _handle_lost(self, reason: str) -> None:
        socket, self.current = self.current, None
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if self._closed:
            return
        self.problem = reason
        log.warning("%s; connecting again", reason)
        if socket is not None:
            self._on_lost(socket)
        self._reconnecting = self._loop.create_task(self._reconnect_until_open())

    async def _reconnect_until_open(self) -> None:
        # The delay resets only after a connection that lasted.
        if self._loop.time() - self._opened_at > _LASTING_SECS:
            self._delay = _FIRST_DELAY
        while True:
            await self._pause()
            try:
                await self._open_socket()
            except GatepostError as error:
                self._report_problem(f"not connected yet: {error.message}")
            except Exception as error:
                self.problem = str(error)
                log.exception("connecting failed unexpectedly and will be tried again")
            else:
                log.info("connected again")
                return

    async def _pause(self) -> None:
        jitter = 0.5 + self._clock.random(1)[0] / 256
        await asyncio.sleep(self._delay * jitter)
        self._delay = min(self._delay * 2, _LONGEST_DELAY)

    def _report_problem(self, problem: str) -> None:
        """Log a problem once, even if it occurs repeatedly."""
        if problem != self.problem:
            log.warning("%s", problem)
        self.problem = problem

    def _ping_or_drop(self, socket: FrameSocket) -> None:
        """Drop a connection on which nothing, not even a pong, arrived since the last ping."""
        if socket is not self.current:
            return
        if not socket.has_heard:
            self.drop_connection("the gateway has gone silent")
            return
        socket.ping()
        self._ping_timer = self._loop.call_later(_PING_EVERY, self._ping_or_drop, socket)
