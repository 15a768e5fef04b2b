"""Operator API for journeys: the path of an event or conversation through all gateways.

Our own journal is read first, and our archive if the event has left the journal. They name the
gateways that sent or received the events. Those are asked over their links, or through a relay,
with a short deadline.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from litestar import Router
from litestar.params import FromQuery
from msgspec import Struct
from msgspec.structs import replace

from gatepost.archive.service.archived_messages import archived_steps
from gatepost.core.gateway_core import Core
from gatepost.core.own_archive import SEARCH_SECS
from gatepost.delivery.delivery_reads import sent_conversation
from gatepost.delivery.frames import Position, TraceAnswer, TraceStep
from gatepost.delivery.inbox.inbox_reads import taken_conversation
from gatepost.errors import GatepostError, InvalidId, UnknownMessage
from gatepost.events import check_msg_id, parse_event_id
from gatepost.journal import Tx
from gatepost.links.event_trace import (
    EventTrace,
    conversation_events,
    is_pruned,
    sent_conversation_events,
    traced_event,
)
from gatepost.links.peer_links import PeerLink
from gatepost.links.service.connection_links import ConnectionLinks
from gatepost.listening.route_decorators import get
from gatepost.listening.route_parameters import PathName
from gatepost.wire.report_views import Journey, JourneyStep

if TYPE_CHECKING:
    from gatepost.archive.segment_reader import FoundEvent

_DEADLINE_SECS = 3.0
# Maximum number of events one gateway is asked about.
_MAX_EVENTS_ASKED = 64
_MAX_RELAYS = 2
NO_WAY = "there is no link to it, and no relay"

# Order of steps within the same millisecond.
_STAGES = (
    *("sent", "sent_again", "held", "offered", "taken", "accepted", "refused", "heard_accepted"),
    *("confirm", "withdraw", "pair_closed", "waiting", "in_hand", "backing_off", "turn_ended"),
    *("turn_failed", "forwarded", "reply", "processed", "heard_processed", "given_up", "verdict"),
    "amended",
)
_STAGE_ORDER = {what: index for index, what in enumerate(_STAGES)}


class LocalJourney(Struct, frozen=True):
    """The steps found in our own journal.

    `ended`: the sends that the journal has forgotten because their deliveries ended.
    """

    event_ids: list[str]
    corr_id: str
    steps: list[TraceStep]
    more: int
    is_pruned: bool = False
    notes: list[str] = []
    ended: list[str] = []


class PeerJourney(Struct, frozen=True):
    """The steps a peer reported, and how many milliseconds its clock is ahead of ours.

    `relay`: the gateway through which it was asked.
    """

    node: str
    steps: list[TraceStep]
    ahead: int
    relay: str | None = None


class JourneyTracer:
    def __init__(self, core: Core, links: ConnectionLinks) -> None:
        self._core = core
        self._links = links

    async def trace_journey(self, ref: str, whole: bool) -> Journey:
        """Trace an event or a conversation; with `whole`, `ref` is always a conversation."""
        check_msg_id(ref)
        local = await self._core.read(lambda tx: self._local_journey(tx, ref, whole))
        if local.is_pruned:
            local = await self._add_archived_steps(local, ref)
        if not local.steps:
            raise UnknownMessage(f"no event and no conversation {ref} in this gateway's journal")
        heard, unreachable = await self._ask_peers(local)
        reported = {step.event_id for each in heard for step in each.steps}
        more = sorted(reported - {step.event_id for step in local.steps})
        late = await self._core.read(
            lambda tx: EventTrace(tx, self._core.node.id).trace_events(more)
        )
        own = [_journey_step(self._core.node.id, each, 0) for each in (*local.steps, *late)]
        others = [
            _journey_step(each.node, step, each.ahead) for each in heard for step in each.steps
        ]
        return Journey(
            ref,
            local.corr_id,
            sorted({*local.event_ids, *reported}),
            sort_steps([*own, *others]),
            unreachable,
            {each.node: each.ahead for each in heard if each.ahead},
            local.more,
            local.notes,
            {each.node: each.relay for each in heard if each.relay is not None},
            local.ended,
        )

    async def _add_archived_steps(self, local: LocalJourney, ref: str) -> LocalJourney:
        """The journey with the events that have left the outbox, if the archive has them."""
        try:
            found = await self._core.archive.find_events(parse_event_id(ref))
        except InvalidId:
            return local
        except GatepostError as error:
            return replace(local, notes=[f"the archive cannot be searched: {error.message}"])
        if found is None:
            return local
        notes = [] if found.complete else [f"the archive was searched for {SEARCH_SECS:g} s only"]
        if found.events:
            notes.append("events that have left the journal come from the archive")
        steps = merge_steps(archived_steps(found.events), local.steps)
        ids = dict.fromkeys([*local.event_ids, *(step.event_id for step in steps)])
        corr_id = local.corr_id if local.steps else _corr_id_of(found.events)
        ended = [step.event_id for step in steps if step.what == "sent"]
        return LocalJourney([*ids], corr_id, steps, local.more, notes=notes, ended=ended)

    def _local_journey(self, tx: Tx, ref: str, whole: bool) -> LocalJourney:
        story = EventTrace(tx, self._core.node.id)
        nothing: tuple[list[TraceStep], list[str]] = ([], [])
        steps, ids = nothing if whole else self._event_steps(tx, story, ref)
        if not steps:
            ids = conversation_events(tx, ref)
            return LocalJourney(
                ids, ref, story.trace_events(ids), 0, is_pruned=not whole and not ids
            )
        corr = self._conversation_of(tx, ids[0])
        more = len(set(sent_conversation_events(tx, corr)) - {*ids})
        return LocalJourney(ids, corr, steps, more, is_pruned=is_pruned(tx, ids[0]))

    def _event_steps(
        self, tx: Tx, story: EventTrace, ref: str
    ) -> tuple[list[TraceStep], list[str]]:
        """Return (steps, event ids) of an event; empty if unknown, as it may be a conversation."""
        try:
            about = traced_event(tx, ref)
            steps = story.trace_events([about])
        except GatepostError:
            return [], []
        return steps, [about, *sorted({step.event_id for step in steps} - {about})]

    def _conversation_of(self, tx: Tx, event_id: str) -> str:
        id = parse_event_id(event_id)
        return sent_conversation(tx, id) or taken_conversation(tx, id) or ""

    # -- asking peers

    async def _ask_peers(self, local: LocalJourney) -> tuple[list[PeerJourney], dict[str, str]]:
        parts = _events_by_peer(local.steps, self._core.node.id)
        work = [
            self._ask_peer(node, sorted(ids)[:_MAX_EVENTS_ASKED])
            for node, ids in sorted(parts.items())
        ]
        answers = await asyncio.gather(*work)
        heard = [each for each in answers if isinstance(each, PeerJourney)]
        missing = [each for each in answers if not isinstance(each, PeerJourney)]
        return heard, dict(missing)

    async def _ask_peer(self, node: str, event_ids: list[str]) -> PeerJourney | tuple[str, str]:
        """Ask over the link to a node; without one, through a relay."""
        problem = NO_WAY
        try:
            async with asyncio.timeout(_DEADLINE_SECS):
                for end in find_ways(self._links, node):
                    told = await self._ask_over_link(end, node, event_ids)
                    if isinstance(told, PeerJourney):
                        return told
                    problem = told
        except TimeoutError:
            problem = f"it did not answer within {_DEADLINE_SECS:g} s"
        return node, problem

    async def _ask_over_link(
        self, end: PeerLink, node: str, event_ids: list[str]
    ) -> PeerJourney | str:
        """The steps from a node, or the problem reported by the relay."""
        asked_at = self._core.clock.now()
        answer = await ask_over_link(end, node, event_ids)
        if isinstance(answer, str):
            return answer
        ahead = clock_offset(asked_at, answer.now, self._core.clock.now())
        return PeerJourney(node, answer.steps, ahead, None if end.peer == node else end.peer)


def find_ways(links: ConnectionLinks, node: str) -> list[PeerLink]:
    """The link to a node; without one, those to relays."""
    ends = [end for end in links.links_to(node) if end.outbox.greeted and not end.ended]
    return ends[:1] or links.relay_links(node)[:_MAX_RELAYS]


async def ask_through(
    links: ConnectionLinks,
    node: str,
    event_ids: list[str],
    *,
    deadline_secs: float,
    ledger: bool,
    at: int = 0,
) -> TraceAnswer | str:
    """A node's answer over its link or a relay, or the reason for a missing answer."""
    problem = NO_WAY
    try:
        async with asyncio.timeout(deadline_secs):
            for end in find_ways(links, node):
                answer = await ask_over_link(end, node, event_ids, ledger=ledger, at=at)
                if isinstance(answer, TraceAnswer):
                    return answer
                problem = answer
    except TimeoutError:
        problem = f"it did not answer within {deadline_secs:g} s"
    return problem


