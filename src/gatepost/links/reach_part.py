"""How a gateway asks its peers whether they reach it: they alone can see it from the other side.

A peer connects to the address that the room has for the asker, and to no other, so a request leads
it nowhere it would not go by itself. Its answer also has its version and its clock.
"""

from collections.abc import Callable

from gatepost.access.rate_limit import SourceRateLimiter
from gatepost.clock import Clock
from gatepost.delivery.frames import AnyFrame, HelloFrame, ReachAnswer, ReachRequest
from gatepost.journal.outbox import OutboxGroup
from gatepost.links.link_port import LinkPort
from gatepost.links.open_requests import OpenRequests

# Requests of one asker over all links, a second and at once: each costs a connection.
_REQUESTS_PER_SEC = 0.2
_REQUESTS_AT_ONCE = 10

ReachAnswered = Callable[[ReachAnswer], None]
# Connects to the gateway that asks, and calls back in the same thread.
ReachBack = Callable[[str, ReachRequest, ReachAnswered], None]


class ReachDesk:
    """Answers the requests of all links. `reach_back` is set by the service that dials."""

    def __init__(self, clock: Clock) -> None:
        self.reach_back: ReachBack | None = None
        self._limits = SourceRateLimiter(_REQUESTS_PER_SEC, _REQUESTS_AT_ONCE, clock)
        self._clock = clock

    def answer_request(self, asker: str, request: ReachRequest, answered: ReachAnswered) -> None:
        if self.reach_back is None or not self._limits.try_take(asker):
            answered(ReachAnswer(request.id, self._clock.now(), is_busy=True))
        else:
            self.reach_back(asker, request, answered)


class ReachPart:
    """Asks a peer and answers its requests. The caller sets the deadline."""

    def __init__(self, port: LinkPort, peer: str, desk: ReachDesk) -> None:
        self._port = port
        self._peer = peer
        self._desk = desk
        self._requests = OpenRequests[ReachAnswer]()

    def request_reach(self, answered: ReachAnswered) -> int:
        """Ask the peer; returns the number for `forget_request`."""
        number = self._requests.add(answered)
        self._port.send(ReachRequest(number))
        return number

    def forget_request(self, number: int) -> None:
        self._requests.forget(number)

    def handle_hello(self, hello: HelloFrame) -> None:
        """Nothing is sent now: requests start when an operator asks."""

    def receive_frame(self, frame: AnyFrame) -> bool:
        match frame:
            case ReachRequest():
                self._desk.answer_request(self._peer, frame, self._port.send)
            case ReachAnswer():
                self._requests.answer(frame.id, frame)
            case _:
                return False
        return True

    def publish_group(self, group: OutboxGroup) -> None:
        """Nothing here is about events."""

    def close(self) -> None:
        self._requests.clear()
