"""One live connection between two gateways: the Yjs sync protocol over a message socket.

One task reads, one writes. Outgoing updates, and answers to a peer that asks for the room, are made
only when the socket can take them, so a slow peer costs no memory. Answers are weighed: a peer gets
the room a few times at once, and after that a limited number of bytes per second. Frames of the
link are queued as bytes; a peer that makes us queue more than a limit is cut off.

A gateway that was suspended, with its machine or alone, ends its connections, because messages that
waited in them may have expired and been given up by their senders.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gatepost.errors import DeadlineExceeded, GatepostError, RateLimited
from gatepost.listening.frame_limits import SLICE_SECS, TURNS_OF_OTHERS
from gatepost.room import RoomAwareness, SharedRoom, SyncPeer
from gatepost.room.sync_protocol import SyncRole

# First byte of a message for the link rather than the room. No Yjs message starts with it.
LINK_PREFIX = b"\x70"
_SEND_SECS = 30.0
_MAX_QUEUED_ANSWERS = 8
# A peer may request this many times its largest answer, or this many bytes, at once. Earlier
# answers stop counting at this rate.
_FREE_ANSWERS = 3
_FREE_ANSWER_BYTES = 8 << 20
_ANSWER_BYTES_PER_SEC = 1 << 20
# A link answers requests of its peer only while less than this is queued.
CONGESTED_BYTES = 256 * 1024
_LOOK_SECS = 5.0
# If a room message takes longer, its peer then waits for the same time.
_COSTLY_SECS = 0.01
_DIGEST_SECS = 60.0


class PeerSocket(Protocol):
    """A socket that carries whole messages."""

    async def receive(self) -> bytes | None:
        """Return the next message, or None once the peer has hung up."""

    async def send(self, message: bytes) -> None: ...


class PeerConnection:
    """Call `run` once. The peer has proved to be `node` with `public_key`.

    `on_drained` is called once the queue of a congested connection is short again.
    """

    def __init__(
        self,
        room: SharedRoom,
        awareness: RoomAwareness,
        wire: PeerSocket,
        node: str,
        public_key: bytes,
        role: SyncRole,
        max_queued_bytes: int = 64 << 20,
        still_secs: float = 30.0,
    ) -> None:
        self.node = node
        # Shorter than the time for which a sender waits for its owner's receipt.
        self._still_secs = still_secs
        self.public_key = public_key
        self.role = role
        self.session = ""
        # When the last message came, by the event loop's clock.
        self.opened_at = self.heard_at = asyncio.get_running_loop().time()
        # The last reading of the clock that also runs while the machine sleeps.
        self._awake_at = read_boot_clock()
        self.synced = asyncio.Event()
        self.idle = asyncio.Event()
        self._socket = wire
        self._peer = SyncPeer(room, awareness, node, role)
        self.on_frame: Callable[[bytes], None] | None = None
        self.on_drained: Callable[[], None] = lambda: None
        self._frames: deque[bytes] = deque()
        self._max_queued_bytes = max_queued_bytes
        self.queued_bytes = 0
        self._was_congested = False
        self._slice_secs = 0.0
        self._answers: deque[Iterable[bytes]] = deque([self._peer.first_messages()])
        self._budget = AnswerBudget()
        self._wake = asyncio.Event()
        self._wake.set()
        self._end_error: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsubscribers = (
            room.on_change(lambda _: self._wake_writer()),
            awareness.on_change(lambda *_: self._wake_writer()),
        )

    def send_frame(self, data: bytes) -> None:
        """Queue data for the peer's link, whose credit and requests are bounded."""
        self._frames.append(LINK_PREFIX + data)
        self.queued_bytes += len(data) + 1
        self._was_congested |= self.is_congested
        if self.queued_bytes > self._max_queued_bytes:
            self.end(RateLimited(f"{self.node} asks for more than it takes"))
        self._wake_writer()

    @property
    def is_congested(self) -> bool:
        """True while the send queue is over its limit; defer answers until it drains."""
        return self.queued_bytes >= CONGESTED_BYTES

    def end(self, error: GatepostError) -> None:
        """Make `run` raise `error`."""
        if not self._end_error.done():
            self._end_error.set_exception(error)

    async def run(self) -> None:
        """Run until the peer hangs up; raise the error if this side has to end it."""
        work = [
            asyncio.ensure_future(self._read_messages()),
            asyncio.ensure_future(self._write_messages()),
            asyncio.ensure_future(self._watch_stillness()),
        ]
        try:
            done, _ = await asyncio.wait((*work, self._end_error), return_when="FIRST_COMPLETED")
            for ended in done:
                ended.result()
        finally:
            self._stop_tasks(work)
            await asyncio.gather(*work, return_exceptions=True)

    async def _read_messages(self) -> None:
        while (message := await self._socket.receive()) is not None:
            self.heard_at = asyncio.get_running_loop().time()
            self._check_stillness()
            if message[:1] == LINK_PREFIX and self.on_frame is not None:
                await self._take_frame(message[1:])
                continue
            began = time.perf_counter()
            answer = self._peer.receive_message(message)
            spent = time.perf_counter() - began
            pause = self._peer.charge_cost(spent, self.heard_at)
            if self._peer.synced and not self.synced.is_set():
                self.synced.set()
                self._send_digest()
            if answer:
                self._queue_answer(answer)
            # The socket is not read meanwhile, so an expensive peer waits: after a costly message
            # for as long as that took.
            await asyncio.sleep(max(pause, spent if spent > _COSTLY_SECS else 0.0))

    async def _take_frame(self, data: bytes) -> None:
        assert self.on_frame is not None
        began = time.perf_counter()
        self.on_frame(data)
        self._slice_secs += time.perf_counter() - began
        # Many small frames may wait in the socket: let other tasks run in between.
        if self._slice_secs > SLICE_SECS:
            self._slice_secs = 0.0
            for _ in range(TURNS_OF_OTHERS):
                await asyncio.sleep(0)

    async def _watch_stillness(self) -> None:
        pause = min(_LOOK_SECS, self._still_secs / 4)
        looks_per_digest = round(_DIGEST_SECS / pause)
        for looks in itertools.count(1):
            await asyncio.sleep(pause)
            self._check_stillness()
            self._awake_at = read_boot_clock()
            if looks % looks_per_digest == 0:
                self._send_digest()

    def _send_digest(self) -> None:
        """Let the peer compare its records with ours."""
        if (messages := self._peer.digest_messages()) and not self._answers:
            self._queue_answer(messages)

    def _check_stillness(self) -> None:
        still = read_boot_clock() - self._awake_at
        if still > self._still_secs:
            raise DeadlineExceeded(f"this gateway stood still for {still:.0f} s")

    def _queue_answer(self, answer: Iterable[bytes]) -> None:
        # Reading must go on while the peer does not read, or the two could wait for each other.
        now = asyncio.get_running_loop().time()
        if len(self._answers) >= _MAX_QUEUED_ANSWERS or not self._budget.allows_answer(now):
            raise RateLimited(f"{self.node} asks for more than it takes")
        self._answers.append(answer)
        self._wake_writer()

    async def _write_messages(self) -> None:
        while True:
            if not self._wake.is_set():
                self.idle.set()
            await self._wake.wait()
            self._wake.clear()
            while self._answers:
                self._budget.add_answer(await self._send_all(self._answers.popleft()))
            while self._frames:
                await self._send_frame(self._frames.popleft())
            await self._send_all(self._peer.pending_messages())

    async def _send_all(self, messages: Iterable[bytes]) -> int:
        """Send all messages, and return how many bytes they had."""
        sent = 0
        for message in messages:
            await self._send(message)
            sent += len(message)
        return sent

    async def _send_frame(self, frame: bytes) -> None:
        await self._send(frame)
        self.queued_bytes -= len(frame)
        if self._was_congested and not self.is_congested:
            self._was_congested = False
            self.on_drained()

    async def _send(self, message: bytes) -> None:
        try:
            async with asyncio.timeout(_SEND_SECS):
                await self._socket.send(message)
        except TimeoutError:
            raise DeadlineExceeded(f"{self.node} takes nothing any more") from None

    def _wake_writer(self) -> None:
        self.idle.clear()
        self._wake.set()

    def _stop_tasks(self, work: "Sequence[asyncio.Future[None]]") -> None:
        for task in work:
            task.cancel()
        self._end_error.cancel()
        for end in self._unsubscribers:
            end()
        self._peer.close()


class AnswerBudget:
    """The bytes of answers that a peer may still request."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._largest = 0
        self._looked_at = 0.0

    def allows_answer(self, now: float) -> bool:
        passed, self._looked_at = now - self._looked_at, now
        self._spent = max(0.0, self._spent - passed * _ANSWER_BYTES_PER_SEC)
        return self._spent < max(_FREE_ANSWER_BYTES, _FREE_ANSWERS * self._largest)

    def add_answer(self, size: int) -> None:
        self._spent += size
        self._largest = max(self._largest, size)


def read_boot_clock() -> float:
    """Seconds of a clock that runs while the machine sleeps and cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
