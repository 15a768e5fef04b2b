"""Trace requests between gateways, over a direct link or through a relay.

A relayed request is signed by the asker and its answer by the target, so that a relay cannot forge
either. The relay checks both before it passes them on, so that no node can make two others end
their link.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from gatepost.access.rate_limit import SourceRateLimiter
from gatepost.clock import Clock
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.frames import (
    TRACE_STEPS,
    AnyFrame,
    HelloFrame,
    Position,
    TraceAnswer,
    TraceRequest,
    TraceStep,
)
from gatepost.delivery.local_node import LocalNode
from gatepost.errors import GatepostError, LinkError
from gatepost.journal.outbox import OutboxGroup
from gatepost.journal.transaction import Tx
from gatepost.ledger import Ledger
from gatepost.links.event_proof import (
    ArchivedEvidence,
    limit_evidence,
    merge_groups,
    read_evidence,
    read_seen_heads,
)
from gatepost.links.event_trace import EventTrace
from gatepost.links.link_port import LinkPort
from gatepost.links.open_requests import OpenRequests
from gatepost.links.proof import (
    check_trace_answer,
    check_trace_request,
    sign_trace_answer,
    sign_trace_request,
)
from gatepost.proof.proof_file import ProvenGroup

# Requests of one link that are being answered or passed on; the rest get no answer.
_UNANSWERED = 4
# The rate and burst of events in requests of one gateway. Each event costs some reads.
_EVENTS_PER_SEC = 32.0
_EVENTS_AT_ONCE = 512
# The cost of a proof in events; a search of the archive costs the same again.
_PROOF_EVENTS = 16
# Counting the messages of a ledger reads them all, though once for all who ask at the same time.
_LEDGER_EVENTS = 8
# A relay forgets a request that its target has not answered for this long.
_FORWARD_MS = 10_000

LedgerRead = Callable[[Ledger | None], None]


class CountedLedger(Protocol):
    """The ledger of this gateway."""

    def read_ledger(self, at: int | None, done: LedgerRead) -> None:
        """Count what there is now, or was `at` a moment, beside the gateway.

        Calls back where links run; with None if it failed.
        """


TraceAnswered = Callable[[TraceAnswer], None]


class ForwardedTrace(Struct, frozen=True):
    """A request that a relay passed on: `asker` waits for it until `deadline`.

    `number` is that of the request on the link with `target`.
    """

    asker: "TracePart"
    request: TraceRequest
    target: "TracePart"
    number: int
    deadline: int


class TraceForwarder:
    """Relays requests to targets that this gateway has a link with, and returns their answers.

    All links of a gateway share one forwarder, which also counts the requests of each asker.
    """

    def __init__(
        self,
        coordinator: DeliveryCoordinator,
        clock: Clock,
        archive: ArchivedEvidence | None = None,
        ledger: CountedLedger | None = None,
    ) -> None:
        self._coordinator = coordinator
        self.archive = archive
        self.ledger = ledger
        self._limits = SourceRateLimiter(_EVENTS_PER_SEC, _EVENTS_AT_ONCE, clock)
        self._parts: list[TracePart] = []
        self._waiting: list[ForwardedTrace] = []

    def add_part(self, part: "TracePart") -> None:
        self._parts.append(part)

    def remove_part(self, part: "TracePart") -> None:
        if part in self._parts:
            self._parts.remove(part)
        self._forget_requests([each for each in self._waiting if each.asker is part])

    def find_key(self, node: str) -> bytes | None:
        found = self._coordinator.routes.directory.gateways.get(node)
        return None if found is None else found.key

    def try_take(self, asker: str, count: int) -> bool:
        """Count the events that a gateway asks for. False if these are too many."""
        return self._limits.try_take(asker, max(1, count))

    def forward_request(self, part: "TracePart", frame: TraceRequest) -> str:
        """Pass a request on; returns the problem if that cannot be done.

        Raises LinkError unless the peer signed it itself.
        """
        target = next((each for each in self._parts if each.peer == frame.target), None)
        if target is None or target.is_closed:
            return f"the relay has no link with {frame.target}"
        self._expire_requests(part.now())
        if part.is_busy or sum(each.asker is part for each in self._waiting) >= _UNANSWERED:
            return "too many requests at once"
        request, key = replace(frame, asker=part.peer), self.find_key(part.peer)
        if key is None:
            return f"the relay does not know {part.peer}"
        check_trace_request(request, target.peer, key)
        number = target.send_forwarded(request, self._pass_answer)
        deadline = part.now() + _FORWARD_MS
        self._waiting.append(ForwardedTrace(part, request, target, number, deadline))
        return ""

    def _pass_answer(self, target: "TracePart", answer: TraceAnswer) -> None:
        found = [e for e in self._waiting if e.target is target and e.number == answer.id]
        for each in found:
            self._waiting.remove(each)
            self.check_answer(each.request, answer)
            each.asker.send_answer(replace(answer, id=each.request.id))

    def check_answer(self, request: TraceRequest, answer: TraceAnswer) -> None:
        """Raise LinkError unless the target signed the answer; one without steps is unsigned."""
        key = self.find_key(request.target or "")
        if key is None:
            raise LinkError(f"{request.target} is not in this room")
        if not answer.problem:
            check_trace_answer(request, answer, key)
        elif answer.steps:
            raise LinkError(f"steps of {request.target} came without proof")

    def _expire_requests(self, now: int) -> None:
        # After the clock went back, no request waits longer than `_FORWARD_MS` from now.
        self._forget_requests(
            [each for each in self._waiting if not now < each.deadline <= now + _FORWARD_MS]
        )

    def _forget_requests(self, ended: list[ForwardedTrace]) -> None:
        for each in ended:
            each.target.forget_request(each.number)
            self._waiting.remove(each)


class TracePart:
    """Asks a peer for steps and answers its requests. The caller sets its own deadline."""

    def __init__(
        self,
        port: LinkPort,
        node: LocalNode,
        peer: str,
        forwarder: TraceForwarder,
        *,
        forwards: bool,
    ) -> None:
        self._port = port
        self._node = node
        self.peer = peer
        self._forwarder = forwarder
        self._forwards = forwards
        self.now = port.now
        self.is_closed = False
        self._requests = OpenRequests[TraceAnswer]()
        self._answering = 0

    def request_trace(
        self,
        event_ids: Sequence[str],
        answered: TraceAnswered,
        target: str | None = None,
        proof_of: Sequence[Position] | None = None,
        *,
        ledger: bool = False,
        at: int = 0,
    ) -> int:
        """Ask the peer, or through it a `target`; returns the number for `forget_request`.

        With `proof_of`, ask for the evidence of the first event too, and who saw these heads.
        """
        number = self._requests.add(
            answered
            if target is None
            else lambda answer: self._use_relayed(request, answer, answered)
        )
        request = TraceRequest(number, list(event_ids), ledger=ledger, at=at)
        if proof_of is not None:
            request = replace(request, proof=True, heads=list(proof_of))
        if target is not None:
            key, own = self._node.key, self._node.id
            signature = sign_trace_request(key, own, target, request.event_ids)
            request = replace(request, target=target, asker=own, signature=signature)
        self._port.send(request)
        return number

    def send_forwarded(
        self, request: TraceRequest, answered: "Callable[[TracePart, TraceAnswer], None]"
    ) -> int:
        """Pass on the request of another peer; returns its number on this link."""
        number = self._requests.add(lambda answer: answered(self, answer))
        self._port.send(replace(request, id=number))
        return number

    def forget_request(self, number: int) -> None:
        self._requests.forget(number)

    def handle_hello(self, hello: HelloFrame) -> None:
        """Traces may now ask this peer; nothing is sent until a user asks for one."""
        self._forwarder.add_part(self)

    def receive_frame(self, frame: AnyFrame) -> bool:
        match frame:
            case TraceRequest():
                self._receive_request(frame)
            case TraceAnswer():
                self._requests.answer(frame.id, frame)
            case _:
                return False
        return True

    def publish_group(self, group: OutboxGroup) -> None:
        """Ignored, because traces are requested, not streamed."""

    @property
    def is_busy(self) -> bool:
        """True while the send queue is over its limit; defer answers until it drains."""
        return self._port.is_congested

    def close(self) -> None:
        self.is_closed = True
        self._requests.clear()
        self._forwarder.remove_part(self)

    def send_answer(self, answer: TraceAnswer) -> None:
        self._port.send(answer)

    def _receive_request(self, frame: TraceRequest) -> None:
        if frame.target not in (None, self._node.id):
            problem = "it is no relay"
            if self._forwards:
                problem = self._forwarder.forward_request(self, frame)
            if problem:
                self._refuse_request(frame, problem)
            return
        asker = self.peer if frame.target is None else self._check_asker(frame)
        if asker is None:
            self._refuse_request(frame, f"{self._node.id} does not know {frame.asker}")
        # A peer with too many requests gets no answer to the rest.
        elif (
            self._answering < _UNANSWERED
            and not self.is_busy
            and self._forwarder.try_take(asker, _request_cost(frame))
        ):
            self._answering += 1
            if frame.ledger and self._forwarder.ledger is not None:
                answer = partial(self._answer_ledger, frame)
                self._forwarder.ledger.read_ledger(frame.at or None, answer)
                return
            self._port.commit(
                lambda tx: self._make_answer(tx, frame, asker),
                lambda made: self._finish_answer(frame, asker, *made),
            )

    def _answer_ledger(self, frame: TraceRequest, ledger: Ledger | None) -> None:
        counts = [] if ledger is None else ledger.counts
        answer = TraceAnswer(frame.id, self.now(), [], ledger=counts)
        self._send_made(self._sign_relayed(frame, answer))

    def _refuse_request(self, frame: TraceRequest, problem: str) -> None:
        self._port.send(TraceAnswer(frame.id, self.now(), [], problem=problem[:300]))

    def _check_asker(self, frame: TraceRequest) -> str | None:
        """The member that asks through a relay, if we know it; LinkError if it does not."""
        key = self._forwarder.find_key(frame.asker or "")
        if key is None or frame.asker is None:
            return None
        check_trace_request(frame, self._node.id, key)
        return frame.asker

    def _make_answer(self, tx: Tx, frame: TraceRequest, asker: str) -> tuple[TraceAnswer, bool]:
        """The answer, and whether the archive has more evidence."""
        steps: list[TraceStep] = []
        for event_id in frame.event_ids:
            # Nothing is known about a malformed event id.
            try:
                steps += EventTrace(tx, self._node.id, asker).trace_events([event_id])
            except GatepostError:
                continue
        answer = TraceAnswer(frame.id, tx.now, steps[:TRACE_STEPS])
        answer = self._sign_relayed(frame, answer)
        if not frame.proof:
            return answer, False
        seen = read_seen_heads(tx, self._node, frame.heads)
        try:
            own = read_evidence(tx, self._node.id, frame.event_ids[0], asker)
        except GatepostError:
            return replace(answer, seen=seen), False
        return replace(answer, groups=own.groups, seen=seen), not own.is_whole

    def _sign_relayed(self, frame: TraceRequest, answer: TraceAnswer) -> TraceAnswer:
        """Sign an answer that goes through a relay."""
        if frame.target is None:
            return answer
        signature = sign_trace_answer(self._node.key, frame, self._node.id, answer)
        return replace(answer, signature=signature)

    def _finish_answer(
        self, frame: TraceRequest, asker: str, answer: TraceAnswer, is_pruned: bool
    ) -> None:
        archive = self._forwarder.archive
        if not is_pruned or archive is None or not self._forwarder.try_take(asker, _PROOF_EVENTS):
            self._send_made(answer)
            return

        def add_archived(groups: list[ProvenGroup]) -> None:
            self._send_made(
                replace(answer, groups=limit_evidence(merge_groups(groups, answer.groups)))
            )

        archive.read_evidence(frame.event_ids[0], asker, add_archived)

    def _send_made(self, answer: TraceAnswer) -> None:
        self._answering -= 1
        if not self.is_closed:
            self._port.send(answer)

    def _use_relayed(
        self, request: TraceRequest, answer: TraceAnswer, answered: TraceAnswered
    ) -> None:
        self._forwarder.check_answer(request, answer)
        answered(answer)


def _request_cost(frame: TraceRequest) -> int:
    if frame.ledger:
        return _LEDGER_EVENTS
    return len(frame.event_ids) + (_PROOF_EVENTS + len(frame.heads) if frame.proof else 0)
