"""One live connection between two gateways: the Yjs sync protocol over a message socket.

One task reads, one writes. Outgoing updates are computed only when the socket can take them, so a
slow peer costs no memory. Answers queued for a peer that does not read are bounded.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from gatepost.errors import DeadlineExceeded, GatepostError, RateLimited
from gatepost.room import RoomAwareness, SharedRoom, SyncPeer
from gatepost.room.sync_protocol import SyncRole

# First byte of a message for the link rather than the room. No Yjs message starts with it.
PIPE = b"\x70"
_SEND_SECS = 30.0
_MAX_ANSWERS = 8


class Wire(Protocol):
    """A socket that carries whole messages."""

    async def receive(self) -> bytes | None:
        """Return the next message, or None once the peer has hung up."""

    async def send(self, message: bytes) -> None: ...


class Connection:
    """Call `run` once. The peer has proved to be `node` with `public_key`."""

    def __init__(
        self,
        room: SharedRoom,
        awareness: RoomAwareness,
        wire: Wire,
        node: str,
        public_key: bytes,
        role: SyncRole,
    ) -> None:
        self.node = node
        self.public_key = public_key
        self.role = role
        self.session = ""
        # When the last message came, by the event loop's clock.
        self.heard = asyncio.get_running_loop().time()
        self.synced = asyncio.Event()
        self.idle = asyncio.Event()
        self._wire = wire
        self._peer = SyncPeer(room, awareness, node, role)
        self.on_frame: Callable[[bytes], None] | None = None
        self._frames: deque[bytes] = deque()
        self._answers: deque[list[bytes]] = deque([self._peer.first_messages()])
        self._wake = asyncio.Event()
        self._wake.set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listening = (
            room.on_change(lambda _: self._stir()),
            awareness.on_change(lambda *_: self._stir()),
        )

    def send_frame(self, data: bytes) -> None:
        """Queue data for the peer's link. The link's credit bounds how much is queued."""
        self._frames.append(PIPE + data)
        self._stir()

    def end(self, error: GatepostError) -> None:
        """Make `run` raise `error`."""
        if not self._ended.done():
            self._ended.set_exception(error)

    async def run(self) -> None:
        """Run until the peer hangs up; raise the error if this side has to end it."""
        work = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write())]
        try:
            done, _ = await asyncio.wait((*work, self._ended), return_when="FIRST_COMPLETED")
            for ended in done:
                ended.result()
        finally:
            self._close(work)
            await asyncio.gather(*work, return_exceptions=True)

    async def _read(self) -> None:
        while (message := await self._wire.receive()) is not None:
            self.heard = asyncio.get_running_loop().time()
            if message[:1] == PIPE and self.on_frame is not None:
                self.on_frame(message[1:])
                continue
            answer = self._peer.receive_message(message)
            if self._peer.synced:
                self.synced.set()
            if answer:
                self._keep(answer)

    def _keep(self, answer: list[bytes]) -> None:
        # Reading must go on while the peer does not read, or the two could wait for each other.
        if len(self._answers) >= _MAX_ANSWERS:
            raise RateLimited("this peer asks for more than it takes")
        self._answers.append(answer)
        self._stir()

    async def _write(self) -> None:
        while True:
            if not self._wake.is_set():
                self.idle.set()
            await self._wake.wait()
            self._wake.clear()
            while self._answers:
                await self._send(self._answers.popleft())
            while self._frames:
                await self._send([self._frames.popleft()])
            await self._send(self._peer.pending_messages())

    async def _send(self, messages: list[bytes]) -> None:
        for message in messages:
            try:
                async with asyncio.timeout(_SEND_SECS):
                    await self._wire.send(message)
            except TimeoutError:
                raise DeadlineExceeded(f"{self.node} takes nothing any more") from None

    def _stir(self) -> None:
        self.idle.clear()
        self._wake.set()

    def _close(self, work: "Sequence[asyncio.Future[None]]") -> None:
        for task in work:
            task.cancel()
        self._ended.cancel()
        for end in self._listening:
            end()
        self._peer.close()
