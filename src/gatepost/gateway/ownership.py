"""Ownership moves with the agent: who is asked for one gives it, unless it is served here.

An agent that registers here while the room says it lives behind another gateway is asked for
(delivery/transfers.py). Its owner, once nobody has listened to the agent's mailbox for a moment,
signs the transfer and says so in the room; the new owner says the same. Then the old one lets go of
its registration, and its mail follows (delivery/forwarding.py). Each step is taken again after a
crash, for it is decided from what the room and the journal say.
"""

import asyncio
import logging
from typing import Any

from litestar.params import FromPath, JSONBody

from gatepost.delivery.transfers import TransferRequest
from gatepost.errors import (
    Conflict,
    Forbidden,
    GatepostError,
    InvalidRequest,
    UnknownAgent,
    UnknownNode,
)
from gatepost.events import check_agent_id
from gatepost.gateway.room import RoomKeeper
from gatepost.gateway.route import get, post
from gatepost.gateway.views import Claiming, RoomAgent
from gatepost.journal import Tx
from gatepost.journal.audit import audit
from gatepost.room import Agent, Owned, View, claim_key, handed_over, transfer
from gatepost.wire import Agent as LocalAgent

log = logging.getLogger(__name__)

Name = FromPath[str]

_LOOK_SECS = 0.25
# Who is served here but owned elsewhere is asked for again this often.
_ASK_AGAIN_MS = 15_000
# A claim carries no more transfers than this since a backbone node's last word.
_MOST_TRANSFERS = 8


