"""The turns an agent holds: waiting, running, and ended but not yet confirmed.

Messages of one sender are handled one at a time, in order. A message that is delivered again while
it is held only gets its new lease handle; its turn is not taken twice. No I/O and no clock: `now`
is passed in.
"""

from collections import deque
from collections.abc import Iterator
from enum import Enum

from msgspec import Raw

from gatepost.client._message import Message


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    # No longer held by this agent.
    GONE = "gone"


class Turn:
    """One message and the state of its turn. `settling`: its ack or nack is unanswered."""

    __slots__ = ("lease_until", "message", "reason", "receipt", "reply", "settling", "state")

    def __init__(self, message: Message, now: float) -> None:
        self.message = message
        self.receipt = message.receipt
        self.lease_until = now + message.lease_secs
        self.state = State.WAITING
        self.reply: Raw | None = None
        self.reason = ""
        self.settling = False

    @property
    def ended(self) -> bool:
        return self.state in (State.DONE, State.FAILED)

    def renew(self, message: Message, now: float) -> None:
        self.receipt = message.receipt
        self.lease_until = now + message.lease_secs


class Desk:
    """Queues the turns by sender and decides which one starts next."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._queues: dict[str, deque[Turn]] = {}
        self._ready: deque[str] = deque()
        self._running: set[str] = set()

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        """Oldest first, so the turns of each sender are in order."""
        return iter(list(self._turns.values()))

    def take(self, messages: list[Message], now: float) -> list[Turn]:
        """Add delivered messages; returns turns that have ended and must be settled again."""
        ended: list[Turn] = []
        # When a message is nacked, the gateway takes back the messages behind it.
        taken_back: set[str] = set()
        for message in messages:
            turn = self._turns.get(message.msg_id)
            if message.from_ in taken_back:
                continue
            if turn is None or (turn.state is State.FAILED and turn.receipt != message.receipt):
                self._add(Turn(message, now))
                continue
            turn.renew(message, now)
            if turn.ended:
                ended.append(turn)
            if turn.state is State.FAILED:
                taken_back.add(message.from_)
        return ended

    def next(self, now: float) -> Turn | None:
        """Start the next turn that is ready; None if there is none."""
        while self._ready:
            sender = self._ready.popleft()
            turn = self._queues[sender].popleft()
            if turn.lease_until > now:
                turn.state = State.RUNNING
                self._running.add(sender)
                return turn
            # Its lease has ended: another consumer may hold it now, or it is delivered here again.
            self.forget(turn)
            self._make_ready(sender)
        return None

    def done(self, turn: Turn, reply: Raw | None) -> None:
        turn.reply = reply
        self._end(turn, State.DONE)

    def failed(self, turn: Turn, reason: str) -> None:
        turn.reason = reason
        self._drop_waiting(turn.message.from_)
        self._end(turn, State.FAILED)

    def abandoned(self, turn: Turn) -> None:
        """Drop a cancelled turn; its message is returned without counting an attempt."""
        self._end(turn, State.GONE)
        self.forget(turn)

    def forget(self, turn: Turn) -> None:
        turn.state = State.GONE
        if self._turns.get(turn.message.msg_id) is turn:
            del self._turns[turn.message.msg_id]

    def lost(self, lease_handles: list[str]) -> None:
        """Drop waiting turns whose lease is lost. Running turns go on; settling them will fail."""
        lost = set(lease_handles)
        for turn in self:
            if turn.receipt in lost and turn.state is State.WAITING:
                self._drop_waiting(turn.message.from_)

    def drop_all_waiting(self) -> None:
        for sender in list(self._queues):
            self._drop_waiting(sender)

    # -- helpers

    def _add(self, turn: Turn) -> None:
        sender = turn.message.from_
        self._turns[turn.message.msg_id] = turn
        queue = self._queues.setdefault(sender, deque())
        queue.append(turn)
        if len(queue) == 1 and sender not in self._running:
            self._ready.append(sender)

    def _end(self, turn: Turn, state: State) -> None:
        turn.state = state
        self._running.discard(turn.message.from_)
        self._make_ready(turn.message.from_)

    def _make_ready(self, sender: str) -> None:
        if self._queues.get(sender):
            self._ready.append(sender)
        else:
            self._queues.pop(sender, None)

    def _drop_waiting(self, sender: str) -> None:
        for turn in self._queues.pop(sender, ()):
            self.forget(turn)
        if sender in self._ready:
            self._ready.remove(sender)
