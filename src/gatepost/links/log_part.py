"""Reading the log of a task from the gateway that executes it.

This works over a direct link only, because a relay could read the log. The executor's gateway
answers only the node that requested the task. It sends one bounded piece for each request, and
counts the requests of each asker, over all links.
"""

from collections.abc import Callable
from functools import partial

from gatepost.access.rate_limit import SourceRateLimiter
from gatepost.clock import Clock
from gatepost.delivery.frames import AnyFrame, HelloFrame, LogAnswer, LogRequest
from gatepost.journal.outbox import OutboxGroup
from gatepost.links.link_port import LinkPort
from gatepost.links.open_requests import OpenRequests

# The rate and burst of pieces for one asker; with 64 KiB each, 512 KiB a second.
_PIECES_PER_SEC = 8.0
_PIECES_AT_ONCE = 32
# The most requests of one asker that are answered at a time.
_UNANSWERED = 4

LogAnswered = Callable[[LogAnswer], None]
# Reads a piece for the gateway that asks, and calls back in the same thread.
ReadLog = Callable[[str, LogRequest, LogAnswered], None]


class TaskLogs:
    """The logs of this gateway's sessions, for all its links. `read_log` is set by the hub."""

    def __init__(self, clock: Clock) -> None:
        self.read_log: ReadLog | None = None
        self._limits = SourceRateLimiter(_PIECES_PER_SEC, _PIECES_AT_ONCE, clock)
        self._answering: dict[str, int] = {}

    def answer_request(self, asker: str, request: LogRequest, answered: LogAnswered) -> None:
        if self.read_log is None:
            answered(LogAnswer(request.id, problem="it has no logs"))
        elif self._answering.get(asker, 0) >= _UNANSWERED or not self._limits.try_take(asker):
            answered(LogAnswer(request.id, is_busy=True))
        else:
            self._answering[asker] = self._answering.get(asker, 0) + 1
            self.read_log(asker, request, partial(self._finish, asker, answered))

    def _finish(self, asker: str, answered: LogAnswered, answer: LogAnswer) -> None:
        self._answering[asker] -= 1
        if not self._answering[asker]:
            del self._answering[asker]
        answered(answer)


class LogPart:
    """Asks a peer for pieces of logs and answers its requests. The caller sets the deadline."""

    def __init__(self, port: LinkPort, peer: str, logs: TaskLogs) -> None:
        self._port = port
        self._peer = peer
        self._logs = logs
        self._requests = OpenRequests[LogAnswer]()

    def request_log(self, task_id: str, offset: int, answered: LogAnswered) -> int:
        """Ask the peer; returns the number for `forget_request`."""
        number = self._requests.add(answered)
        self._port.send(LogRequest(number, task_id, offset))
        return number

    def forget_request(self, number: int) -> None:
        self._requests.forget(number)

    def handle_hello(self, hello: HelloFrame) -> None:
        """Nothing is sent now: requests start when a caller asks."""

    def receive_frame(self, frame: AnyFrame) -> bool:
        match frame:
            case LogRequest():
                if self._port.is_congested:
                    self._port.send(LogAnswer(frame.id, is_busy=True))
                else:
                    self._logs.answer_request(self._peer, frame, self._port.send)
            case LogAnswer():
                self._requests.answer(frame.id, frame)
            case _:
                return False
        return True

    def publish_group(self, group: OutboxGroup) -> None:
        """Logs are asked for, never streamed."""

    def close(self) -> None:
        self._requests.clear()
