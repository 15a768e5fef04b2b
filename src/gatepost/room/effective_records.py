"""The effective records: those that count, out of all records in the room.

A record counts if its writer is a member (membership.py). A claim counts if its writer also has
authority over the subject. One of the claims that count wins. The result is a function of the
records in the room and does not depend on their order of arrival. It is recomputed on access, and
only for subjects that changed.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from msgspec.structs import replace

from gatepost.room.admission_chain import Genesis
from gatepost.room.agent_ownership import OwnedAgent
from gatepost.room.findings import FindingClaim
from gatepost.room.known_owners import KnownOwners
from gatepost.room.membership import RoomMember, RoomMembership, decide_membership
from gatepost.room.record_tables import RecordTable, RecordTables
from gatepost.room.records import (
    AgentRecord,
    CapabilityRecord,
    CoordinationRecord,
    DeliveryRecord,
    EligibilityRecord,
    EtaAdviceRecord,
    IncidentRecord,
    InviteRecord,
    MeshSecretRecord,
    NodeRecord,
    ReviewRecord,
    RoutingRecord,
    TransportRecord,
    key_subject,
)
from gatepost.room.signed_record import SignedRecord

T = TypeVar("T")


class EffectiveRecords:
    """Live typed mappings by id. `add_records` and `remove_record` change the stored records."""

    def __init__(self, genesis: Genesis, owners: KnownOwners) -> None:
        self._genesis = genesis
        self._tables = RecordTables(owners)
        self._records_by_node: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._is_membership_stale = False

    @property
    def nodes(self) -> Mapping[str, RoomMember]:
        self._refresh_tables()
        return MappingProxyType(self._tables.members)

    @property
    def membership(self) -> RoomMembership:
        self._refresh_tables()
        return self._tables.current_membership()

    @property
    def agents(self) -> Mapping[str, OwnedAgent]:
        return self._chosen_in(self._tables.agents)

    @property
    def home_changes(self) -> int:
        """Counts changes of agents' owners, standbys, rivals and order, but not heartbeats."""
        self._refresh_tables()
        return self._tables.home_changes

    @property
    def routing(self) -> Mapping[str, RoutingRecord]:
        return self._chosen_in(self._tables.routing)

    @property
    def capability_catalog(self) -> Mapping[str, CapabilityRecord]:
        return self._chosen_in(self._tables.catalog)

    @property
    def capability_index(self) -> Mapping[str, EligibilityRecord]:
        return self._chosen_in(self._tables.index)

    def rival_capabilities(self, id: str) -> dict[str, CapabilityRecord]:
        """Owner → its claim, if only the seniority of edge nodes decides between them."""
        self._refresh_tables()
        return self._tables.rival_capabilities(id)

    def find_eligibility(self, id: str, capability: CapabilityRecord) -> EligibilityRecord | None:
        """The agents that offer this capability, whichever claim was chosen for its id."""
        self._refresh_tables()
        return self._tables.find_eligibility(id, capability)

    @property
    def invites(self) -> Mapping[str, InviteRecord]:
        return self._chosen_in(self._tables.invites)

    @property
    def delivery(self) -> Mapping[str, DeliveryRecord]:
        return self._chosen_in(self._tables.delivery)

    @property
    def reviews(self) -> Mapping[str, tuple[FindingClaim[ReviewRecord], ...]]:
        """The claims about each review that count; findings.py chooses one."""
        return self._chosen_in(self._tables.reviews)

    @property
    def incidents(self) -> Mapping[str, tuple[FindingClaim[IncidentRecord], ...]]:
        """By the digest of their id; findings.py chooses one of the claims."""
        return self._chosen_in(self._tables.incidents)

    @property
    def eta_advice(self) -> Mapping[str, tuple[FindingClaim[EtaAdviceRecord], ...]]:
        """By capability; findings.py chooses one of the claims."""
        return self._chosen_in(self._tables.eta)

    @property
    def mesh_secrets(self) -> Mapping[str, MeshSecretRecord]:
        """By the fingerprint of the key that can decrypt them."""
        return self._chosen_in(self._tables.secrets)

    @property
    def transports(self) -> Mapping[str, TransportRecord]:
        """By the node that takes datagrams there."""
        return self._chosen_in(self._tables.transports)

    @property
    def coordination(self) -> CoordinationRecord | None:
        """The claim with the highest term."""
        return self._chosen_in(self._tables.coordination).get("coordinator")

    def contested_agents(self) -> list[OwnedAgent]:
        """The agents with claims that do not count."""
        agents = self.agents
        return [agents[id] for id in sorted(self._tables.contested) if id in agents]

    def take_reserved_claims(self) -> set[tuple[str, str]]:
        """(Name, writer) of the claims to reserved names since the last call. Such claims never
        count.
        """
        self._refresh_tables()
        found, self._tables.reserved_claims = self._tables.reserved_claims, set()
        return found

    def recheck_contested(self) -> None:
        """Choose again among contested claims, whose owner may be dead by now."""
        self._tables.agents.stale_ids |= self._tables.contested

    def add_records(self, changed: Iterable[SignedRecord]) -> None:
        for signed in changed:
            known = self._tables.by_map[signed.map].add_record(signed)
            for node in _nodes_deciding(signed):
                self._records_by_node[node].add((signed.map, key_subject(signed.key)))
            if signed.map == "nodes":
                self._note_node_change(known, signed)
            elif signed.map == "standing":
                self._is_membership_stale = True

    def remove_record(self, signed: SignedRecord) -> None:
        """Remove the record of a slot from effect, because another slot's record counts instead."""
        self._tables.by_map[signed.map].remove_record(signed)
        self._is_membership_stale |= signed.map in ("nodes", "standing")

    def _note_node_change(self, known: SignedRecord | None, signed: SignedRecord) -> None:
        """Recompute the membership, except after a mere heartbeat, the most frequent change."""
        member = self._tables.members.get(signed.writer)
        if known is None or known.chain != signed.chain or not _both_nodes(known, signed):
            self._is_membership_stale = True
        elif (
            member
            and isinstance(signed.data, NodeRecord)
            and member.public_key == signed.public_key
        ):
            self._tables.members[member.id] = replace(member, record=signed.data)

    def _chosen_in(self, table: RecordTable[T]) -> Mapping[str, T]:
        self._refresh_tables()
        return MappingProxyType(table.chosen)

    def _refresh_tables(self) -> None:
        if self._is_membership_stale:
            self._decide_membership()
        self._tables.refresh_stale()

    def _decide_membership(self) -> None:
        tables = self._tables
        found = (*tables.nodes.records.values(), *tables.standing.records.values())
        records = (signed for slots in found for signed in slots.values())
        before, keys = tables.members, tables.membership.keys
        tables.membership = decide_membership(records, self._genesis)
        tables.members = dict(tables.membership.members)
        self._is_membership_stale = False
        for node in before.keys() | tables.membership.keys.keys():
            known = (before.get(node), keys.get(node))
            if _membership_differs(
                known, (tables.members.get(node), tables.membership.keys.get(node))
            ):
                for map, id in self._records_by_node[node]:
                    tables.by_map[map].stale_ids.add(id)


def _nodes_deciding(signed: SignedRecord) -> set[str]:
    """The nodes whose membership decides whether the record counts."""
    data = signed.data
    if not isinstance(data, AgentRecord):
        return {signed.writer}
    givers = {step.giver for step in data.transfers}
    return {signed.writer, *givers, *([data.gateway] if data.gateway else [])}


def _both_nodes(known: SignedRecord, signed: SignedRecord) -> bool:
    return isinstance(known.data, NodeRecord) and isinstance(signed.data, NodeRecord)


_MemberAndKeys = tuple[RoomMember | None, frozenset[bytes] | None]


def _membership_differs(before: _MemberAndKeys, after: _MemberAndKeys) -> bool:
    def relevant_part(known: _MemberAndKeys) -> object:
        member, keys = known
        return keys, member and (member.public_key, member.rank, member.tier)

    return relevant_part(before) != relevant_part(after)
