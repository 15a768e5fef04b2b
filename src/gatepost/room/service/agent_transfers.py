"""Agent ownership: an agent that registers at another gateway moves there if its owner consents.

If an agent registers here while the room says another gateway owns it, this gateway asks the owner
for it (delivery/transfers.py). The owner gives it to the nodes of `ownership.takers`, once no
client has listened to the agent's mailbox for a moment, or to any node if its operator says so. It
signs the transfer and publishes it in the room; the new owner publishes the same. Then the old
owner removes its registration, and forwards the mail (delivery/forward.py). Each step is decided
from the room and the journal, so it is taken again after a crash.
"""

import logging
from typing import NamedTuple

from gatepost.delivery.transfers import CONSENT, SERVED, TransferRequest
from gatepost.errors import Conflict
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
from gatepost.room.service.record_announcer import RecordAnnouncer

log = logging.getLogger(__name__)

_CHECK_SECS = 0.25
# How often the owner is asked again for an agent that is served here.
_ASK_AGAIN_MS = 15_000
# A claim carries at most this many transfers since the last one by a backbone node.
_MAX_TRANSFERS = 8


class _AwayAgent(NamedTuple):
    """An agent hosted here and owned elsewhere.

    `given_at` is when we gave it away, None if we did not; `outranked` if the owner's claim is
    later than ours.
    """

    id: str
    given_at: int | None
    outranked: bool


