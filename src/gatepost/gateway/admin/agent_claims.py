"""Operator API for the owners of agents: claim an agent, give one away, override a dead owner."""

import asyncio
from typing import Any

from litestar.params import JSONBody
from msgspec.structs import replace

from gatepost.errors import Forbidden, InvalidRequest, UnknownAgent
from gatepost.events import check_agent_id
from gatepost.journal import Tx
from gatepost.journal.audit import record_audit_entry
from gatepost.listening.route_decorators import get, post
from gatepost.listening.route_parameters import PathName
from gatepost.room import AgentRecord, EffectiveRecords, OwnedAgent, claim_key
from gatepost.room.roles import Act
from gatepost.room.service.agent_transfers import AgentOwnership
from gatepost.wire.room_views import ClaimRequest, GiveRequest, RoomAgentView

# How long a claim waits for the owner's answer.
_ANSWER_SECS = 5.0
_LOOK_SECS = 0.1


class AgentClaims:
    def __init__(self, ownership: AgentOwnership) -> None:
        self._ownership = ownership
        self._announcer = ownership.announcer
        self._replica = ownership.announcer.replica
        self._core = core = ownership.announcer.replica.core
        self._node_id = core.node.id
        self._transfers = core.delivery.transfers

    @property
    def _room_view(self) -> EffectiveRecords:
        return self._replica.current_room.effective

    async def list_agents(self) -> list[RoomAgentView]:
        views = [_agent_view(owned) for _, owned in sorted(self._room_view.agents.items())]
        await self._replica.wait_until_routed()
        return views

    async def claim_agent(self, agent: str, wanted: ClaimRequest) -> RoomAgentView:
        """Move an agent of the room to this gateway, or to another one."""
        owned = self._find_agent(agent)
        if wanted.override:
            return await self._override_owner(owned, wanted.node or self._node_id)
        if wanted.node not in (None, self._node_id):
            raise InvalidRequest("run this on the gateway the agent moves to, or use --override")
        if owned.gateway == self._node_id:
            return _agent_view(owned)
        return await self._ask_and_wait(owned)

    async def give_agent(self, agent: str, node: str) -> RoomAgentView:
        """Give an agent of this gateway to another one, even if it is served here."""
        owned = self._find_agent(agent)
        if owned.gateway != self._node_id:
            raise Forbidden(f"agent {agent} lives behind {owned.gateway}; run this there")
        self._replica.check_members(node)
        if node != self._node_id:
            await self._ownership.give_agent(agent, node)
        return _agent_view(self._find_agent(agent))

    def _find_agent(self, agent: str) -> OwnedAgent:
        owned = self._room_view.agents.get(agent) or self._find_orphan(agent)
        if owned is None:
            raise UnknownAgent(f"the room knows no agent {agent!r}; `gatepost agent add {agent}`")
        return owned

    def _find_orphan(self, agent: str) -> OwnedAgent | None:
        """An agent whose owner was revoked. It waits for an override."""
        room = self._replica.current_room
        known = room.owners.known.get(agent)
        if known is None:
            return None
        for key in room.effective.membership.keys.get(known.gateway, ()):
            signed = room.document.record_at(("agents", claim_key(agent, known.gateway), key))
            if signed is not None and isinstance(signed.data, AgentRecord):
                return OwnedAgent(agent, replace(signed.data, epoch=known.epoch))
        return None

    async def _ask_and_wait(self, owned: OwnedAgent) -> RoomAgentView:
        """Ask the owner; raise Forbidden, with its reason, if it refuses in time."""
        was_hosted = await self._core.commit(lambda tx: self._request_agent(tx, owned))
        deadline = asyncio.get_running_loop().time() + _ANSWER_SECS
        while asyncio.get_running_loop().time() < deadline:
            if self._ownership.owner_of(owned.id) == self._node_id:
                return _agent_view(self._find_agent(owned.id))
            if (refusal := self._transfers.refused.get(owned.id)) is not None:
                if not was_hosted:
                    await self._core.commit(
                        lambda tx: self._ownership.unregister_agent(tx, owned.id)
                    )
                raise Forbidden(f"agent {owned.id}: {refusal.explain(owned.id, self._node_id)}")
            await self._replica.changes.wait_for_change(self._replica.changes.count, _LOOK_SECS)
        shown = _agent_view(owned)
        shown.asked = owned.gateway
        return shown

    def _request_agent(self, tx: Tx, owned: OwnedAgent) -> bool:
        """Register the agent here and ask its owner; return whether it was registered before."""
        was_hosted = self._core.agents.is_registered(tx, owned.id)
        self._core.agents.register(tx, owned.id, standby=False)
        record_audit_entry(tx, "operator", "agent.claim", owned.id, "asked its owner")
        # Routing may not know the agent yet.
        self._transfers.ask_owner(tx, owned.id, owner=owned.gateway)
        return was_hosted

    async def _override_owner(self, owned: OwnedAgent, node: str) -> RoomAgentView:
        """As a backbone node, give an agent to `node` because its owner is gone."""
        own = self._room_view.nodes.get(self._node_id)
        if own is None or not own.may(Act.OVERRIDE_OWNER):
            raise Forbidden("only a backbone node can override an owner; run this on one")
        self._replica.check_members(node)
        self._check_owner_gone(owned)
        await self._core.commit(lambda tx: self._record_override(tx, owned.id, node))
        async with self._announcer.claims_lock:
            owned = self._room_view.agents.get(owned.id, owned)
            if owned.gateway != node:
                await self._ownership.publish_claim(
                    owned.id, self._ownership.make_transfer(owned, node, by_backbone=True)
                )
        return _agent_view(self._room_view.agents[owned.id])

    def _check_owner_gone(self, owned: OwnedAgent) -> None:
        """Raise Forbidden for an override that no gateway would follow."""
        owner = self._room_view.nodes.get(owned.gateway or "")
        if owner is None or owner.id == self._node_id or self._replica.liveness.is_dead(owner):
            return
        silent, needed = (
            self._replica.liveness.seconds_silent(owner),
            self._core.settings.ownership.dead_after_secs,
        )
        raise Forbidden(
            f"{owner.id} owns agent {owned.id} and was heard of {silent:.0f} s ago; it can be"
            f" overridden after {needed:.0f} s of silence (ownership.dead_after_secs), or once it"
            f" is revoked. Ask it with `gatepost agent claim {owned.id}`, or let its operator run"
            f" `gatepost agent give {owned.id} NODE`"
        )

    def _record_override(self, tx: Tx, agent: str, node: str) -> None:
        if node == self._node_id:
            self._core.agents.register(tx, agent, standby=False)
        record_audit_entry(
            tx, "operator", "agent.claim", agent, f"overridden: it lives behind {node}"
        )


def _agent_view(owned: OwnedAgent) -> RoomAgentView:
    return RoomAgentView(owned.id, owned.gateway, owned.record.epoch, owned.standbys, owned.rivals)


def create_routes(claims: AgentClaims) -> list[Any]:
    @get("/v1/room/agents", summary="Every agent of the room, and where it lives")
    async def agents() -> list[RoomAgentView]:
        return await claims.list_agents()

    @post("/v1/room/agents/{agent:str}/claim", status_code=200, summary="Let an agent move here")
    async def claim(agent: PathName, data: JSONBody[ClaimRequest]) -> RoomAgentView:
        return await claims.claim_agent(check_agent_id(agent), data)

    @post("/v1/room/agents/{agent:str}/give", status_code=200, summary="Give an agent away")
    async def give(agent: PathName, data: JSONBody[GiveRequest]) -> RoomAgentView:
        return await claims.give_agent(check_agent_id(agent), data.node)

    return [agents, claim, give]
