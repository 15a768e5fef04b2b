"""Agent ownership: an agent that registers at another gateway moves there with its mail.

If an agent registers here while the room says another gateway owns it, this gateway asks the owner
for it (delivery/transfers.py). Once no client has listened to the agent's mailbox for a moment,
the owner signs the transfer and publishes it in the room; the new owner publishes the same. Then
the old owner removes its registration, and forwards the mail (delivery/forwarding.py). Each step is
decided from the room and the journal, so it is taken again after a crash.
"""

import logging
from typing import Any

from litestar.params import JSONBody

from gatepost.delivery.transfers import TransferRequest
from gatepost.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    UnknownAgent,
)
from gatepost.events import check_agent_id
from gatepost.gateway.api.room_views import ClaimRequest, RoomAgentView
from gatepost.gateway.api.route_decorators import get, post
from gatepost.gateway.api.route_parameters import PathName
from gatepost.gateway.peers.record_publisher import RecordPublisher
from gatepost.journal import Tx
from gatepost.journal.audit import record_audit_entry
from gatepost.room import (
    AgentRecord,
    EffectiveRecords,
    OwnedAgent,
    RevocationRecord,
    RoomChange,
    claim_key,
    sign_transfer,
    transfer_claim,
)
from gatepost.room.records import key_subject

log = logging.getLogger(__name__)

_CHECK_SECS = 0.25
# How often the owner is asked again for an agent that is served here.
_ASK_AGAIN_MS = 15_000
# A claim carries at most this many transfers since the last one by a backbone node.
_MAX_TRANSFERS = 8


