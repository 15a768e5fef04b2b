"""Asks every linked gateway how it reaches this one, and answers those that ask."""

import asyncio
from functools import partial

from gatepost import __version__
from gatepost.core.gateway_core import Core
from gatepost.delivery.frames import ReachAnswer, ReachRequest
from gatepost.links.peer_links import PeerLink
from gatepost.links.reach_part import ReachAnswered
from gatepost.links.service.connection_links import ConnectionLinks
from gatepost.links.service.dialer import Dialer
from gatepost.wire.room_views import PeerReach

# A firewall that drops packets shows only by silence; the operator waits for this.
_VISIT_SECS = 8.0
_ANSWER_SECS = 10.0


class ReachChecks:
    def __init__(self, core: Core, links: ConnectionLinks, dialer: Dialer) -> None:
        self._core = core
        self._links = links
        self._dialer = dialer
        self._visits: set[asyncio.Task[None]] = set()
        links.reach_desk.reach_back = self._begin_visit

    async def check_peers(self) -> list[PeerReach]:
        """What every gateway that is linked to this one says of it."""
        return list(await asyncio.gather(*map(self._ask_peer, self._links.greeted_links())))

    # -- for those that ask

    def _begin_visit(self, asker: str, request: ReachRequest, answered: ReachAnswered) -> None:
        task = asyncio.get_running_loop().create_task(self._visit(asker, request, answered))
        self._visits.add(task)
        task.add_done_callback(self._visits.discard)

    async def _visit(self, asker: str, request: ReachRequest, answered: ReachAnswered) -> None:
        problem: str | None = f"its address does not answer within {_VISIT_SECS:g} s"
        answer = partial(ReachAnswer, request.id, version=__version__)
        try:
            async with asyncio.timeout(_VISIT_SECS):
                problem = await self._dialer.visit_member(asker)
        except TimeoutError:
            pass
        finally:
            known = problem is not None
            answered(
                answer(self._core.clock.now(), has_address=known, problem=(problem or "")[:500])
            )

    # -- asking

    async def _ask_peer(self, link: PeerLink) -> PeerReach:
        answered: asyncio.Future[ReachAnswer] = asyncio.get_running_loop().create_future()
        began = asyncio.get_running_loop().time()

        def resolve(answer: ReachAnswer) -> None:
            if not answered.done():
                answered.set_result(answer)

        number = link.reach.request_reach(resolve)
        try:
            async with asyncio.timeout(_ANSWER_SECS):
                answer = await answered
        except TimeoutError:
            return PeerReach(link.peer, problem="it did not answer", is_silent=True)
        finally:
            link.reach.forget_request(number)
        took = int((asyncio.get_running_loop().time() - began) * 1000)
        ahead = _clock_offset(answer.now - self._core.clock.now(), took)
        return PeerReach(
            link.peer,
            answer.version,
            ahead,
            answer.has_address,
            answer.problem,
            answer.is_busy,
        )


def _clock_offset(difference: int, took_ms: int) -> int:
    """How far a peer's clock is ahead of ours; what the round trip explains does not count.

    The peer looks at its clock just before it answers.
    """
    return difference if abs(difference) > took_ms else 0
