"""A WebSocket that reconnects with backoff until it is closed."""

import asyncio
import logging
from collections.abc import Callable

from gatepost.client._discover import Locate
from gatepost.client._socket import FrameSocket
from gatepost.clock import Clock
from gatepost.errors import GatepostError, Unavailable

log = logging.getLogger("gatepost.client")

_PING_EVERY = 15.0
_CONNECT_WITHIN = 10.0
_FIRST_DELAY, _LONGEST_DELAY = 0.05, 5.0
_LASTING = 2.0


class Link:
    """`current` is the open socket or None; `problem` says why there is none.

    `on_open` is called after each connect, `on_lost` with the socket when a connection ends,
    `on_writable` when a socket that was full takes frames again.
    """

    def __init__(
        self,
        locate: Locate,
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
        self._on_room = on_writable
        self._loop: asyncio.AbstractEventLoop
        self._repair: asyncio.Task[None] | None = None
        self._pinger: asyncio.TimerHandle | None = None
        self._opened_at = 0.0
        self._delay = _FIRST_DELAY
        self._closed = False
        self.socket: FrameSocket | None = None
        self.problem = ""

    async def open(self) -> None:
        """Connect or raise: only a connection that was open once is opened again."""
        self._loop = asyncio.get_running_loop()
        await self._connect()

    async def close(self) -> None:
        self._closed = True
        if self._repair is not None:
            self._repair.cancel()
            await asyncio.wait([self._repair])
        if self._pinger is not None:
            self._pinger.cancel()
        if self.socket is not None:
            await self.socket.close()

    def drop(self, reason: str) -> None:
        """Abort the current connection and reconnect."""
        if self.socket is not None:
            self.socket.abort(reason)

    async def _connect(self) -> None:
        target = self._locate()
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                self.socket = await FrameSocket.open(
                    target, self._on_frame, self._lost, self._on_room
                )
        except TimeoutError:
            raise Unavailable(f"the gateway at {target.url} does not answer") from None
        self._opened_at = self._loop.time()
        self._pinger = self._loop.call_later(_PING_EVERY, self._ping, self.socket)
        self._on_open()

    def _lost(self, reason: str) -> None:
        socket, self.socket = self.socket, None
        if self._pinger is not None:
            self._pinger.cancel()
        if self._closed:
            return
        self.problem = reason
        log.warning("%s; connecting again", reason)
        if socket is not None:
            self._on_lost(socket)
        self._repair = self._loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        # The delay resets only after a connection that lasted.
        if self._loop.time() - self._opened_at > _LASTING:
            self._delay = _FIRST_DELAY
        while True:
            jitter = 0.5 + self._clock.random(1)[0] / 256
            await asyncio.sleep(self._delay * jitter)
            self._delay = min(self._delay * 2, _LONGEST_DELAY)
            try:
                await self._connect()
            except GatepostError as error:
                self.problem = error.message
                log.warning("not connected yet: %s", error.message)
            except Exception as error:
                self.problem = str(error)
                log.exception("connecting failed unexpectedly and will be tried again")
            else:
                log.info("connected again")
                return

    def _ping(self, socket: FrameSocket) -> None:
        """Drop a connection on which nothing, not even a pong, arrived since the last ping."""
        if socket is not self.socket:
            return
        if not socket.heard:
            self.drop("the gateway has gone silent")
            return
        socket.ping()
        self._pinger = self._loop.call_later(_PING_EVERY, self._ping, socket)
