"""State of an agent between its calls: its leased mail, and sends whose end is to be told.

A model may work on a message for minutes, and a lease lasts for seconds. So the leases of mail that
came through the door are extended for as long as the agent calls tools now and then, and has not
closed its last connection. All of this is memory: after a restart of the gateway, mail in hand is
delivered again once its lease has run out.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from msgspec import Struct, field

from gatepost.errors import GatepostError
from gatepost.gateway.doors import DoorCaller
from gatepost.wire.frame_types import Op
from gatepost.wire.operations import Extend, Settled

log = logging.getLogger(__name__)

EXTEND_EVERY_SECS = 8.0
# Mail leased to a session that has not called for this long goes to the next one that asks.
HOLD_SECS = 900.0
_MAX_DESKS = 10_000
_MAX_IN_HAND = 200
_MAX_FOLLOWED = 200
_MAX_LONG_CHARS = 4 * 1024 * 1024

Perform = Callable[[DoorCaller, Op], Awaitable[Any]]


class MailInHand(Struct, frozen=True):
    """Mail that was taken and is not settled. `long_body` is a body that was shown in part."""

    handle: str
    message_id: str
    sender: str
    task_id: str = ""
    long_body: str | None = None


class FollowedSend(Struct):
    """A message or task of the agent. `told` is the end that the agent was told.

    The answer to a request waits for the agent to fetch it, and is not mail.
    """

    id: str
    to: str
    is_task: bool = False
    is_request: bool = False
    told: str = ""


class AgentDesk(Struct):
    """One agent. `seen_at` is the time of its last call, by the event loop's clock.

    `waiting` are the events of those that want to know of each new send.

    `problem` says why its mail goes elsewhere; None until the agent is registered here.
    """

    caller: DoorCaller
    seen_at: float = 0.0
    connections: int = 0
    problem: str | None = None
    in_hand: OrderedDict[str, MailInHand] = field(default_factory=OrderedDict)
    followed: OrderedDict[str, FollowedSend] = field(default_factory=OrderedDict)
    waiting: set[asyncio.Event] = field(default_factory=set)

    def take(self, mail: MailInHand) -> None:
        self.in_hand[mail.handle] = mail
        while len(self.in_hand) > _MAX_IN_HAND:
            self.in_hand.popitem(last=False)
        long = [each for each in self.in_hand.values() if each.long_body is not None]
        while sum(len(each.long_body or "") for each in long) > _MAX_LONG_CHARS and len(long) > 1:
            oldest = long.pop(0)
            self.in_hand[oldest.handle] = MailInHand(
                oldest.handle, oldest.message_id, oldest.sender, oldest.task_id
            )

    def follow(self, send: FollowedSend) -> None:
        self.followed.setdefault(send.id, send)
        while len(self.followed) > _MAX_FOLLOWED:
            self.followed.popitem(last=False)
        for event in self.waiting:
            event.set()

    def note_told(self, id: str, end: str) -> None:
        """Note that the agent was told the end of a send, so that no notice repeats it."""
        if id in self.followed:
            self.followed[id].told = end


class AgentDesks:
    """The desks of all agents; beyond the limit, the least recently used one is dropped."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self._desks: OrderedDict[str, AgentDesk] = OrderedDict()

    def open_desk(self, caller: DoorCaller) -> AgentDesk:
        """The desk of the caller's agent, which shows a sign of life."""
        desk = self.find_desk(caller)
        desk.caller, desk.seen_at = caller, asyncio.get_running_loop().time()
        return desk

    @contextlib.contextmanager
    def connected(self, caller: DoorCaller) -> Iterator[None]:
        """Hold an agent's mail while it is connected; after its last connection, leases run out."""
        if caller.session is None:
            yield
            return
        desk = self.open_desk(caller)
        desk.connections += 1
        try:
            yield
        finally:
            desk.connections -= 1
            if not desk.connections:
                desk.in_hand.clear()

    def find_desk(self, caller: DoorCaller) -> AgentDesk:
        """The desk of the caller's agent. To look at it is not a sign of life."""
        assert caller.session is not None, "only an agent has a desk"
        desk = self._desks.setdefault(caller.session.id, AgentDesk(caller))
        self._desks.move_to_end(caller.session.id)
        while len(self._desks) > _MAX_DESKS:
            self._desks.popitem(last=False)
        return desk

    async def keep_leases(self) -> None:
        """Extend the leases of mail in hand, repeatedly."""
        while True:
            await asyncio.sleep(EXTEND_EVERY_SECS)
            oldest = asyncio.get_running_loop().time() - HOLD_SECS
            for desk in [desk for desk in self._desks.values() if desk.in_hand]:
                if desk.seen_at < oldest:
                    desk.in_hand.clear()
                else:
                    await self._extend(desk)

    async def _extend(self, desk: AgentDesk) -> None:
        op = Extend(mailbox=desk.caller.agent or "", receipts=list(desk.in_hand))
        try:
            answer: Settled = await self._perform(desk.caller, op)
        except GatepostError as error:
            log.info("leases of %s were not extended: %s", desk.caller.agent, error.message)
            return
        for failure in answer.failures:
            desk.in_hand.pop(failure.subject, None)
