"""Capabilities of the room: publishes those of this gateway, and distributes their skills."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec
from msgspec import UNSET, Raw

from gatepost.capabilities.contract import compile_contract, encode_contract
from gatepost.capabilities.publication import (
    DISTRIBUTION,
    NewCapability,
    PublishedCapability,
    SkillInstall,
    catalog_record,
    check_publication,
    find_publication,
    index_record,
    keep_publication,
    list_installs,
    list_publications,
    missing_installs,
    note_install_task,
    remove_publication,
)
from gatepost.capability_wire import CapabilityHealth, CapabilityView, InstallView
from gatepost.delivery.abuse import AbuseKind
from gatepost.errors import GatepostError, UnknownCapability
from gatepost.events import fingerprint_content, parse_event_id
from gatepost.gateway.change_counter import ChangeCounter
from gatepost.gateway.hub.capability_owners import CapabilityOwners
from gatepost.gateway.peers.record_publisher import RecordPublisher
from gatepost.hub.policy import Operator
from gatepost.hub.skill_distribution import describe_distribution
from gatepost.hub.task_request import RequestContent, encode_request
from gatepost.hub.task_routing import CapabilityEntry
from gatepost.journal import Tx
from gatepost.journal.audit import record_audit_entry
from gatepost.room import RoomChange, RoomRecord, claim_key
from gatepost.room.records import (
    MAX_EPOCH,
    CapabilityRecord,
    EligibilityRecord,
    SkillRef,
    key_subject,
)
from gatepost.task_wire import NewTask

log = logging.getLogger(__name__)

CapabilityRecords = tuple[CapabilityRecord, EligibilityRecord | None]

_MAX_REPORTED = 10_000
_MAX_KNOWN = 100_000
_DISTRIBUTE_SECS = 30.0
_MAPS = ("capabilities.catalog", "capabilities.index")
_COUNT_TASKS = """
SELECT state, count(*) FROM task
WHERE CAST(info AS TEXT) ->> '$.capabilityId' = ? AND requester_node IS NULL GROUP BY state
"""
_SELECT_REVIEWS = "SELECT id, status FROM review WHERE capability_id = ?"


class CapabilityService:
    def __init__(self, publisher: RecordPublisher) -> None:
        self._publisher = publisher
        self._replica = publisher.replica
        self._core = publisher.replica.core
        self._node_id = self._core.node.id
        self._own: dict[str, PublishedCapability] = {}
        self._owners = CapabilityOwners(self._core)
        self._reported: set[tuple[str, str]] = set()
        self._known_agents: set[str] = set()
        self._new_agents = ChangeCounter()
        self._distributed = 0
        self._replica.watch_changes(self._note_change)

    # -- the room

    def _note_change(self, change: RoomChange | None) -> None:
        """Look at the changed capabilities only: a member may have published very many."""
        if change is None:
            self.refresh()
            self._new_agents.note_change()
            return
        agents = {key_subject(each.key) for each in change.changed if each.map == "agents"}
        if not agents <= self._known_agents:
            # Agents that come and go must not fill the memory: then all are new once more.
            if len(self._known_agents) >= _MAX_KNOWN:
                self._known_agents.clear()
            self._known_agents |= agents
            self._new_agents.note_change()
        if ids := {key_subject(each.key) for each in change.changed if each.map in _MAPS}:
            router, found = self._core.tasks.parts.router, self._records_by_id(ids)
            kept = {id: entry for id, entry in router.capabilities.items() if id not in ids}
            router.capabilities = kept | _routing_entries(found)
            self._report_rivals(found)

    async def load_own(self) -> None:
        """Read the capabilities that this gateway publishes, and let routing know of all."""
        await self._owners.load_owners()
        self._own = {
            each.document.capability_id: each for each in await self._core.read(list_publications)
        }
        self.refresh()

    def refresh(self) -> None:
        """Let routing know the capabilities of the room as they are now."""
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
        """Name the nodes whose claims the room chose, although another was here first."""
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

    # -- publishing

    async def publish(self, new: NewCapability) -> CapabilityView:
        """Publish a capability once every gate is passed, and distribute its delegation skill."""
        compile_contract(encode_contract(new.contract))
        published = await self._core.commit(partial(self._keep, new=new))
        await self._publish_records(published)
        await self.load_own()
        await self.distribute()
        return self.show(new.capability_id)

    async def unpublish(self, id: str) -> CapabilityView:
        """Withdraw a capability: from now on no task is routed by it."""
        shown = self.show(id)
        await self._core.commit(partial(self._remove, id=id))
        if self._replica.room is not None:
            await self._publish_claims(id, None, None)
        await self.load_own()
        return shown

    def _keep(self, tx: Tx, new: NewCapability) -> PublishedCapability:
        is_hosted = self._core.agents.is_registered(tx, new.owner_agent_id)
        owner = self._core.delivery.routes.remote_owner(new.owner_agent_id)
        check_publication(new, is_hosted=is_hosted and owner is None)
        record_audit_entry(tx, "operator", "capability.publish", new.capability_id, new.version)
        return keep_publication(tx, new)

    def _remove(self, tx: Tx, id: str) -> None:
        remove_publication(tx, id)
        record_audit_entry(tx, "operator", "capability.unpublish", id)

    async def _publish_records(self, published: PublishedCapability) -> None:
        """Put a capability into the room, if this gateway is in one."""
        if self._replica.room is None:
            return
        async with self._publisher.claims_lock:
            id = published.document.capability_id
            epoch = self._next_epoch(id)
            records = (catalog_record(published, epoch), index_record(published, epoch))
            await self._publish_claims(id, *records)

    async def _publish_claims(
        self, id: str, catalog: RoomRecord | None, index: RoomRecord | None
    ) -> None:
        key = claim_key(id, self._node_id)
        records = dict(zip(_MAPS, (catalog, index), strict=True))
        await self._publisher.publish_records(
            {(map, key): record for map, record in records.items()}
        )

    def _next_epoch(self, id: str) -> int:
        known = self._records_by_id([id]).get(id)
        return 1 if known is None else min(known[0].epoch + 1, MAX_EPOCH)

    # -- distribution

    async def distribute_when_due(self) -> None:
        """Distribute soon after an agent became known, and now and then."""
        await self._new_agents.wait_for_change(self._distributed, _DISTRIBUTE_SECS)
        self._distributed = self._new_agents.count
        await self._replica.wait_until_routed()
        await self.distribute()

    async def distribute(self) -> None:
        """Ask every active agent that lacks a delegation skill to install it.

        A gateway that joined a room since then publishes its capabilities there first.
        """
        # Agents may have moved, or nodes been revoked.
        self.refresh()
        known = self._records_by_id()
        for published in await self._core.read(list_publications):
            if published.document.capability_id not in known:
                await self._publish_records(published)
            agents = await self._core.read(self._active_agents)
            missing = await self._core.read(
                lambda tx, p=published, a=agents: missing_installs(tx, p, a)  # type: ignore[misc]
            )
            for agent in missing:
                await self._ask_to_install(published, agent)

    def _active_agents(self, tx: Tx) -> list[str]:
        directory = self._core.delivery.routes.directory
        there = {id for id, home in directory.agents.items() if home.owner is not None}
        here = {agent.id for agent in self._core.agents.list(tx) if not agent.standby}
        return sorted(there | here)

    async def _ask_to_install(self, published: PublishedCapability, agent: str) -> None:
        document = msgspec.json.encode(describe_distribution(published))
        skill = published.document.delegation_skill
        new = NewTask(
            published.document.owner_agent_id,
            f"install the delegation skill {skill.ref} {skill.version}",
            [agent],
            UNSET,
            Raw(document),
            task_type=DISTRIBUTION,
        )
        payload = encode_request(new)
        content = RequestContent(fingerprint_content(payload), payload)

        def ask(tx: Tx) -> None:
            (task,) = self._core.tasks.requested.create_tasks(tx, new, content, Operator())
            ids = (published.document.capability_id, agent, skill.version)
            note_install_task(tx, *ids, parse_event_id(task.id))

        try:
            await self._core.commit(ask)
        except GatepostError as error:
            log.warning("%s was not asked to install %s: %s", agent, skill.ref, error.message)

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
            installs = list_installs(tx, id) if find_publication(tx, id) else []
            return counts, installs, dict(tx.fetch_all(_SELECT_REVIEWS, (id,)))

        counts, installs, reviews = await self._core.read(read)
        views = [InstallView(*msgspec.structs.astuple(each)) for each in installs]
        # This gateway may know better than the room how a review ended.
        found = list((self._reviews_elsewhere(id) | reviews).values())
        return CapabilityHealth(shown, counts, views, found.count("open"))

    def _reviews_elsewhere(self, id: str) -> dict[str, str]:
        """The reviews of a capability in the room, where its requesters opened them."""
        room = self._replica.room
        found = {} if room is None else room.effective.reviews
        return {key: each.status for key, each in found.items() if each.capability_id == id}


def _routing_entries(found: Mapping[str, CapabilityRecords]) -> dict[str, CapabilityEntry]:
    return {id: _routing_entry(id, *records) for id, records in found.items()}


def _routing_entry(
    id: str, record: CapabilityRecord, index: EligibilityRecord | None
) -> CapabilityEntry:
    return CapabilityEntry(
        id=id,
        version=record.version,
        owner_agent=record.owner_agent_id,
        delegation_skill_version=record.delegation_skill_ref.version,
        executor_skill_version=record.executor_skill_ref.version,
        default_eta_secs=record.default_eta_seconds,
        progress_secs=record.progress_seconds,
        is_active=record.status != "disabled" and index is not None,
        eligible=() if index is None else index.eligible_agent_ids,
        policy_version=0 if index is None else index.policy_version,
        contract=record.contract_schema_ref,
        max_attempts=record.max_attempts,
        escalation=record.escalation,
    )


def _show_skill(skill: SkillRef) -> str:
    return f"{skill.ref} {skill.version}"
