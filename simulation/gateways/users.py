"""The users of a simulated mesh: clients that send and try again, and agents that take mail.

They note the answers they get, for that is all a client ever knows.
"""

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from gatepost.delivery.blob_records import keep_uploaded_blob
from gatepost.delivery.send_request import fingerprint_send
from gatepost.errors import GatepostError, StorageFailed, UnknownTask, WrongState
from gatepost.journal import Tx
from gatepost.mailbox import Settlement
from gatepost.mailbox.dispatcher import Waiter
from gatepost.wire.operations import EventInfo, LeasedMessage, NewSend, Sent
from gatepost.wire.tasks import TaskReport
from simulation.gateways.blob_files import SimulatedBlobFiles
from simulation.gateways.gateway import SimulatedGateway
from simulation.history import ObservedSend, ObservedTurn

_RECONNECT_MS = 300
# As small as the pieces in which blobs are fetched here; a real reply travels so from 64 KiB on.
_LARGE_REPLY_BYTES = (1, 3_000)
_decode_info = msgspec.json.Decoder(EventInfo).decode
# The answer to a task that was accepted.
_ACCEPTED = Settlement(1)


class AgentManners(Struct, frozen=True):
    """How long an agent works on a message, and how often it replies, nacks or forgets it.

    Of its replies, `large_reply` travel as blobs, and it does not let `reject` of its nacks be
    retried. An agent with several hands works on as many unordered messages at once, and asks for
    its mail without order.
    """

    think_ms: tuple[int, int] = (1, 150)
    reply: float = 0.3
    large_reply: float = 0.2
    nack: float = 0.03
    reject: float = 0.1
    forget: float = 0.01
    credit: int = 4
    hands: int = 1


class SimulatedClient:
    """Sends one message, again under the same idempotency key until it gets an answer."""

    def __init__(
        self,
        gateway: SimulatedGateway,
        new: NewSend,
        seen: ObservedSend,
        files: SimulatedBlobFiles | None = None,
    ) -> None:
        self._gateway = gateway
        self._new = new
        # Taken of the payload itself: every upload of it has another digest.
        self._fingerprint = fingerprint_send(new)
        self._files = files
        self.seen = seen
        self._patience = 40

    def send(self) -> None:
        if self._files is None:
            self._submit(self._new)
        else:
            self._upload(self._files)

    def _upload(self, files: SimulatedBlobFiles) -> None:
        """Store the payload as a blob, as the gateway does; then send a message that names it."""
        if not self._gateway.up:
            self._try_again()
            return
        try:
            blob, key = files.write_blob(bytes(self._new.payload))  # type: ignore[arg-type]
        except GatepostError:
            self._try_again()
            return
        new = replace(self._new, payload=UNSET, payload_ref=blob.digest)

        def stored(value: Any, error: GatepostError | None) -> None:
            if error is None:
                self._submit(new)
            else:
                self._try_again()

        self._gateway.submit(lambda tx: keep_uploaded_blob(tx, blob, key), stored, self._try_again)

    def _submit(self, new: NewSend) -> None:
        self._gateway.submit(
            lambda tx: self._gateway.coordinator.send(tx, new, self._fingerprint),
            self._note_answer,
            self._try_again,
        )

    def _note_answer(self, sent: Sent, error: GatepostError | None) -> None:
        if error is None:
            self.seen.event_id, self.seen.result = sent.event_id, "acknowledged"
        elif isinstance(error, StorageFailed):
            self._try_again()
        else:
            self.seen.result = f"refused: {error.code}"

    def _try_again(self) -> None:
        self._patience -= 1
        if self._patience:
            self._gateway.loop.call_after(_RECONNECT_MS, self.send)


