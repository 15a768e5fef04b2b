"""Capabilities of the room: publishes those of this gateway, and distributes their skills."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec
from msgspec.structs import replace

from gatepost.core.change_counter import ChangeCounter
from gatepost.delivery.abuse import AbuseKind
from gatepost.errors import InvalidContract, UnknownCapability
from gatepost.journal import Tx
from gatepost.journal.audit import record_audit_entry
from gatepost.room import RoomChange, RoomRecord, claim_key
from gatepost.room.findings import choose_reports
from gatepost.room.records import (
    MAX_EPOCH,
    CapabilityRecord,
    EligibilityRecord,
    SkillRef,
    key_subject,
)
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.tasks.capabilities.contract import (
    contract_digest,
    drop_unused_contracts,
    encode_contract,
    read_contract,
)
from gatepost.tasks.capabilities.misfires import review_states
from gatepost.tasks.capabilities.publication import (
    NewCapability,
    PublishedCapability,
    catalog_record,
    check_executor_skill,
    check_publication,
    find_publication,
    index_record,
    keep_publication,
    list_publications,
    remove_publication,
    renew_indexes,
)
from gatepost.tasks.service.capability_owners import CapabilityOwners
from gatepost.tasks.skill_installs import SkillInstall, forget_capability
from gatepost.tasks.task_routing import CapabilityEntry, routing_entry
from gatepost.wire.capabilities import CapabilityHealth, CapabilityView, InstallView
from gatepost.wire.operations import StatedSkill

log = logging.getLogger(__name__)

CapabilityRecords = tuple[CapabilityRecord, EligibilityRecord | None]

_UNSTATED = "{} states no executor skills, so that it hosts this one is not checked"
_MAX_REPORTED = 10_000
_MAX_KNOWN = 100_000
_DISTRIBUTE_SECS = 30.0
_MAPS = ("capabilities.catalog", "capabilities.index")
_COUNT_TASKS = """
SELECT state, count(*) FROM task
WHERE CAST(info AS TEXT) ->> '$.capabilityId' = ? AND requester_node IS NULL GROUP BY state
"""


class CapabilityService:
    def __init__(self, announcer: RecordAnnouncer) -> None:
        self._announcer = announcer
        self._replica = announcer.replica
        self._core = announcer.replica.core
        self._node_id = self._core.node.id
        self._own: dict[str, PublishedCapability] = {}
        self._owners = CapabilityOwners(self._core)
        self._reported: set[tuple[str, str]] = set()
        self._known_agents: set[str] = set()
        self._new_agents = ChangeCounter()
        self._distributed = 0
        self._agents_changed = ChangeCounter()
        self._indexed = 0
        self._replica.watch_changes(self._note_change)

    # -- the room

    def _note_change(self, change: RoomChange | None) -> None:
        """Update the changed capabilities only, because a member may publish very many."""
        if change is None:
            self.refresh()
            self._new_agents.note_change()
            self.note_agents_changed()
            return
        agents = {key_subject(each.key) for each in change.changed if each.map == "agents"}
        if agents:
            self.note_agents_changed()
        if not agents <= self._known_agents:
            # Bound the memory for agents that come and go; all of them count as new again.
            if len(self._known_agents) >= _MAX_KNOWN:
                self._known_agents.clear()
            self._known_agents |= agents
            self._new_agents.note_change()
        if ids := {key_subject(each.key) for each in change.changed if each.map in _MAPS}:
            router, found = self._core.tasks.parts.router, self._records_by_id(ids)
            kept = {id: entry for id, entry in router.capabilities.items() if id not in ids}
            router.capabilities = kept | _routing_entries(found)
            self._report_rivals(found)

    def note_agents_changed(self) -> None:
        """Agents came or went, here or in the room."""
        self._agents_changed.note_change()

    async def load_own(self) -> None:
        """Load the capabilities that this gateway publishes, and pass all to routing."""
        await self._owners.load_owners()
        self._own = {
            each.document.capability_id: each for each in await self._core.read(list_publications)
        }
        self.refresh()

    def refresh(self) -> None:
        """Pass the room's current capabilities to routing."""
        found = self._records_by_id()
        self._core.tasks.parts.router.capabilities = _routing_entries(found)
        self._report_rivals(found)

    def _records_by_id(self, ids: Iterable[str] | None = None) -> dict[str, CapabilityRecords]:
        """Catalog and index of the room; of this gateway alone while it is in no room.

        With `ids`, only of these capabilities.
        """
        if self._replica.room is None:
            return {
                id: (catalog_record(own, 1), index_record(own, 1)) for id, own in self._own.items()
            }
        view = self._replica.room.effective
        catalog, index = view.capability_catalog, view.capability_index
        found: dict[str, CapabilityRecords] = {}
        for id in catalog if ids is None else catalog.keys() & ids:
            chosen = catalog[id]
            record = self._owners.choose_claim(id, chosen, view.rival_capabilities(id))
            if record is chosen:
                found[id] = (record, index.get(id))
            else:
                found[id] = (record, view.find_eligibility(id, record))
        self._owners.forget_others(catalog)
        return found

    def _report_rivals(self, ids: Mapping[str, CapabilityRecords]) -> None:
        """Report nodes whose claims the room chose although another node was first."""
        if self._replica.room is None:
            return
        view = self._replica.room.effective
        catalog, agents = view.capability_catalog, view.agents
        for id, (record, _) in ids.items():
            rival = catalog[id].owner_agent_id
            is_new = rival != record.owner_agent_id and (id, rival) not in self._reported
            if is_new and len(self._reported) < _MAX_REPORTED:
                self._reported.add((id, rival))
                owned = agents.get(rival)
                node = rival if owned is None or owned.gateway is None else owned.gateway
                detail = f"it publishes {id}, which {record.owner_agent_id} published before it"
                self._core.abuse.report_abuse(node, AbuseKind.FOREIGN_CAPABILITY, detail)

    # -- the index

    async def renew_indexes_when_due(self) -> None:
        """Wait until agents come or go, then list the routable ones in the indexes."""
        await self._agents_changed.wait_for_change(self._indexed, _DISTRIBUTE_SECS)
        self._indexed = self._agents_changed.count
        await self._replica.wait_until_routed()
        await self.renew_indexes()

    async def renew_indexes(self) -> None:
        if not self._own:
            return
        for published in await self._core.commit(
            lambda tx: renew_indexes(tx, partial(self._core.tasks.parts.router.is_active, tx))
        ):
            await self._publish_records(published)
            self._own[published.document.capability_id] = published
            self.refresh()

    # -- publishing

    async def publish(self, new: NewCapability) -> CapabilityView:
        """Publish a capability once every gate is passed, and distribute its delegation skill."""
        await self._require_usable(encode_contract(new.contract))
        published, note = await self._core.commit(partial(self._keep, new=new))
        await self._publish_records(published)
        await self.load_own()
        await self.distribute()
        return replace(self.show(new.capability_id), note=note)

    async def _require_usable(self, contract: bytes) -> None:
        """Raise InvalidContract unless the schemas of a contract can be compiled."""
        read_contract(contract)
        verdict = await self._core.contracts.compile(contract_digest(contract), contract)
        if verdict.problem:
            raise InvalidContract(verdict.problem)

    async def unpublish(self, id: str) -> CapabilityView:
        """Withdraw a capability, so that no further task is routed by it."""
        shown = self.show(id)
        await self._core.commit(partial(self._remove, id=id))
        if self._replica.room is not None:
            await self._publish_claims(id, None, None)
        await self.load_own()
        return shown

    def _keep(self, tx: Tx, new: NewCapability) -> tuple[PublishedCapability, str]:
        is_hosted = self._core.agents.is_registered(tx, new.owner_agent_id)
        owner = self._core.delivery.routes.remote_owner(new.owner_agent_id)
        check_publication(new, is_hosted=is_hosted and owner is None)
        stated = self._stated_skills(tx, new.owner_agent_id)
        check_executor_skill(new, stated)
        note = "" if stated is not None else _UNSTATED.format(new.owner_agent_id)
        record_audit_entry(tx, "operator", "capability.publish", new.capability_id, new.version)
        is_active = self._core.tasks.parts.router.is_active
        return keep_publication(tx, new, partial(is_active, tx)), note

    def _stated_skills(self, tx: Tx, agent: str) -> tuple[StatedSkill, ...] | None:
        """The executor skills of an agent, by its definition or its registration."""
        definition = self._core.registry.agents.get(agent)
        if definition is not None:
            return definition.executor_skills
        return self._core.agents.find_executor_skills(tx, agent)

    def _remove(self, tx: Tx, id: str) -> None:
        remove_publication(tx, id)
        forget_capability(tx, id)
        record_audit_entry(tx, "operator", "capability.unpublish", id)

    async def _publish_records(self, published: PublishedCapability) -> None:
        """Put a capability into the room, if this gateway is in one."""
        if self._replica.room is None:
            return
        async with self._announcer.claims_lock:
            id = published.document.capability_id
            epoch = self._next_epoch(id)
            records = (catalog_record(published, epoch), index_record(published, epoch))
            await self._publish_claims(id, *records)

    async def _publish_claims(
        self, id: str, catalog: RoomRecord | None, index: RoomRecord | None
    ) -> None:
        key = claim_key(id, self._node_id)
        records = dict(zip(_MAPS, (catalog, index), strict=True))
        await self._announcer.publish_records(
            {(map, key): record for map, record in records.items()}
        )

    def _next_epoch(self, id: str) -> int:
        known = self._records_by_id([id]).get(id)
        return 1 if known is None else min(known[0].epoch + 1, MAX_EPOCH)

    # -- distribution

    async def distribute_when_due(self) -> None:
        """Distribute soon after an agent became known, when an install is due, and periodically."""
        wait = await self._core.read(self._secs_to_wait)
        await self._new_agents.wait_for_change(self._distributed, wait)
        self._distributed = self._new_agents.count
        await self._replica.wait_until_routed()
        await self.distribute()

    def _secs_to_wait(self, tx: Tx) -> float:
        due = self._core.tasks.skills.next_due(tx)
        if due is None:
            return _DISTRIBUTE_SECS
        return min(_DISTRIBUTE_SECS, max(0.0, (due - self._core.clock.now()) / 1000))

    async def distribute(self) -> None:
        """Ask the agents and gateways that lack a delegation skill to install it.

        After joining a room, it first publishes its capabilities there.
        """
        # Agents may have moved, or nodes been revoked.
        self.refresh()
        known = self._records_by_id()
        for published in await self._core.read(list_publications):
            if published.document.capability_id not in known:
                await self._publish_records(published)
        while await self._core.commit(self._core.tasks.skills.distribute):
            pass

    async def drop_unused_contracts(self) -> None:
        """Forget the contracts that no capability of the room refers to."""
        await self._replica.wait_until_routed()
        parts = self._core.tasks.parts
        used = {entry.contract for entry in parts.router.capabilities.values()}
        revoked = parts.core.routes.directory.revoked
        await self._core.commit(lambda tx: drop_unused_contracts(tx, used, revoked))

    # -- views

    def list_capabilities(self) -> list[CapabilityView]:
        return [self.show(id) for id in sorted(self._records_by_id())]

    def show(self, id: str) -> CapabilityView:
        found = self._records_by_id([id]).get(id)
        if found is None:
            raise UnknownCapability(f"no gateway publishes a capability {id!r}")
        record, index = found
        return CapabilityView(
            capability_id=id,
            name=record.name,
            version=record.version,
            owner_agent_id=record.owner_agent_id,
            delegation_skill=_show_skill(record.delegation_skill_ref),
            executor_skill=_show_skill(record.executor_skill_ref),
            default_eta_seconds=record.default_eta_seconds,
            progress_seconds=record.progress_seconds,
            contract=record.contract_schema_ref,
            status=record.status,
            eligible_agent_ids=() if index is None else index.eligible_agent_ids,
            policy_version=0 if index is None else index.policy_version,
            published_here=id in self._own,
        )

    async def describe_health(self, id: str) -> CapabilityHealth:
        shown = self.show(id)

        def read(tx: Tx) -> tuple[dict[str, int], list[SkillInstall], dict[str, str]]:
            counts = {str(state): int(count) for state, count in tx.fetch_all(_COUNT_TASKS, (id,))}
            own = find_publication(tx, id)
            installs = self._core.tasks.skills.list_installs(tx, own) if own else []
            return counts, installs, review_states(tx, id)

        counts, installs, reviews = await self._core.read(read)
        views = [InstallView(*msgspec.structs.astuple(each)) for each in installs]
        # This gateway's own reviews are newer than their copies in the room.
        found = list((self._reviews_elsewhere(id) | reviews).values())
        return CapabilityHealth(shown, counts, views, found.count("open"))

    def _reviews_elsewhere(self, id: str) -> dict[str, str]:
        """The reviews of a capability in the room, where its requesters opened them."""
        room = self._replica.room
        found = {} if room is None else room.effective.reviews
        return {
            key: claim.record.status
            for key, claim in choose_reports(found, self._core.clock.now()).items()
            if claim.record.capability_id == id
        }


def _routing_entries(found: Mapping[str, CapabilityRecords]) -> dict[str, CapabilityEntry]:
    return {id: routing_entry(id, *records) for id, records in found.items()}


def _show_skill(skill: SkillRef) -> str:
    return f"{skill.ref} {skill.version}"
