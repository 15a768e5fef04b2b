"""The journey of an event or a conversation, told by every gateway that had a part in it.

Our own journal comes first. It names the gateways our events went to and others' came from; those
are asked over the links there are, and not waited for longer than a moment.
"""

import asyncio
from collections.abc import Iterable

from litestar import Router
from litestar.params import FromPath, FromQuery
from msgspec import Struct

from gatepost.delivery.event_trace import (
    EventTrace,
    conversation_events,
    sent_conversation_events,
    traced_event,
)
from gatepost.delivery.frames import TraceAnswer, TraceStep
from gatepost.delivery.peer_links import PeerLink
from gatepost.errors import GatepostError, UnknownMessage
from gatepost.events import check_msg_id, parse_event_id
from gatepost.gateway.core import Core
from gatepost.gateway.pipes import Pipes
from gatepost.gateway.reports import Journey, Step
from gatepost.gateway.route import get
from gatepost.journal import Tx

_DEADLINE_SECS = 3.0
# Events about which one gateway is asked at once.
_ASKED = 64

# The order of what happens in the same millisecond.
_STAGES = (
    *("sent", "sent_again", "held", "offered", "taken", "accepted", "refused", "heard_accepted"),
    *("confirm", "withdraw", "settled", "waiting", "in_hand", "backing_off", "turn_ended"),
    *("turn_failed", "handed_on", "reply", "processed", "heard_processed", "given_up", "verdict"),
)
_STAGE = {what: place for place, what in enumerate(_STAGES)}
_CORR = """
SELECT corr_id FROM delivery WHERE event_id = ?1
UNION ALL SELECT corr_id FROM inbox WHERE event_id = ?1 AND source IN (SELECT source FROM cursor)
LIMIT 1
"""


class Local(Struct, frozen=True):
    """What our own journal says."""

    event_ids: list[str]
    corr_id: str
    steps: list[TraceStep]
    more: int


class Heard(Struct, frozen=True):
    """What another gateway said, and how many milliseconds its clock is ahead of ours."""

    node: str
    steps: list[TraceStep]
    ahead: int


class Tracer:
    def __init__(self, core: Core, pipes: Pipes) -> None:
        self._core = core
        self._pipes = pipes

    async def trace(self, ref: str, whole: bool) -> Journey:
        """`ref` is an event, or a conversation; with `whole` it is a conversation in any case."""
        check_msg_id(ref)
        local = await self._core.read(lambda tx: self._local(tx, ref, whole))
        if not local.steps:
            raise UnknownMessage(f"no event and no conversation {ref} in this gateway's journal")
        heard, unreachable = await self._ask_all(local)
        told = {step.event_id for each in heard for step in each.steps}
        more = sorted(told - {step.event_id for step in local.steps})
        late = await self._core.read(
            lambda tx: EventTrace(tx, self._core.node.id).trace_events(more)
        )
        own = [_step(self._core.node.id, each, 0) for each in (*local.steps, *late)]
        others = [_step(each.node, step, each.ahead) for each in heard for step in each.steps]
        return Journey(
            ref,
            local.corr_id,
            sorted({*local.event_ids, *told}),
            in_order([*own, *others]),
            unreachable,
            {each.node: each.ahead for each in heard if each.ahead},
            local.more,
        )

    def _local(self, tx: Tx, ref: str, whole: bool) -> Local:
        story = EventTrace(tx, self._core.node.id)
        nothing: tuple[list[TraceStep], list[str]] = ([], [])
        steps, ids = nothing if whole else self._of_event(tx, story, ref)
        if not steps:
            ids = conversation_events(tx, ref)
            return Local(ids, ref, story.trace_events(ids), 0)
        corr = self._corr(tx, ids[0])
        return Local(ids, corr, steps, len(set(sent_conversation_events(tx, corr)) - {*ids}))

    def _of_event(self, tx: Tx, story: EventTrace, ref: str) -> tuple[list[TraceStep], list[str]]:
        """Nothing if there is no such event, for then it may be a conversation."""
        try:
            about = traced_event(tx, ref)
            steps = story.trace_events([about])
        except GatepostError:
            return [], []
        return steps, [about, *sorted({step.event_id for step in steps} - {about})]

    def _corr(self, tx: Tx, event_id: str) -> str:
        row = tx.one(_CORR, (parse_event_id(event_id),))
        return row[0] if row else ""

    # -- others

    async def _ask_all(self, local: Local) -> tuple[list[Heard], dict[str, str]]:
        parts = _parties(local.steps, self._core.node.id)
        work = [self._ask(node, sorted(ids)[:_ASKED]) for node, ids in sorted(parts.items())]
        answers = await asyncio.gather(*work)
        heard = [each for each in answers if isinstance(each, Heard)]
        missing = [each for each in answers if not isinstance(each, Heard)]
        return heard, dict(missing)

    async def _ask(self, node: str, event_ids: list[str]) -> Heard | tuple[str, str]:
        ends = [end for end in self._pipes.links_to(node) if end.outbox.greeted and not end.ended]
        if not ends:
            return node, "there is no link to it"
        try:
            async with asyncio.timeout(_DEADLINE_SECS):
                return await self._ask_over(ends[0], node, event_ids)
        except TimeoutError:
            return node, f"it did not answer within {_DEADLINE_SECS:g} s"

    async def _ask_over(self, end: PeerLink, node: str, event_ids: list[str]) -> Heard:
        answered: asyncio.Future[TraceAnswer] = asyncio.get_running_loop().create_future()

        def resolve(answer: TraceAnswer) -> None:
            if not answered.done():
                answered.set_result(answer)

        asked_at = self._core.clock.now()
        number = end.trace.request_trace(event_ids, resolve)
        try:
            answer = await answered
        finally:
            end.trace.forget_request(number)
        return Heard(node, answer.steps, ahead(asked_at, answer.now, self._core.clock.now()))


def ahead(asked_at: int, theirs: int, answered_at: int) -> int:
    """How far another clock is ahead, in ms; 0 if it agrees as far as a round trip can tell."""
    difference = theirs - (asked_at + answered_at) // 2
    return difference if abs(difference) > (answered_at - asked_at) // 2 + 1 else 0


def _parties(steps: Iterable[TraceStep], own: str) -> dict[str, set[str]]:
    """Which other gateways had a part in which events: told by the steps."""
    parties: dict[str, set[str]] = {}
    for step in steps:
        if step.peer not in ("", own):
            parties.setdefault(step.peer, set()).add(step.event_id)
    return parties


def _step(node: str, told: TraceStep, ahead: int) -> Step:
    ends = (told.kind, told.agent, told.to_agent, told.peer, told.detail)
    return Step(told.at - ahead, node, told.what, told.event_id, *ends)


def in_order(steps: Iterable[Step]) -> list[Step]:
    """By time; in the same millisecond, as one thing leads to the other, replies inside a turn."""
    once = list(dict.fromkeys(steps))
    replies = {step.event_id for step in once if step.kind == "reply"}

    def place(step: Step) -> tuple[int, float, str]:
        stage: float = _STAGE.get(step.what, len(_STAGES))
        if step.event_id in replies:
            stage = _STAGE["reply"] + stage / 100
        return step.at, stage, step.event_id

    return sorted(once, key=place)


def routes(tracer: Tracer) -> Router:
    @get("/{ref:str}", summary="The journey of an event or a conversation, through all gateways")
    async def trace(ref: FromPath[str], conversation: FromQuery[bool] = False) -> Journey:
        return await tracer.trace(ref, conversation)

    return Router("/v1/trace", route_handlers=[trace])