async def ask_over_link(
    end: PeerLink,
    node: str,
    event_ids: list[str],
    proof_of: Sequence[Position] | None = None,
    *,
    ledger: bool = False,
    at: int = 0,
) -> TraceAnswer | str:
    """A node's answer, or the problem reported by the relay. The caller sets a deadline."""
    answered: asyncio.Future[TraceAnswer] = asyncio.get_running_loop().create_future()

    def resolve(answer: TraceAnswer) -> None:
        if not answered.done():
            answered.set_result(answer)

    target = None if end.peer == node else node
    number = end.trace.request_trace(event_ids, resolve, target, proof_of, ledger=ledger, at=at)
    try:
        answer = await answered
    finally:
        end.trace.forget_request(number)
    return f"{end.peer} cannot ask it: {answer.problem}" if answer.problem else answer


def merge_steps(archived: list[TraceStep], local: list[TraceStep]) -> list[TraceStep]:
    """The steps of an event that is archived, and perhaps still in the journal in part.

    A step in both has the same time, and the journal has more details. For a send that has left the
    outbox, the journal only has the time of the last attempt.
    """
    sent = {step.event_id for step in archived if step.what == "sent"}
    kept = [step for step in local if step.what != "sent" or step.event_id not in sent]
    known = {(step.at, step.what, step.event_id) for step in kept}
    return [*(s for s in archived if (s.at, s.what, s.event_id) not in known), *kept]


