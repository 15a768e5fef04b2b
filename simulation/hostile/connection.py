"""One WebSocket of a hostile node: it sends anything, and reads only when a test asks it to."""

import contextlib
import time
from types import TracebackType
from typing import Self, TypeVar

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from gatepost.delivery.frames import (
    HelloFrame,
    LinkFrame,
    SubscribeFrame,
    TakenFrame,
    decode_frame,
    encode_frame,
)
from gatepost.links.connections.connection import LINK_PREFIX
from gatepost.room import SharedRoom, SignedRecord
from gatepost.room.lib0 import Lib0Reader
from gatepost.room.sync_protocol import STEP_1, STEP_2, SYNC
from gatepost.room.yjs_update import MAX_UPDATE_BYTES
from simulation.hostile.identity import HostileIdentity

AnyLinkFrame = TypeVar("AnyLinkFrame", bound=LinkFrame)

_TIMEOUT_SECS = 20.0


class HostileConnection:
    """A connection of `node` that its gateway has accepted.

    Messages that nobody reads stay in the socket, so that a gateway feels a peer that does not
    read. Every wait has a deadline: TimeoutError if the gateway says nothing, ConnectionClosed if
    it hung up.
    """

    def __init__(self, node: HostileIdentity, socket: ClientConnection) -> None:
        self.node = node
        self.socket = socket
        self.host: str | None = None
        self._sent_events = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # -- saying anything

    def send_message(self, message: bytes | str) -> None:
        """Any WebSocket message."""
        self.socket.send(message)

    def send_records(self, *records: SignedRecord) -> None:
        for message in self.node.room_messages(*records):
            self.send_message(message)

    def send_frame(self, frame: LinkFrame | bytes) -> None:
        """Any frame of a link, or bytes in place of one."""
        data = frame if isinstance(frame, bytes) else encode_frame(frame)
        self.send_message(LINK_PREFIX + data)

    # -- the link

    def introduce(self) -> HelloFrame:
        """Introduce the node as it is, and wait for the gateway's introduction."""
        self.send_frame(self.node.outbox.hello_frame())
        hello = self.receive_frame(HelloFrame)
        self.host = hello.node
        return hello

    def greet(self) -> SubscribeFrame:
        """Introduce the node, and wait until the gateway reads its outbox over this connection."""
        self.introduce()
        asked = self.receive_frame(SubscribeFrame)
        self._sent_events = max((upto for _, _, upto in asked.positions), default=0)
        return asked

    def subscribe(self, window: int = 1 << 20) -> None:
        """Read the gateway's outbox from its beginning."""
        self.send_frame(SubscribeFrame(self.node.outbox.incarnation, [], window))

    def send_events(self) -> None:
        """Send the new events of the outbox that are for this gateway, or for no gateway."""
        outbox = self.node.outbox
        self.send_frame(outbox.events_frame(self._sent_events, self.host))
        self._sent_events = outbox.head

    def deliver(self, timeout: float = _TIMEOUT_SECS) -> None:
        """Send the new events, and wait until the gateway has stored them."""
        self.send_events()
        while self.receive_frame(TakenFrame, timeout).upto < self._sent_events:
            pass

    # -- reading

    def receive_message(self, timeout: float = _TIMEOUT_SECS) -> bytes:
        message = self.socket.recv(timeout=timeout)
        return message if isinstance(message, bytes) else message.encode()

    def receive_frame(
        self, kind: type[AnyLinkFrame], timeout: float = _TIMEOUT_SECS
    ) -> AnyLinkFrame:
        """The next frame of this kind. Everything before it is dropped."""
        deadline = time.monotonic() + timeout
        while True:
            message = self.receive_message(max(0.0, deadline - time.monotonic()))
            if message[:1] == LINK_PREFIX:
                frame = decode_frame(message[1:])
                if isinstance(frame, kind):
                    return frame

    def read_room(self) -> SharedRoom:
        """Ask for the whole room, and return it as an honest replica would have it."""
        room = SharedRoom(self.node.genesis, epoch=self.node.epoch)
        self.send_message(self.node.step_1_message())
        while True:
            message = self.receive_message()
            if message[:1] != bytes((SYNC,)):
                continue
            reader = Lib0Reader(message[1:])
            step, data = reader.read_uint(), reader.read_bytes(MAX_UPDATE_BYTES)
            if step != STEP_1:
                room.apply_update(data)
            if step == STEP_2:
                return room

    def wait_until_heard(self) -> None:
        """Wait until the gateway has handled all messages sent so far, or has hung up."""
        with contextlib.suppress(ConnectionClosed):
            self.read_room()

    def wait_for_close(self, timeout: float = _TIMEOUT_SECS) -> tuple[int, str]:
        """Read until the gateway hangs up; return its close code and reason."""
        deadline = time.monotonic() + timeout
        try:
            while True:
                self.socket.recv(timeout=max(0.0, deadline - time.monotonic()))
        except ConnectionClosed as closed:
            return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