class AgentOwnership:
    def __init__(self, publisher: RecordPublisher) -> None:
        self._publisher = publisher
        self._replica = publisher.replica
        self._core = core = publisher.replica.core
        self._node_id = core.node.id
        self._transfers = core.delivery.transfers
        self._grace_ms = int(core.settings.delivery.transfer_grace_secs * 1000)
        self._unserved_since: dict[str, int] = {}
        # Agents hosted here and owned elsewhere, until an agent or its record changes.
        self._away: list[str] = []
        self._hosted: frozenset[str] = frozenset()
        self._is_away_stale = True
        self._replica.watch_changes(self._note_change)

    async def run(self) -> None:
        """Check ownership until cancelled."""
        failure = "agent ownership was not checked"
        await self._core.background.repeat_forever(_CHECK_SECS, self.check_ownership, failure)

    async def check_ownership(self) -> None:
        """Answer requests, ask for agents served here, and unregister agents given away."""
        if not self._publisher.is_ready:
            return
        requests = await self._core.read(self._transfers.requests)
        asked = {request.agent for request in requests}
        self._unserved_since = {id: at for id, at in self._unserved_since.items() if id in asked}
        for request in requests:
            await self._answer_request(request)
        if self._is_away_stale:
            self._is_away_stale = False
            self._away = await self._find_away()
        if away := self._away:
            await self._core.commit(lambda tx: self._check_agents_owned_elsewhere(tx, away))

    def note_agents_changed(self) -> None:
        self._is_away_stale = True

    def _note_change(self, change: RoomChange | None) -> None:
        """Another owner shows in a record of the agent, or in the revocation of its owner."""
        self._is_away_stale |= change is None or any(
            key_subject(signed.key) in self._hosted
            if signed.map == "agents"
            else isinstance(signed.data, RevocationRecord)
            for signed in change.changed
        )

    async def _find_away(self) -> list[str]:
        """Return the agents that are hosted here and owned elsewhere."""
        agents = await self._core.read(self._core.agents.list)
        self._hosted = frozenset(a.id for a in agents)
        return [
            a.id
            for a in agents
            if not a.standby and self._owner_of(a.id) not in (None, self._node_id)
        ]

    @property
    def _room_view(self) -> EffectiveRecords:
        return self._replica.current_room.effective

    def _owner_of(self, agent: str) -> str | None:
        owned = self._room_view.agents.get(agent)
        return None if owned is None else owned.gateway

    # -- giving an agent to a peer

    async def _answer_request(self, request: TransferRequest) -> None:
        agent, node = request.agent, request.node
        if (
            self._owner_of(agent) != self._node_id
            or node == self._node_id
            or node not in self._room_view.nodes
        ):
            await self._core.commit(lambda tx: self._transfers.forget_request(tx, request))
            return
        served = await self._core.commit(lambda tx: self._core.dispatcher.has_consumer(tx, agent))
        now = self._core.clock.now()
        if served:
            self._unserved_since.pop(agent, None)
        if request.take_over or (not served and self._is_unserved(agent, now)):
            await self._give_agent(agent, node)
        elif served and now - request.at >= self._grace_ms:
            log.info("%s asked for agent %s, which is served here: refused", node, agent)
            await self._core.commit(lambda tx: self._transfers.refuse_request(tx, request))

    def _is_unserved(self, agent: str, now: int) -> bool:
        """Return whether no client has listened to its mailbox for the grace time."""
        return now - self._unserved_since.setdefault(agent, now) >= self._grace_ms

    async def _give_agent(self, agent: str, node: str) -> None:
        """Publish in the room that the agent is theirs. The other steps follow from that."""
        async with self._publisher.claims_lock:
            owned, own = self._room_view.agents.get(agent), self._room_view.nodes.get(self._node_id)
            if owned is None or own is None or owned.gateway != self._node_id:
                return
            claim = self._transfer_claim(owned, node, by_backbone=own.is_backbone)
            if len(claim.transfers) > _MAX_TRANSFERS:
                raise Conflict(
                    f"agent {agent} has moved too often between edge nodes; on a backbone node run"
                    f" `gatepost agent claim {agent} --override --node {node}`"
                )
            await self._publish_claim(agent, claim)
        log.info("agent %s lives behind %s now", agent, node)

    def _transfer_claim(self, owned: OwnedAgent, taker: str, *, by_backbone: bool) -> AgentRecord:
        """Return the claim, with our signed transfer, that we and then the taker publish."""
        key, epoch = self._core.node.key, owned.record.epoch + 1
        step = sign_transfer(key, self._node_id, taker, owned.id, epoch)
        return transfer_claim(owned.record, step, by_backbone=by_backbone)

    async def _publish_claim(self, agent: str, claim: AgentRecord) -> None:
        key = ("agents", claim_key(agent, self._node_id))
        await self._publisher.publish_records({key: claim})

    # -- agents hosted here and owned elsewhere

    def _check_agents_owned_elsewhere(self, tx: Tx, agents: list[str]) -> None:
        for agent in agents:
            served = self._core.dispatcher.has_consumer(tx, agent)
            if self._is_lost(agent, self._core.agents.registered_at(tx, agent), served):
                self._unregister_agent(tx, agent)
            elif served and tx.now >= self._transfers.asked.get(agent, 0) + _ASK_AGAIN_MS:
                self._transfers.ask_owner(tx, agent)

    def _unregister_agent(self, tx: Tx, agent: str) -> None:
        """Unregister an agent: mail for it is refused, and senders look for it elsewhere."""
        if self._core.agents.is_registered(tx, agent):
            self._core.agents.remove(tx, agent, "transfer")

    def _is_lost(self, agent: str, registered_at: int, served: bool) -> bool:
        """Return whether the agent was ours, is another node's now, and did not register again."""
        key = ("agents", claim_key(agent, self._node_id), self._core.node.key.public)
        signed, owned = (
            self._replica.current_room.document.record_at(key),
            self._room_view.agents.get(agent),
        )
        claim = signed.data if signed else None
        if signed is None or owned is None or not isinstance(claim, AgentRecord) or claim.standby:
            return False
        if claim.gateway != self._node_id:
            return registered_at <= signed.at
        return not served and claim.epoch < owned.record.epoch

    # -- requests of the operator

    def list_agents(self) -> list[RoomAgentView]:
        return [_agent_view(owned) for _, owned in sorted(self._room_view.agents.items())]

    async def claim_agent(self, agent: str, wanted: ClaimRequest) -> RoomAgentView:
        """Move an agent of the room to this gateway, or to another one."""
        owned = self._room_view.agents.get(agent)
        if owned is None:
            raise UnknownAgent(f"the room knows no agent {agent!r}; `gatepost agent add {agent}`")
        if wanted.override:
            return await self._override_owner(owned, wanted.node or self._node_id)
        if wanted.node not in (None, self._node_id):
            raise InvalidRequest("run this on the gateway the agent moves to, or use --override")
        asked = await self._core.commit(lambda tx: self._request_takeover(tx, owned))
        shown = _agent_view(owned)
        shown.asked = asked
        return shown

    def _request_takeover(self, tx: Tx, owned: OwnedAgent) -> str | None:
        self._core.agents.register(tx, owned.id, standby=False)
        record_audit_entry(tx, "operator", "agent.claim", owned.id, "asked its owner")
        # Routing may not have heard of the agent yet.
        return self._transfers.ask_owner(tx, owned.id, take_over=True, owner=owned.gateway)

    async def _override_owner(self, owned: OwnedAgent, node: str) -> RoomAgentView:
        """Give an agent to `node` as a backbone node, when its owner cannot be asked."""
        own = self._room_view.nodes.get(self._node_id)
        if own is None or not own.is_backbone:
            raise Forbidden("only a backbone node can override an owner; run this on one")
        self._replica.check_members(node)
        await self._core.commit(lambda tx: self._record_override(tx, owned.id, node))
        async with self._publisher.claims_lock:
            owned = self._room_view.agents.get(owned.id, owned)
            if owned.gateway != node:
                await self._publish_claim(
                    owned.id, self._transfer_claim(owned, node, by_backbone=True)
                )
        return _agent_view(self._room_view.agents[owned.id])

    def _record_override(self, tx: Tx, agent: str, node: str) -> None:
        if node == self._node_id:
            self._core.agents.register(tx, agent, standby=False)
        record_audit_entry(
            tx, "operator", "agent.claim", agent, f"overridden: it lives behind {node}"
        )


def _agent_view(owned: OwnedAgent) -> RoomAgentView:
    return RoomAgentView(owned.id, owned.gateway, owned.record.epoch, owned.standbys, owned.rivals)


def create_routes(ownership: AgentOwnership) -> list[Any]:
    @get("/v1/room/agents", summary="Every agent of the room, and where it lives")
    async def agents() -> list[RoomAgentView]:
        return ownership.list_agents()

    @post("/v1/room/agents/{agent:str}/claim", status_code=200, summary="Let an agent move here")
    async def claim(agent: PathName, data: JSONBody[ClaimRequest]) -> RoomAgentView:
        return await ownership.claim_agent(check_agent_id(agent), data)

    return [agents, claim]