class SimulatedAgent:
    """One agent behind one gateway; it takes mail and ends its turns one after another."""

    def __init__(
        self,
        gateway: SimulatedGateway,
        agent: str,
        manners: AgentManners,
        random: Random,
        note: Callable[[ObservedTurn], None],
        files: SimulatedBlobFiles,
        standby: bool = False,
    ) -> None:
        self._gateway = gateway
        self._files = files
        self.agent = agent
        self.manners = manners
        self.paused = False
        self.standby = standby
        # A dismissed agent works off the mail it has, and registers no more.
        self.dismissed = False
        self._random = random
        self._note = note
        # Called with the id of every task that the agent accepted.
        self.on_accepted: Callable[[str], None] = lambda id: None
        self._connected = False
        self._todo: list[LeasedMessage] = []
        # The turns under way.
        self._taken: list[LeasedMessage] = []
        self._shift = 0
        gateway.on_down.append(self._drop_work)
        gateway.on_up.append(self._connect)
        self._connect()

    # -- taking

    def _connect(self) -> None:
        if self._gateway.up and not self._connected:
            self._connected = True
            self._gateway.submit(self._open_waiter, self._note_waiting)

    def _open_waiter(self, tx: Tx) -> list[LeasedMessage]:
        if not self.dismissed:
            self._gateway.agents.register(tx, self.agent, standby=self.standby)
        dispatcher = self._gateway.dispatcher
        if self.manners.hands > 1:
            dispatcher.set_order(tx, self.agent, "none")
        waiter = Waiter(
            dispatcher.mailbox_ref(tx, self.agent),
            f"consumer-{self.agent}",
            self.manners.credit,
            self._take_messages,
        )
        return dispatcher.add_waiter(tx, waiter)

    def _note_waiting(self, held: list[LeasedMessage] | None, error: GatepostError | None) -> None:
        if error is None:
            self._take_messages(held or [])
        else:
            self._connected = False
            self._gateway.loop.call_after(_RECONNECT_MS, self._connect)

    def _drop_work(self) -> None:
        self._connected = False
        self._shift += 1
        self._todo.clear()
        self._taken.clear()

    def _take_messages(self, messages: list[LeasedMessage]) -> None:
        self._todo += messages
        self._begin_next()

    # -- working

    def _begin_next(self) -> None:
        while not self.paused and (message := self._next_message()) is not None:
            self._todo.remove(message)
            self._taken.append(message)
            turn = self._note_turn(message)
            think = self._random.randint(*self.manners.think_ms)
            self._gateway.loop.call_after(
                think, partial(self._end_turn, message, turn, self._shift)
            )

    def _next_message(self) -> LeasedMessage | None:
        """The next message that may be taken: ordered ones one after the other."""
        if len(self._taken) >= self.manners.hands:
            return None
        in_order = any(message.order == "fifo" for message in self._taken)
        free = (each for each in self._todo if each.order == "none" or not in_order)
        return next(free, None)

    def resume_work(self) -> None:
        self.paused = False
        self._begin_next()

    def _note_turn(self, message: LeasedMessage) -> ObservedTurn:
        info = _decode_info(message.event)  # type: ignore[arg-type]
        turn = ObservedTurn(
            node=self._gateway.id,
            agent=self.agent,
            sender=message.from_,
            source=info.source_node or self._gateway.id,
            event_id=info.event_id,
            receipt=message.receipt,
            begun_at=self._gateway.loop.now,
            attempt=message.attempt,
            kind=info.kind,
            ref_event_id=info.ref_event_id or "",
            not_before=info.not_before or 0,
            clock=self._gateway.clock.highest,
            payload=sha256(self._read_payload(message, info)).hexdigest(),
        )
        self._note(turn)
        return turn

    def _read_payload(self, message: LeasedMessage, info: EventInfo) -> bytes:
        """The payload as the agent gets it; nothing if its blob cannot be read."""
        if info.payload_ref is None:
            return bytes(message.payload)
        rows = self._gateway.query("SELECT key FROM blob WHERE digest = ?", info.payload_ref)
        try:
            return b"".join(self._files.store.read_payload(info.payload_ref, rows[0][0]))
        except (GatepostError, IndexError):
            return b""

    def _end_turn(self, message: LeasedMessage, turn: ObservedTurn, shift: int) -> None:
        if shift != self._shift:
            return  # The gateway went down meanwhile, and this turn with it.
        luck = self._random.random()
        if luck < self.manners.forget:
            self._lay_aside(message)
        elif luck < self.manners.forget + self.manners.nack:
            self._settle_turn(message, partial(self._nack_message, message), turn, "nacked")
        elif turn.kind == "task_create":
            accept = partial(self._accept_task, message, turn.event_id)
            self._settle_turn(message, accept, turn, "ok")
        elif turn.kind == "message" and self._random.random() < self.manners.reply:
            self._end_with_reply(message, turn)
        else:
            self._settle_turn(message, partial(self._ack_message, message, {}, {}), turn, "ok")

    def _end_with_reply(self, message: LeasedMessage, turn: ObservedTurn) -> None:
        """End a turn with a reply, inline or as a blob that is stored before."""
        is_large = self._random.random() < self.manners.large_reply
        size = self._random.randint(*_LARGE_REPLY_BYTES) if is_large else 0
        filler = b',"x":"' + b"x" * size + b'"' if is_large else b""
        payload = b'{"re":"' + turn.event_id.encode() + b'"' + filler + b"}"
        turn.reply = sha256(payload).hexdigest()
        if is_large:
            self._upload_reply(message, turn, payload)
        else:
            replies = {message.receipt: Raw(payload)}
            self._settle_turn(message, partial(self._ack_message, message, replies, {}), turn, "ok")

    def _upload_reply(self, message: LeasedMessage, turn: ObservedTurn, payload: bytes) -> None:
        nack = partial(self._nack_message, message)
        try:
            blob, key = self._files.write_blob(payload)
        except GatepostError:
            self._settle_turn(message, nack, turn, "nacked")
            return
        refs = {message.receipt: blob.digest}

        def stored(value: Any, error: GatepostError | None) -> None:
            ack = partial(self._ack_message, message, {}, refs)
            self._settle_turn(message, nack if error else ack, turn, "nacked" if error else "ok")

        self._gateway.submit(lambda tx: keep_uploaded_blob(tx, blob, key), stored)

    def _ack_message(
        self, message: LeasedMessage, replies: dict[str, Raw], refs: dict[str, str], tx: Tx
    ) -> Settlement:
        ack = self._gateway.coordinator.ack
        return ack(tx, self.agent, [message.receipt], [], replies, refs)

    def _accept_task(self, message: LeasedMessage, id: str, tx: Tx) -> Settlement:
        """Accept a task, which settles its mail; mail with a task that has ended is just acked."""
        report = TaskReport(id, self.agent, "accept", message.receipt, eta_secs=5.0)
        mark = tx.begin_operation()
        try:
            self._gateway.hub.engine.reports.apply_reports(tx, [report])
        except (WrongState, UnknownTask):
            tx.undo_operation(mark)
            return self._ack_message(message, {}, {}, tx)
        tx.keep_operation()
        return _ACCEPTED

    def _nack_message(self, message: LeasedMessage, tx: Tx) -> Settlement:
        nack, retry = self._gateway.coordinator.nack, self._random.random() >= self.manners.reject
        return nack(tx, self.agent, [message.receipt], [], "simulated", retry=retry)

    def _settle_turn(
        self,
        message: LeasedMessage,
        operation: Callable[[Tx], Any],
        turn: ObservedTurn,
        wanted: str,
    ) -> None:
        def told(result: Settlement | None, error: GatepostError | None) -> None:
            turn.ended_at = self._gateway.loop.now
            if error is not None or result is None:
                turn.result = "failed"
            else:
                turn.result = wanted if result.settled else "stale"
            if result is _ACCEPTED:
                self.on_accepted(turn.event_id)
            self._lay_aside(message)

        self._gateway.submit(operation, told)

    def _lay_aside(self, message: LeasedMessage) -> None:
        if message in self._taken:
            self._taken.remove(message)
        self._begin_next()
