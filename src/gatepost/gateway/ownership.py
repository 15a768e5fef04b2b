"""Agent ownership: an agent that registers at another gateway moves there with its mail.

If an agent registers here while the room says another gateway owns it, this gateway asks the owner
for it (delivery/transfers.py). Once no client has listened to the agent's mailbox for a moment,
the owner signs the transfer and publishes it in the room; the new owner publishes the same. Then
the old owner removes its registration, and forwards the mail. Each step is decided from the room
and the journal, so it is taken again after a crash.
"""

import asyncio
import logging
from typing import Any

from litestar.params import FromPath, JSONBody

from gatepost.delivery.transfers import Request
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
from gatepost.journal.audit import record_audit_entry
from gatepost.room import (
    AgentRecord,
    EffectiveRecords,
    OwnedAgent,
    claim_key,
    sign_transfer,
    transfer_claim,
)
from gatepost.wire import AgentInfo as LocalAgent

log = logging.getLogger(__name__)

Name = FromPath[str]

_LOOK_SECS = 0.25
# How often the owner is asked again for an agent that is served here.
_ASK_AGAIN_MS = 15_000
# A claim carries at most this many transfers since the last one by a backbone node.
_MOST_TRANSFERS = 8


class Ownership:
    def __init__(self, replica: RoomKeeper) -> None:
        self._keeper = replica
        self._core = replica.core
        self._me = replica.core.node.id
        self._transfers = replica.core.messages.transfers
        self._grace = int(replica.core.settings.delivery.handover_grace_secs * 1000)
        self._unserved: dict[str, int] = {}

    async def run(self) -> None:
        """Check ownership until cancelled."""
        while True:
            try:
                await self.look()
            except GatepostError as error:
                log.warning("agent ownership was not checked: %s", error.message)
            except Exception:
                log.exception("agent ownership was not checked")
            await asyncio.sleep(_LOOK_SECS)

    async def look(self) -> None:
        """Answer requests, ask for agents served here, and unregister agents given away."""
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

    def _journal(self, tx: Tx) -> tuple[list[Request], list[LocalAgent]]:
        return self._transfers.requests(tx), self._core.agents.list(tx)

    @property
    def _view(self) -> EffectiveRecords:
        return self._keeper.current.effective

    def _owner(self, agent: str) -> str | None:
        owned = self._view.agents.get(agent)
        return None if owned is None else owned.gateway

    # -- giving an agent to a peer

    async def _answer(self, request: Request) -> None:
        agent, node = request.agent, request.node
        if self._owner(agent) != self._me or node == self._me or node not in self._view.nodes:
            await self._core.commit(lambda tx: self._transfers.forget(tx, request))
            return
        served = await self._core.commit(lambda tx: self._core.dispatcher.has_consumer(tx, agent))
        now = self._core.clock.now()
        if served:
            self._unserved.pop(agent, None)
        if request.take_over or (not served and self._is_left_alone(agent, now)):
            await self._give(agent, node)
        elif served and now - request.at >= self._grace:
            log.info("%s asked for agent %s, which is served here: refused", node, agent)
            await self._core.commit(lambda tx: self._transfers.refuse(tx, request))

    def _is_left_alone(self, agent: str, now: int) -> bool:
        """Return whether no client has listened to its mailbox for the grace time."""
        return now - self._unserved.setdefault(agent, now) >= self._grace

    async def _give(self, agent: str, node: str) -> None:
        """Publish in the room that the agent is theirs. The other steps follow from that."""
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

    def _claim(self, owned: OwnedAgent, taker: str, *, by_backbone: bool) -> AgentRecord:
        """Return the claim, with our signed transfer, that we and then the taker publish."""
        key, epoch = self._core.node.key, owned.record.epoch + 1
        step = sign_transfer(key, self._me, taker, owned.id, epoch)
        return transfer_claim(owned.record, step, by_backbone=by_backbone)

    async def _publish(self, agent: str, claim: AgentRecord) -> None:
        await self._keeper.publish({("agents", claim_key(agent, self._me)): claim})

    # -- agents hosted here and owned elsewhere

    def _look_at(self, tx: Tx, agents: list[LocalAgent]) -> None:
        for agent in agents:
            served = self._core.dispatcher.has_consumer(tx, agent.id)
            if self._is_lost(agent, served):
                self._let_go(tx, agent.id)
            elif served and tx.now >= self._transfers.asked.get(agent.id, 0) + _ASK_AGAIN_MS:
                self._transfers.ask(tx, agent.id)

    def _let_go(self, tx: Tx, agent: str) -> None:
        """Unregister an agent: mail for it is refused, and senders look for it elsewhere."""
        if self._core.agents.known(tx, agent):
            self._core.agents.remove(tx, agent, "transfer")

    def _is_lost(self, agent: LocalAgent, served: bool) -> bool:
        """Return whether the agent was ours, is another node's now, and did not register again."""
        key = ("agents", claim_key(agent.id, self._me), self._core.node.key.public)
        signed, owned = (
            self._keeper.current.document.record_at(key),
            self._view.agents.get(agent.id),
        )
        claim = signed.data if signed else None
        if signed is None or owned is None or not isinstance(claim, AgentRecord) or claim.standby:
            return False
        if claim.gateway != self._me:
            return agent.seen_at <= signed.at
        return not served and claim.epoch < owned.record.epoch

    # -- requests of the operator

    def agents(self) -> list[RoomAgent]:
        return [_shown(owned) for _, owned in sorted(self._view.agents.items())]

    async def claim(self, agent: str, wanted: Claiming) -> RoomAgent:
        """Move an agent of the room to this gateway, or to another one."""
        owned = self._view.agents.get(agent)
        if owned is None:
            raise UnknownAgent(f"the room knows no agent {agent!r}; `gatepost agent add {agent}`")
        if wanted.override:
            return await self._override(owned, wanted.node or self._me)
        if wanted.node not in (None, self._me):
            raise InvalidRequest("run this on the gateway the agent moves to, or use --override")
        asked = await self._core.commit(lambda tx: self._take_over(tx, agent))
        shown = _shown(owned)
        shown.asked = asked
        return shown

    def _take_over(self, tx: Tx, agent: str) -> str | None:
        self._core.agents.register(tx, agent, standby=False)
        record_audit_entry(tx, "operator", "agent.claim", agent, "asked its owner")
        return self._transfers.ask(tx, agent, take_over=True)

    async def _override(self, owned: OwnedAgent, node: str) -> RoomAgent:
        """Give an agent to `node` as a backbone node, when its owner cannot be asked."""
        own = self._view.nodes.get(self._me)
        if own is None or not own.is_backbone:
            raise Forbidden("only a backbone node can override an owner; run this on one")
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
        record_audit_entry(
            tx, "operator", "agent.claim", agent, f"overridden: it lives behind {node}"
        )


def _shown(owned: OwnedAgent) -> RoomAgent:
    return RoomAgent(owned.id, owned.gateway, owned.record.epoch, owned.standbys, owned.rivals)


def routes(ownership: Ownership) -> list[Any]:
    @get("/v1/room/agents", summary="Every agent of the room, and where it lives")
    async def agents() -> list[RoomAgent]:
        return ownership.agents()

    @post("/v1/room/agents/{agent:str}/claim", status_code=200, summary="Let an agent move here")
    async def claim(agent: Name, data: JSONBody[Claiming]) -> RoomAgent:
        return await ownership.claim(check_agent_id(agent), data)

    return [agents, claim]
