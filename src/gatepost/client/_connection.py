"""A client's connection: operations and subscriptions over a WebSocket that is reopened."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from gatepost.client._frame_socket import FrameSocket
from gatepost.client._operation_queue import OperationQueue
from gatepost.client._operations import Future, PendingOperation, UnslottedOperation
from gatepost.client._reconnecting_socket import ReconnectingSocket
from gatepost.clock import Clock
from gatepost.connect.gateway_endpoint import LocateGateway
from gatepost.errors import InvalidRequest
from gatepost.wire.operations import AnyAnswer, Deliver, LeasedMessage, Subscribe, Unsubscribe


class ClientSubscription:
    """`subscribing` and `unsubscribing` are unanswered operations of the current connection."""

    def __init__(
        self,
        mailbox: str,
        credit: int,
        consumer: str,
        deliver: Callable[[list[LeasedMessage]], None],
        resumed: Callable[[], None] | None,
    ) -> None:
        self.mailbox = mailbox
        self.credit = credit
        self.consumer = consumer
        self.deliver = deliver
        self.resumed = resumed
        self.subscribing: PendingOperation | None = None
        self.unsubscribing: PendingOperation | None = None

    def subscribe_op(self) -> Subscribe:
        return Subscribe(mailbox=self.mailbox, credit=self.credit, consumer=self.consumer)

    def unsubscribe_op(self) -> Unsubscribe:
        return Unsubscribe(mailbox=self.mailbox)

    def pending_operations(self) -> list[PendingOperation]:
        return [each for each in (self.subscribing, self.unsubscribing) if each is not None]


log = logging.getLogger("gatepost.client")

_RESUBSCRIBE_SECS = 10.0

_decoder = msgspec.json.Decoder(AnyAnswer | list[AnyAnswer])


class ClientConnection:
    """Not thread-safe: use it only on the event loop that opened it."""

    def __init__(
        self, locate: LocateGateway, clock: Clock, *, max_outstanding: int = 10_000
    ) -> None:
        self._socket = ReconnectingSocket(
            locate,
            clock,
            on_open=self._resume_operations,
            on_frame=self._receive_frame,
            on_lost=self._handle_lost_socket,
            on_writable=self._handle_writable,
        )
        self.operations = OperationQueue(self._socket, max_outstanding)
        self._loop: asyncio.AbstractEventLoop
        self._subscriptions: dict[str, ClientSubscription] = {}
        self._closed = False

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.operations.open()
        await self._socket.open()

    async def open_when_reachable(self) -> None:
        """Like `open`, but wait for a gateway that does not run yet."""
        self._loop = asyncio.get_running_loop()
        self.operations.open()
        await self._socket.open_when_reachable()

    async def close(self) -> None:
        self._closed = True
        self.operations.refuse_operations()
        await self._socket.close()
        self.operations.fail_unanswered()

    # -- subscriptions

    async def subscribe(
        self,
        mailbox: str,
        deliver: Callable[[list[LeasedMessage]], None],
        *,
        credit: int,
        consumer: str,
        deadline: float,
        resumed: Callable[[], None] | None = None,
    ) -> None:
        """Call `deliver` with incoming mail, and `resumed` after each reconnect."""
        if mailbox in self._subscriptions:
            raise InvalidRequest(f"this client already listens to {mailbox}")
        listening = ClientSubscription(mailbox, credit, consumer, deliver, resumed)
        self._subscriptions[mailbox] = listening
        try:
            listening.subscribing = self.operations.submit_unslotted(
                listening.subscribe_op(), deadline
            )
            await listening.subscribing.futures[0]
        except BaseException:
            self._subscriptions.pop(mailbox, None)
            raise

    async def unsubscribe(self, mailbox: str, deadline: float) -> None:
        """Stop listening; the gateway takes back unsettled mail without counting an attempt."""
        listening = self._subscriptions.get(mailbox)
        if listening is None:
            return
        listening.unsubscribing = self.operations.submit_unslotted(
            listening.unsubscribe_op(), deadline
        )
        try:
            await listening.unsubscribing.futures[0]
        finally:
            self._subscriptions.pop(mailbox, None)

    # -- incoming

    def _receive_frame(self, frame: bytes) -> None:
        try:
            answers = _decoder.decode(frame)
        except msgspec.DecodeError as error:
            self._socket.drop_connection(
                f"the gateway sent a frame this client cannot read: {error}"
            )
            return
        for answer in answers if isinstance(answers, list) else (answers,):
            if type(answer) is Deliver:
                self._deliver_mail(answer)
            else:
                self.operations.handle_answer(answer)

    def _deliver_mail(self, delivery: Deliver) -> None:
        listening = self._subscriptions.get(delivery.mailbox)
        if listening is None:
            return
        try:
            listening.deliver(delivery.messages)
        except Exception:
            log.exception("delivering mail of %s failed", delivery.mailbox)

    # -- connections that come and go

    def _resume_operations(self) -> None:
        """On a new connection, send unanswered operations again, then subscribe again.

        In this order the gateway knows of every settled message before it delivers again the
        messages that this consumer still holds.
        """
        # Renewed below: these belong to the lost connection.
        subscribing = [
            pending
            for each in self._subscriptions.values()
            for pending in each.pending_operations()
        ]
        self.operations.resend_unanswered(except_for=subscribing)
        for listening in self._subscriptions.values():
            self._renew_subscription(listening)

    def _renew_subscription(self, listening: ClientSubscription) -> None:
        if listening.subscribing is not None and listening.subscribing.has_waiters():
            self.operations.queue_operation(listening.subscribing)
        else:
            op, future = listening.subscribe_op(), self._loop.create_future()
            listening.subscribing = UnslottedOperation(
                op, future, self._loop.time() + _RESUBSCRIBE_SECS
            )
            self.operations.queue_operation(listening.subscribing)
            future.add_done_callback(partial(self._handle_renewed, listening))
        if listening.unsubscribing is not None:
            self.operations.queue_operation(listening.unsubscribing)

    def _handle_renewed(self, listening: ClientSubscription, future: Future) -> None:
        error = future.exception()
        if error is not None and not self._closed:
            self._socket.drop_connection(f"cannot subscribe again to {listening.mailbox}: {error}")
        elif error is None and listening.resumed is not None:
            listening.resumed()

    def _handle_lost_socket(self, socket: FrameSocket) -> None:
        self.operations.adapt_to_lost_socket(socket)

    def _handle_writable(self) -> None:
        self.operations.flush_queue()
