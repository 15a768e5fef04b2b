"""The effective records: those that count, out of all records in the room.

A record counts if its writer is a member (membership.py). A claim counts if its writer also has
authority over the subject. One of the claims that count wins. The result is a function of the
records in the room and does not depend on their order of arrival. It is recomputed on access, and
only for subjects that changed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from gatepost.room.admission_chain import Genesis
from gatepost.room.agent_ownership import OwnedAgent, choose_owner
from gatepost.room.membership import RoomMember, RoomMembership, decide_membership
from gatepost.room.records import (
    AgentRecord,
    CapabilityRecord,
    CoordinationRecord,
    DeliveryRecord,
    EligibilityRecord,
    InviteRecord,
    NodeRecord,
    ReviewRecord,
    RoomRecord,
    RoutingRecord,
    key_subject,
)
from gatepost.room.signed_record import SignedRecord

T = TypeVar("T")
R = TypeVar("R", bound=RoomRecord)
ChooseRecord = Callable[[str, list[SignedRecord]], T | None]


class RecordTable(Generic[T]):
    """One map: all records by subject, and the result chosen for each subject."""

    def __init__(self, judge: ChooseRecord[T]) -> None:
        self._choose = judge
        self.records: dict[str, dict[tuple[str, bytes], SignedRecord]] = defaultdict(dict)
        self.chosen: dict[str, T] = {}
        self.stale_ids: set[str] = set()

    def add_record(self, signed: SignedRecord) -> SignedRecord | None:
        """Store a record and return the one it supersedes."""
        id, slot = key_subject(signed.key), (signed.key, signed.public_key)
        known = self.records[id].get(slot)
        self.records[id][slot] = signed
        self.stale_ids.add(id)
        return known

    def refresh_stale(self) -> set[str]:
        """Choose again for all stale ids; return the ids with a new result."""
        changed = {id for id in self.stale_ids if self._refresh_id(id)}
        self.stale_ids.clear()
        return changed

    def _refresh_id(self, id: str) -> bool:
        before = self.chosen.pop(id, None)
        after = self._choose(id, list(self.records[id].values()))
        if after is not None:
            self.chosen[id] = after
        return before != after


class EffectiveRecords:
    """Live typed mappings by id. Only `add_records` changes the stored records."""

    def __init__(self, genesis: Genesis) -> None:
        self._genesis = genesis
        self._nodes = RecordTable[RoomMember](lambda id, records: None)
        self._agents = RecordTable(self._choose_agent)
        self._catalog = RecordTable(self._choose_capability)
        self._index = RecordTable(self._choose_eligibility)
        self._routing = RecordTable(self._choose_route)
        self._invites = RecordTable(self._choose_invite)
        self._delivery = RecordTable(self._choose_senior(DeliveryRecord))
        self._coordination = RecordTable(self._choose_coordinator)
        self._reviews = RecordTable(self._choose_senior(ReviewRecord))
        self._tables: dict[str, RecordTable[Any]] = {
            "nodes": self._nodes,
            "agents": self._agents,
            "capabilities.catalog": self._catalog,
            "capabilities.index": self._index,
            "routing": self._routing,
            "invites": self._invites,
            "delivery": self._delivery,
            "coordination": self._coordination,
            "reviews": self._reviews,
        }
        self._records_by_node: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._membership = RoomMembership({}, {}, {})
        self._members: dict[str, RoomMember] = {}
        self._is_membership_stale = False

    @property
    def nodes(self) -> Mapping[str, RoomMember]:
        self._refresh_tables()
        return MappingProxyType(self._members)

    @property
    def membership(self) -> RoomMembership:
        self._refresh_tables()
        return self._current_membership()

    @property
    def agents(self) -> Mapping[str, OwnedAgent]:
        return self._chosen_in(self._agents)

    @property
    def routing(self) -> Mapping[str, RoutingRecord]:
        return self._chosen_in(self._routing)

    @property
    def capability_catalog(self) -> Mapping[str, CapabilityRecord]:
        return self._chosen_in(self._catalog)

    @property
    def capability_index(self) -> Mapping[str, EligibilityRecord]:
        return self._chosen_in(self._index)

    @property
    def invites(self) -> Mapping[str, InviteRecord]:
        return self._chosen_in(self._invites)

    @property
    def delivery(self) -> Mapping[str, DeliveryRecord]:
        return self._chosen_in(self._delivery)

    @property
    def reviews(self) -> Mapping[str, ReviewRecord]:
        return self._chosen_in(self._reviews)

    @property
    def coordination(self) -> CoordinationRecord | None:
        """The claim with the highest term."""
        return self._chosen_in(self._coordination).get("coordinator")

    def add_records(self, changed: Iterable[SignedRecord]) -> None:
        for signed in changed:
            known = self._tables[signed.map].add_record(signed)
            for node in _nodes_deciding(signed):
                self._records_by_node[node].add((signed.map, key_subject(signed.key)))
            if signed.map == "nodes":
                self._note_node_change(known, signed)

    def _note_node_change(self, known: SignedRecord | None, signed: SignedRecord) -> None:
        """Recompute the membership, except after a mere heartbeat, the most frequent change."""
        member = self._members.get(signed.writer)
        if known is None or known.chain != signed.chain or not _both_nodes(known, signed):
            self._is_membership_stale = True
        elif (
            member
            and isinstance(signed.data, NodeRecord)
            and member.public_key == signed.public_key
        ):
            self._members[member.id] = replace(member, record=signed.data)

    def _chosen_in(self, table: RecordTable[T]) -> Mapping[str, T]:
        self._refresh_tables()
        return MappingProxyType(table.chosen)

    def _refresh_tables(self) -> None:
        if self._is_membership_stale:
            self._decide_membership()
        before = {id: self._agents.chosen.get(id) for id in self._agents.stale_ids}
        if any(
            _has_moved(before[id], self._agents.chosen.get(id))
            for id in self._agents.refresh_stale()
        ):
            self._routing.stale_ids.update(self._routing.records)
            self._catalog.stale_ids.update(self._catalog.records)
            self._index.stale_ids.update(self._index.records)
        self._index.stale_ids |= self._catalog.refresh_stale() & self._index.records.keys()
        for table in self._tables.values():
            table.refresh_stale()

    def _decide_membership(self) -> None:
        records = (s for slots in self._nodes.records.values() for s in slots.values())
        before, keys = self._members, self._membership.keys
        self._membership = decide_membership(records, self._genesis)
        self._members = dict(self._membership.members)
        self._is_membership_stale = False
        for node in before.keys() | self._membership.keys.keys():
            known = (before.get(node), keys.get(node))
            if _membership_differs(
                known, (self._members.get(node), self._membership.keys.get(node))
            ):
                for map, id in self._records_by_node[node]:
                    self._tables[map].stale_ids.add(id)

    def _current_membership(self) -> RoomMembership:
        return replace(self._membership, members=self._members)

    def _claims_by_members(
        self, records: list[SignedRecord], type: type[R]
    ) -> list[tuple[RoomMember, R]]:
        """The claims written by members, senior writers first, so that the first of equals wins."""
        found = [
            (member, signed.data)
            for signed in records
            if isinstance(signed.data, type)
            and (member := self._writing_member(signed)) is not None
        ]
        return sorted(found, key=lambda pair: pair[0].rank)

    def _writing_member(self, signed: SignedRecord) -> RoomMember | None:
        member = self._members.get(signed.writer)
        return member if member and member.public_key == signed.public_key else None

    def _choose_agent(self, id: str, records: list[SignedRecord]) -> OwnedAgent | None:
        claims = [s for s in records if isinstance(s.data, AgentRecord) and self._writing_member(s)]
        return choose_owner(id, claims, self._current_membership())

    def _choose_route(self, id: str, records: list[SignedRecord]) -> RoutingRecord | None:
        return _highest_epoch(
            [
                claim
                for member, claim in self._claims_by_members(records, RoutingRecord)
                if member.is_backbone or member.id in (id, self._gateway_of(id))
            ]
        )

    def _choose_capability(self, id: str, records: list[SignedRecord]) -> CapabilityRecord | None:
        return _highest_epoch(
            [
                claim
                for member, claim in self._claims_by_members(records, CapabilityRecord)
                if member.is_backbone or member.id == self._gateway_of(claim.owner_agent_id)
            ]
        )

    def _choose_eligibility(self, id: str, records: list[SignedRecord]) -> EligibilityRecord | None:
        """Choose the index entry; a withdrawn or disabled capability has none."""
        capability = self._catalog.chosen.get(id)
        if capability is None or capability.status == "disabled":
            return None
        gateway = self._gateway_of(capability.owner_agent_id)
        return _highest_epoch(
            [
                claim
                for member, claim in self._claims_by_members(records, EligibilityRecord)
                if member.is_backbone or member.id == gateway
            ]
        )

    def _choose_invite(self, id: str, records: list[SignedRecord]) -> InviteRecord | None:
        claims = self._claims_by_members(records, InviteRecord)
        return next((claim for member, claim in claims if member.is_backbone), None)

    def _choose_coordinator(
        self, id: str, records: list[SignedRecord]
    ) -> CoordinationRecord | None:
        claims = [claim for _, claim in self._claims_by_members(records, CoordinationRecord)]
        return max(claims, key=lambda claim: claim.term, default=None)

    def _choose_senior(self, type: type[R]) -> ChooseRecord[R]:
        def choose_first(id: str, records: list[SignedRecord]) -> R | None:
            return next((claim for _, claim in self._claims_by_members(records, type)), None)

        return choose_first

    def _gateway_of(self, agent: str) -> str | None:
        owned = self._agents.chosen.get(agent)
        return None if owned is None else owned.gateway


E = TypeVar("E", RoutingRecord, CapabilityRecord, EligibilityRecord)


def _highest_epoch(claims: list[E]) -> E | None:
    """The claim with the highest epoch; among equals the first, from the senior writer."""
    return max(claims, key=lambda claim: claim.epoch, default=None)


def _nodes_deciding(signed: SignedRecord) -> set[str]:
    """The nodes whose membership decides whether the record counts."""
    data = signed.data
    if not isinstance(data, AgentRecord):
        return {signed.writer}
    givers = {step.giver for step in data.transfers}
    return {signed.writer, *givers, *([data.gateway] if data.gateway else [])}


def _both_nodes(known: SignedRecord, signed: SignedRecord) -> bool:
    return isinstance(known.data, NodeRecord) and isinstance(signed.data, NodeRecord)


def _has_moved(before: OwnedAgent | None, after: OwnedAgent | None) -> bool:
    return (before and before.gateway) != (after and after.gateway)


_MemberAndKeys = tuple[RoomMember | None, frozenset[bytes] | None]


def _membership_differs(before: _MemberAndKeys, after: _MemberAndKeys) -> bool:
    def relevant_part(known: _MemberAndKeys) -> object:
        member, keys = known
        return keys, member and (member.public_key, member.rank, member.tier)

    return relevant_part(before) != relevant_part(after)