def _corr_id_of(found: "list[FoundEvent]") -> str:
    return next((event.corr_id for event in found if event.corr_id), "")


def clock_offset(asked_at: int, theirs: int, answered_at: int) -> int:
    """Return how many ms a peer's clock is ahead; 0 if within the error of the round trip."""
    difference = theirs - (asked_at + answered_at) // 2
    return difference if abs(difference) > (answered_at - asked_at) // 2 + 1 else 0


def _events_by_peer(steps: Iterable[TraceStep], own: str) -> dict[str, set[str]]:
    """Return the peers named in the steps, each with the events it took part in."""
    parties: dict[str, set[str]] = {}
    for step in steps:
        if step.peer not in ("", own):
            parties.setdefault(step.peer, set()).add(step.event_id)
    return parties


def _journey_step(node: str, step: TraceStep, ahead: int) -> JourneyStep:
    details = (step.kind, step.agent, step.to_agent, step.peer, step.detail)
    return JourneyStep(step.at - ahead, node, step.what, step.event_id, *details)


def sort_steps(steps: Iterable[JourneyStep]) -> list[JourneyStep]:
    """Sort by time; within a millisecond by stage, with a reply's steps inside its turn."""
    once = list(dict.fromkeys(steps))
    replies = {step.event_id for step in once if step.kind == "reply"}

    def sort_key(step: JourneyStep) -> tuple[int, float, str]:
        stage: float = _STAGE_ORDER.get(step.what, len(_STAGES))
        if step.event_id in replies:
            stage = _STAGE_ORDER["reply"] + stage / 100
        return step.at, stage, step.event_id

    return sorted(once, key=sort_key)


def create_router(tracer: JourneyTracer) -> Router:
    @get("/{ref:str}", summary="The journey of an event or a conversation, through all gateways")
    async def trace(ref: PathName, conversation: FromQuery[bool] = False) -> Journey:
        return await tracer.trace_journey(ref, conversation)

    return Router("/v1/trace", route_handlers=[trace])