class Ownership:
    def __init__(self, keeper: RoomKeeper) -> None:
        self._keeper = keeper
        self._core = keeper.core
        self._me = keeper.core.node.id
        self._transfers = keeper.core.delivery.transfers
        self._grace = int(keeper.core.settings.delivery.handover_grace_secs * 1000)
        self._unserved: dict[str, int] = {}

    async def run(self) -> None:
        """For as long as the gateway runs."""
        while True:
            try:
                await self.look()
            except GatepostError as error:
                log.warning("an agent waits for its gateway: %s", error.message)
            except Exception:
                log.exception("an agent waits for its gateway")
            await asyncio.sleep(_LOOK_SECS)

    async def look(self) -> None:
        """Answer who asks, ask for what is served here, let go of what is not ours any more."""
        if self._keeper.room is None or not self._keeper.may_speak.is_set():
            return
        requests, agents = await self._core.read(self._journal)
        asked = {request.agent for request in requests}
        self._unserved = {id: at for id, at in self._unserved.items() if id in asked}
        for request in requests:
            await self._answer(request)
        away = [a for a in agents if not a.standby and self._owner(a.id) not in (None, self._me)]
        if away:
            await self._core.commit(lambda tx: self._look_at(tx, away))

    def _journal(self, tx: Tx) -> tuple[list[TransferRequest], list[LocalAgent]]:
        return self._transfers.requests(tx), self._core.agents.list(tx)

    @property
    def _view(self) -> View:
        return self._keeper.current.view

    def _owner(self, agent: str) -> str | None:
        owned = self._view.agents.get(agent)
        return None if owned is None else owned.gateway

    # -- giving

    async def _answer(self, request: TransferRequest) -> None:
        agent, node = request.agent, request.node
        if self._owner(agent) != self._me or node == self._me or node not in self._view.nodes:
            await self._core.commit(lambda tx: self._transfers.forget_request(tx, request))
            return
        served = await self._core.commit(lambda tx: self._core.dispatcher.is_served(tx, agent))
        now = self._core.clock.now()
        if served:
            self._unserved.pop(agent, None)
        if request.take_over or (not served and self._is_left_alone(agent, now)):
            await self._give(agent, node)
        elif served and now - request.at >= self._grace:
            log.info("%s asks for agent %s, which is served here", node, agent)
            await self._core.commit(lambda tx: self._transfers.refuse_request(tx, request))

    def _is_left_alone(self, agent: str, now: int) -> bool:
        """Whether nobody has listened to its mailbox for a while."""
        return now - self._unserved.setdefault(agent, now) >= self._grace

    async def _give(self, agent: str, node: str) -> None:
        """Say in the room that the agent is theirs. The rest follows from that."""
        async with self._keeper.speaking:
            owned, own = self._view.agents.get(agent), self._view.nodes.get(self._me)
            if owned is None or own is None or owned.gateway != self._me:
                return
            claim = self._claim(owned, node, by_backbone=own.is_backbone)
            if len(claim.transfers) > _MOST_TRANSFERS:
                raise Conflict(
                    f"agent {agent} has moved too often between edge nodes; on a backbone node run"
                    f" `gatepost agent claim {agent} --override --node {node}`"
                )
            await self._publish(agent, claim)
        log.info("agent %s lives behind %s now", agent, node)

    def _claim(self, owned: Owned, taker: str, *, by_backbone: bool) -> Agent:
        """What we and then the taker say, once we have signed for it."""
        key, epoch = self._core.node.key, owned.record.epoch + 1
        step = transfer(key, self._me, taker, owned.id, epoch)
        return handed_over(owned.record, step, by_backbone=by_backbone)

    async def _publish(self, agent: str, claim: Agent) -> None:
        await self._keeper.publish({("agents", claim_key(agent, self._me)): claim})

    # -- what is hosted here and owned elsewhere

    def _look_at(self, tx: Tx, agents: list[LocalAgent]) -> None:
        for agent in agents:
            served = self._core.dispatcher.is_served(tx, agent.id)
            if self._is_lost(agent, served):
                self._let_go(tx, agent.id)
            elif served and tx.now >= self._transfers.asked.get(agent.id, 0) + _ASK_AGAIN_MS:
                self._transfers.ask_owner(tx, agent.id)

    def _let_go(self, tx: Tx, agent: str) -> None:
        """From now on mail for it is refused, and its senders look for it elsewhere."""
        if self._core.agents.is_registered(tx, agent):
            self._core.agents.remove(tx, agent, "transfer")

    def _is_lost(self, agent: LocalAgent, served: bool) -> bool:
        """Whether it was ours, was not registered anew since, and is somebody else's now."""
        place = ("agents", claim_key(agent.id, self._me), self._core.node.key.public)
        signed, owned = self._keeper.current.document.get(place), self._view.agents.get(agent.id)
        said = signed.data if signed else None
        if signed is None or owned is None or not isinstance(said, Agent) or said.standby:
            return False
        if said.gateway != self._me:
            return agent.seen_at <= signed.at
        return not served and said.epoch < owned.record.epoch

    # -- what people ask for

    def agents(self) -> list[RoomAgent]:
        return [_shown(owned) for _, owned in sorted(self._view.agents.items())]

    async def claim(self, agent: str, wanted: Claiming) -> RoomAgent:
        """Make an agent of the room live behind this gateway, or behind another."""
        owned = self._view.agents.get(agent)
        if owned is None:
            raise UnknownAgent(f"the room knows no agent {agent!r}; `gatepost agent add {agent}`")
        if wanted.override:
            return await self._override(owned, wanted.node or self._me)
        if wanted.node not in (None, self._me):
            raise InvalidRequest("an agent is asked for by the gateway it goes to, or overridden")
        asked = await self._core.commit(lambda tx: self._take_over(tx, agent))
        shown = _shown(owned)
        shown.asked = asked
        return shown

    def _take_over(self, tx: Tx, agent: str) -> str | None:
        self._core.agents.register(tx, agent, standby=False)
        audit(tx, "operator", "agent.claim", agent, "asked its owner")
        return self._transfers.ask_owner(tx, agent, take_over=True)

    async def _override(self, owned: Owned, node: str) -> RoomAgent:
        """A backbone node's word, for an agent whose owner cannot be asked."""
        own = self._view.nodes.get(self._me)
        if own is None or not own.is_backbone:
            raise Forbidden("only a backbone node takes an agent from its owner; do it on one")
        if node not in self._view.nodes:
            raise UnknownNode(f"no node {node!r} is in the room; `gatepost nodes` shows all")
        await self._core.commit(lambda tx: self._overridden(tx, owned.id, node))
        async with self._keeper.speaking:
            owned = self._view.agents.get(owned.id, owned)
            if owned.gateway != node:
                await self._publish(owned.id, self._claim(owned, node, by_backbone=True))
        return _shown(self._view.agents[owned.id])

    def _overridden(self, tx: Tx, agent: str, node: str) -> None:
        if node == self._me:
            self._core.agents.register(tx, agent, standby=False)
        audit(tx, "operator", "agent.claim", agent, f"overridden: it lives behind {node}")


def _shown(owned: Owned) -> RoomAgent:
    return RoomAgent(owned.id, owned.gateway, owned.record.epoch, owned.standbys, owned.rivals)


def routes(ownership: Ownership) -> list[Any]:
    @get("/v1/room/agents", summary="Every agent of the room, and where it lives")
    async def agents() -> list[RoomAgent]:
        return ownership.agents()

    @post("/v1/room/agents/{agent:str}/claim", status_code=200, summary="Let an agent move here")
    async def claim(agent: Name, data: JSONBody[Claiming]) -> RoomAgent:
        return await ownership.claim(check_agent_id(agent), data)

    return [agents, claim]