class AgentOwnership:
    def __init__(self, announcer: RecordAnnouncer) -> None:
        self.announcer = announcer
        self._replica = announcer.replica
        self._core = core = announcer.replica.core
        self._node_id = core.node.id
        self._transfers = core.delivery.transfers
        self._grace_ms = int(core.settings.delivery.transfer_grace_secs * 1000)
        self._takers = frozenset(core.settings.ownership.takers)
        self._unserved_since: dict[str, int] = {}
        # The requests in the journal after so many of its commit groups.
        self._requests: list[TransferRequest] = []
        self._seen_groups = -1
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
        if not self.announcer.is_ready:
            return
        requests = await self._read_requests()
        asked = {request.agent for request in requests}
        self._unserved_since = {id: at for id, at in self._unserved_since.items() if id in asked}
        for request in requests:
            await self._answer_request(request)
        if self._is_away_stale:
            self._is_away_stale = False
            self._away = await self._find_away()
        # Pass values to the writer's thread, because the room belongs to this thread.
        if away := [self._describe_away(agent) for agent in self._away]:
            await self._core.commit(lambda tx: self._check_agents_owned_elsewhere(tx, away))

    async def _read_requests(self) -> list[TransferRequest]:
        """Return the requests for agents; an idle gateway reads nothing."""
        groups = self._core.writer.group_count
        if groups != self._seen_groups:
            self._requests = await self._core.read(self._transfers.requests)
            self._seen_groups = groups
        return self._requests

    def note_agents_changed(self) -> None:
        self._is_away_stale = True

    def _note_change(self, change: RoomChange | None) -> None:
        """Note records that can change an owner: an agent's, or the revocation of a node."""
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
            if not a.standby and self.owner_of(a.id) not in (None, self._node_id)
        ]

    @property
    def _room_view(self) -> EffectiveRecords:
        return self._replica.current_room.effective

    def owner_of(self, agent: str) -> str | None:
        owned = self._room_view.agents.get(agent)
        return None if owned is None else owned.gateway

    # -- giving an agent to a peer

    async def _answer_request(self, request: TransferRequest) -> None:
        agent, node = request.agent, request.node
        if (
            self.owner_of(agent) != self._node_id
            or node == self._node_id
            or node not in self._room_view.nodes
        ):
            await self._core.commit(lambda tx: self._transfers.forget_request(tx, request))
            return
        if not self._takers & {node, "*"}:
            await self._core.commit(lambda tx: self._refuse_without_consent(tx, request))
            return
        served = await self._core.commit(lambda tx: self._core.dispatcher.has_consumer(tx, agent))
        now = self._core.clock.now()
        if served:
            self._unserved_since.pop(agent, None)
            if now - request.at >= self._grace_ms:
                log.info("%s asked for agent %s, which is served here: refused", node, agent)
                await self._core.commit(
                    lambda tx: self._transfers.refuse_request(tx, request, SERVED)
                )
        elif self._is_unserved(agent, now):
            await self.give_agent(agent, node)

    def _refuse_without_consent(self, tx: Tx, request: TransferRequest) -> None:
        """Keep the agent, and tell the operator, who may give it away."""
        agent, node = request.agent, request.node
        self._transfers.refuse_request(tx, request, CONSENT)
        detail = f"{node} asks for agent {agent}; `gatepost agent give {agent} {node}` gives it"
        self._core.delivery.incidents.raise_(tx, "agent_wanted", f"{agent}/{node}", detail)
        record_audit_entry(tx, node, "agent.refused", agent, f"{node} asked for it")

    def _is_unserved(self, agent: str, now: int) -> bool:
        """Return whether no client has listened to its mailbox for the grace time."""
        return now - self._unserved_since.setdefault(agent, now) >= self._grace_ms

    async def give_agent(self, agent: str, node: str) -> None:
        """Publish that the agent belongs to `taker`. The other steps follow from that."""
        async with self.announcer.claims_lock:
            owned, own = self._room_view.agents.get(agent), self._room_view.nodes.get(self._node_id)
            if owned is None or own is None or owned.gateway != self._node_id:
                return
            claim = self.make_transfer(owned, node, by_backbone=own.is_backbone)
            if len(claim.transfers) > _MAX_TRANSFERS:
                raise Conflict(
                    f"agent {agent} has moved too often between edge nodes; on a backbone node run"
                    f" `gatepost agent claim {agent} --override --node {node}`"
                )
            await self.publish_claim(agent, claim)
        log.info("agent %s lives behind %s now", agent, node)

    def make_transfer(self, owned: OwnedAgent, taker: str, *, by_backbone: bool) -> AgentRecord:
        """Return the claim, with our signed transfer, that we and then the taker publish."""
        key, epoch = self._core.node.key, owned.record.epoch + 1
        step = sign_transfer(key, self._node_id, taker, owned.id, epoch)
        return transfer_claim(owned.record, step, by_backbone=by_backbone)

    async def publish_claim(self, agent: str, claim: AgentRecord) -> None:
        key = ("agents", claim_key(agent, self._node_id))
        await self.announcer.publish_records({key: claim})

    # -- agents hosted here and owned elsewhere

    def _describe_away(self, agent: str) -> _AwayAgent:
        key = ("agents", claim_key(agent, self._node_id), self._core.node.key.public)
        signed = self._replica.current_room.document.record_at(key)
        owned, claim = self._room_view.agents.get(agent), signed.data if signed else None
        if signed is None or owned is None or not isinstance(claim, AgentRecord) or claim.standby:
            return _AwayAgent(agent, None, False)
        given_at = signed.at if claim.gateway != self._node_id else None
        return _AwayAgent(agent, given_at, claim.epoch < owned.record.epoch)

    def _check_agents_owned_elsewhere(self, tx: Tx, agents: list[_AwayAgent]) -> None:
        for away in agents:
            served = self._core.dispatcher.has_consumer(tx, away.id)
            if self._is_lost(away, self._core.agents.registered_at(tx, away.id), served):
                self.unregister_agent(tx, away.id)
            elif served and tx.now >= self._transfers.asked.get(away.id, 0) + _ASK_AGAIN_MS:
                self._transfers.ask_owner(tx, away.id)

    def unregister_agent(self, tx: Tx, agent: str) -> None:
        """Unregister an agent: mail for it is refused, and senders look for it elsewhere."""
        if self._core.agents.is_registered(tx, agent):
            self._core.agents.remove(tx, agent, "transfer")

    def _is_lost(self, away: _AwayAgent, registered_at: int, served: bool) -> bool:
        """Return whether the agent was ours, is another node's now, and did not register again."""
        if away.given_at is not None:
            return registered_at <= away.given_at
        return away.outranked and not served
