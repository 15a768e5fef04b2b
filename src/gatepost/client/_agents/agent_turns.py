"""The turns an agent holds: waiting, running, and ended but not yet confirmed.

Ordered messages of one sender are handled one at a time, in order; an unordered message waits for
no other. So each of these is a lane. A message that is delivered again while it is held only gets
its new lease handle; its turn is not taken twice. No I/O and no clock: `now` is passed in.
"""

from collections import deque
from collections.abc import Iterator
from enum import Enum

from gatepost.client._encoding import EncodedReply
from gatepost.client._message import Message


class TurnState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    # No longer held by this agent.
    GONE = "gone"


class AgentTurn:
    """One message and the state of its turn. `settling`: its ack or nack is unanswered.

    A `rejected` message is not to be delivered again.
    """

    __slots__ = (
        "lane",
        "lease_handle",
        "lease_until",
        "message",
        "reason",
        "rejected",
        "reply",
        "settling",
        "state",
    )

    def __init__(self, message: Message, now: float) -> None:
        self.message = message
        self.lane = _lane_of(message)
        self.lease_handle = message.receipt
        self.lease_until = now + message.lease_secs
        self.state = TurnState.WAITING
        self.reply: EncodedReply | None = None
        self.reason = ""
        self.rejected = False
        self.settling = False

    @property
    def has_ended(self) -> bool:
        return self.state in (TurnState.DONE, TurnState.FAILED)

    def renew_lease(self, message: Message, now: float) -> None:
        self.lease_handle = message.receipt
        self.lease_until = now + message.lease_secs


class AgentTurns:
    """Queues the turns by lane and decides which one starts next."""

    def __init__(self) -> None:
        self._turns: dict[str, AgentTurn] = {}
        self._queues: dict[str, deque[AgentTurn]] = {}
        self._ready: deque[str] = deque()
        self._running: set[str] = set()

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[AgentTurn]:
        """Oldest first, so the turns of each lane are in order."""
        return iter(list(self._turns.values()))

    def add_delivered(self, messages: list[Message], now: float) -> list[AgentTurn]:
        """Add delivered messages; returns turns that have ended and must be settled again."""
        ended: list[AgentTurn] = []
        # When a message is nacked, the gateway takes back the messages behind it.
        taken_back: set[str] = set()
        for message in messages:
            turn = self._turns.get(message.msg_id)
            lane = _lane_of(message)
            if lane in taken_back:
                continue
            if turn is None or (
                turn.state is TurnState.FAILED and turn.lease_handle != message.receipt
            ):
                self._queue_turn(AgentTurn(message, now))
                continue
            turn.renew_lease(message, now)
            if turn.has_ended:
                ended.append(turn)
            if turn.state is TurnState.FAILED:
                taken_back.add(lane)
        return ended

    def start_next(self, now: float) -> AgentTurn | None:
        """Start the next turn that is ready; None if there is none."""
        while self._ready:
            lane = self._ready.popleft()
            turn = self._queues[lane].popleft()
            if turn.lease_until > now:
                turn.state = TurnState.RUNNING
                self._running.add(lane)
                return turn
            # Its lease has ended: another consumer may hold it now, or it is delivered here again.
            self.forget_turn(turn)
            self._make_lane_ready(lane)
        return None

    def mark_done(self, turn: AgentTurn, reply: EncodedReply | None) -> None:
        turn.reply = reply
        self._end_turn(turn, TurnState.DONE)

    def mark_failed(self, turn: AgentTurn, reason: str, *, rejected: bool = False) -> None:
        turn.reason, turn.rejected = reason, rejected
        self._drop_waiting_in(turn.lane)
        self._end_turn(turn, TurnState.FAILED)

    def mark_refused(self, turn: AgentTurn, reason: str) -> None:
        """Fail a turn that was done: the gateway does not take its end, and never will."""
        turn.reason, turn.reply, turn.state = reason, None, TurnState.FAILED
        self._drop_waiting_in(turn.lane)

    def abandon_turn(self, turn: AgentTurn) -> None:
        """Drop a cancelled turn; its message is returned without counting an attempt."""
        self._end_turn(turn, TurnState.GONE)
        self.forget_turn(turn)

    def forget_turn(self, turn: AgentTurn) -> None:
        turn.state = TurnState.GONE
        if self._turns.get(turn.message.msg_id) is turn:
            del self._turns[turn.message.msg_id]

    def drop_lost_leases(self, lease_handles: list[str]) -> None:
        """Drop waiting turns whose lease is lost. Running turns go on; settling them will fail."""
        lost = set(lease_handles)
        for turn in self:
            if turn.lease_handle in lost and turn.state is TurnState.WAITING:
                self._drop_waiting_in(turn.lane)

    def drop_all_waiting(self) -> None:
        for lane in list(self._queues):
            self._drop_waiting_in(lane)

    # -- helpers

    def _queue_turn(self, turn: AgentTurn) -> None:
        self._turns[turn.message.msg_id] = turn
        queue = self._queues.setdefault(turn.lane, deque())
        queue.append(turn)
        if len(queue) == 1 and turn.lane not in self._running:
            self._ready.append(turn.lane)

    def _end_turn(self, turn: AgentTurn, state: TurnState) -> None:
        turn.state = state
        self._running.discard(turn.lane)
        self._make_lane_ready(turn.lane)

    def _make_lane_ready(self, lane: str) -> None:
        if self._queues.get(lane):
            self._ready.append(lane)
        else:
            self._queues.pop(lane, None)

    def _drop_waiting_in(self, lane: str) -> None:
        for turn in self._queues.pop(lane, ()):
            self.forget_turn(turn)
        if lane in self._ready:
            self._ready.remove(lane)


def _lane_of(message: Message) -> str:
    """The turns of a lane are taken one after the other. No agent's name has a slash."""
    return message.from_ if message.order == "fifo" else f"/{message.msg_id}"
