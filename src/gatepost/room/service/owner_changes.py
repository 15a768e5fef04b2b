"""Follows the owners of agents in the room: saves them and reports changes."""

from gatepost.delivery.abuse import AbuseKind
from gatepost.journal import Tx
from gatepost.journal.audit import record_audit_entry
from gatepost.room import KnownOwner, OwnerChange, store
from gatepost.room.roles import Act
from gatepost.room.service.agent_transfers import AgentOwnership

_CHECK_SECS = 0.25
_SETTLED_AT_ONCE = 256
_MAX_REPORTED = 10_000


class OwnerChanges:
    def __init__(self, ownership: AgentOwnership) -> None:
        self._ownership = ownership
        self._announcer = ownership.announcer
        self._replica = ownership.announcer.replica
        self._core = ownership.announcer.replica.core
        self._node_id = self._core.node.id
        self._seen_homes = -1
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Follow the room until cancelled."""
        failure = "the owners of agents were not followed"
        await self._core.background.repeat_forever(_CHECK_SECS, self._follow_if_ready, failure)

    async def _follow_if_ready(self) -> None:
        if self._announcer.is_ready:
            await self.follow_owners()

    async def follow_owners(self) -> None:
        """Save the owners that the room shows by now, and report changes that concern us."""
        room = self._replica.current_room
        room.effective.recheck_contested()
        for name, node in room.effective.take_reserved_claims():
            detail = f"it claims {name} as an agent, which no agent can be called"
            self._core.abuse.report_abuse(node, AbuseKind.RESERVED_NAME, detail)
        if self._seen_homes != room.effective.home_changes:
            self._seen_homes = room.effective.home_changes
            self._ownership.note_agents_changed()
            self._report_claimants()
            await self._settle_races()
        changes, unsaved = room.owners.take_changes(), room.owners.take_unsaved()
        if unsaved:
            await self._core.commit(lambda tx: self._save_owners(tx, unsaved, changes))

    def _save_owners(
        self, tx: Tx, unsaved: dict[str, KnownOwner | None], changes: list[OwnerChange]
    ) -> None:
        store.save_owners(tx, unsaved)
        for change in changes:
            if change.before and change.after and self._node_id in (change.before, change.after):
                self._report_change(tx, change)

    def _report_change(self, tx: Tx, change: OwnerChange) -> None:
        """Report an agent that left us or came to us, by an incident and an audit line."""
        moved = f"agent {change.agent} moved from {change.before} to {change.after}"
        subject = f"{change.agent}@{tx.now}"
        self._core.delivery.incidents.raise_(tx, "agent_moved", subject, moved)
        record_audit_entry(tx, change.before or "", "agent.moved", change.agent, moved)

    def _report_claimants(self) -> None:
        """Name the nodes that claim agents of others."""
        for owned in self._replica.current_room.effective.contested_agents():
            for node in owned.claimants:
                if (owned.id, node) in self._reported or len(self._reported) >= _MAX_REPORTED:
                    continue
                self._reported.add((owned.id, node))
                detail = f"it claims agent {owned.id}, which {owned.gateway} owns"
                self._core.abuse.report_abuse(node, AbuseKind.FOREIGN_AGENT, detail)

    async def _settle_races(self) -> None:
        """As the coordinator, confirm the owner of agents that others claim too.

        A gateway that joins later has not seen which claim was first.
        """
        own = self._replica.current_room.effective.nodes.get(self._node_id)
        if own is None or not own.may(Act.SETTLE_OWNER):
            return
        contested = [
            owned
            for owned in self._replica.current_room.effective.contested_agents()
            if owned.gateway is not None
            and owned.rivals
            and all(step.giver != self._node_id for step in owned.record.transfers)
        ]
        async with self._announcer.claims_lock:
            for owned in contested[:_SETTLED_AT_ONCE]:
                claim = self._ownership.make_transfer(owned, owned.gateway or "", by_backbone=True)
                await self._ownership.publish_claim(owned.id, claim)
