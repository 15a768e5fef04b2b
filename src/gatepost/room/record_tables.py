"""The tables of a room's records, one per map, and the choice among the claims for one subject.

A claim counts if its writer is a member and has authority over the subject. Among the claims that
count, the highest epoch or term wins; among equals the claim of the senior writer.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from gatepost.events.reserved_names import is_reserved_name
from gatepost.room.agent_ownership import KnownOwner, OwnedAgent, choose_owner, known_owner_of
from gatepost.room.findings import FindingClaim
from gatepost.room.known_owners import KnownOwners
from gatepost.room.membership import RoomMember, RoomMembership
from gatepost.room.records import (
    AgentRecord,
    CapabilityRecord,
    CoordinationRecord,
    DeliveryRecord,
    DescriptorRecord,
    EligibilityRecord,
    EtaAdviceRecord,
    IncidentRecord,
    InviteRecord,
    MeshSecretRecord,
    ReviewRecord,
    RoomRecord,
    RoutingRecord,
    StandingRecord,
    TransportRecord,
    key_subject,
)
from gatepost.room.roles import Act, may_write
from gatepost.room.signed_record import SignedRecord

T = TypeVar("T")
R = TypeVar("R", bound=RoomRecord)
S = TypeVar("S", ReviewRecord, IncidentRecord)
ChooseRecord = Callable[[str, list[SignedRecord]], T | None]


class RecordTable(Generic[T]):
    """One map: all records by subject, and the result chosen for each subject."""

    def __init__(self, choose: ChooseRecord[T]) -> None:
        self._choose = choose
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

    def remove_record(self, signed: SignedRecord) -> None:
        id = key_subject(signed.key)
        self.records[id].pop((signed.key, signed.public_key), None)
        self.stale_ids.add(id)

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


class RecordTables:
    """All tables. `membership` and `members` say whose claims count; their owner keeps them.

    `members` differs from the members in `membership` by later heartbeats.
    """

    def __init__(self, owners: KnownOwners) -> None:
        self.membership = RoomMembership({}, {}, {}, {})
        self.owners = owners
        # (Name, writer) of claims to reserved names, until a caller takes them.
        self.reserved_claims: set[tuple[str, str]] = set()
        # Agents with claims that do not count, or not yet: time may change that.
        self.contested: set[str] = set()
        self.members: dict[str, RoomMember] = {}
        # Counts changes of owners, standbys and rivals of agents.
        self.home_changes = 0
        self.nodes = RecordTable[RoomMember](lambda id, records: None)
        self.standing = RecordTable[StandingRecord](lambda id, records: None)
        self.agents = RecordTable(self._choose_agent)
        self.catalog = RecordTable(self._choose_capability)
        self.index = RecordTable(self._choose_eligibility)
        self.routing = RecordTable(self._choose_route)
        self.invites = RecordTable(self._choose_invite)
        self.delivery = RecordTable(self._choose_senior(DeliveryRecord))
        self.coordination = RecordTable(self._choose_coordinator)
        self.reviews = RecordTable(self._choose_reports(ReviewRecord))
        self.incidents = RecordTable(self._choose_reports(IncidentRecord))
        self.eta = RecordTable(self._choose_advice)
        self.secrets = RecordTable(self._choose_secrets)
        self.transports = RecordTable(self._choose_senior(TransportRecord))
        self.rendezvous = RecordTable[DescriptorRecord](lambda id, records: None)
        self.by_map: dict[str, RecordTable[Any]] = {
            "nodes": self.nodes,
            "standing": self.standing,
            "agents": self.agents,
            "capabilities.catalog": self.catalog,
            "capabilities.index": self.index,
            "routing": self.routing,
            "invites": self.invites,
            "delivery": self.delivery,
            "coordination": self.coordination,
            "reviews": self.reviews,
            "incidents": self.incidents,
            "eta": self.eta,
            "secrets": self.secrets,
            "transports": self.transports,
            "rendezvous": self.rendezvous,
        }

    def current_membership(self) -> RoomMembership:
        return replace(self.membership, members=self.members)

    def refresh_stale(self) -> None:
        """Choose again for all stale subjects, and for those that depend on a changed one."""
        if not any(table.stale_ids for table in self.by_map.values()):
            return
        before = {id: self.agents.chosen.get(id) for id in self.agents.stale_ids}
        changed = [(before[id], self.agents.chosen.get(id)) for id in self.agents.refresh_stale()]
        self.home_changes += any(_has_other_home(*pair) for pair in changed)
        if any(_has_moved(*pair) for pair in changed):
            self.routing.stale_ids.update(self.routing.records)
            self.catalog.stale_ids.update(self.catalog.records)
            self.index.stale_ids.update(self.index.records)
            self.eta.stale_ids.update(self.eta.records)
        published = self.catalog.refresh_stale()
        self.index.stale_ids |= published & self.index.records.keys()
        self.eta.stale_ids |= published & self.eta.records.keys()
        for table in self.by_map.values():
            table.refresh_stale()

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
        member = self.members.get(signed.writer)
        return member if member and member.public_key == signed.public_key else None

    def _choose_agent(self, id: str, records: list[SignedRecord]) -> OwnedAgent | None:
        claims = [s for s in records if isinstance(s.data, AgentRecord) and self._writing_member(s)]
        if is_reserved_name(id):
            self.reserved_claims |= {(id, signed.writer) for signed in claims}
            return None
        known = self.owners.known.get(id)
        choice = (id, claims, self.current_membership())
        owned = choose_owner(*choice, known, self.owners.is_dead)
        if owned is None and known is not None and _has_taken_back(known, records):
            owned = choose_owner(*choice, None, self.owners.is_dead)
        if owned is not None and owned.gateway is not None:
            self.owners.keep_owner(id, known_owner_of(owned))
        elif owned is not None or not claims:
            self.owners.keep_owner(id, None)
        self.contested.discard(id)
        if claims and (owned is None or owned.claimants):
            self.contested.add(id)
        return owned

    def _choose_route(self, id: str, records: list[SignedRecord]) -> RoutingRecord | None:
        return _highest_epoch(
            [
                claim
                for member, claim in self._claims_by_members(records, RoutingRecord)
                if member.may(Act.DESCRIBE_ANY_AGENT) or member.id in (id, self._gateway_of(id))
            ]
        )

    def _choose_capability(self, id: str, records: list[SignedRecord]) -> CapabilityRecord | None:
        """Choose a capability's claim. An edge node cannot take it from a backbone or senior node.

        Epochs order the claims of backbone nodes, and those about the same owner.
        """
        claims = self._capability_claims(records)
        trusted = [claim for member, claim in claims if member.may(Act.DESCRIBE_ANY_AGENT)]
        first = _highest_epoch(trusted or [claim for _, claim in claims[:1]])
        return first and _highest_epoch(
            [claim for _, claim in claims if claim.owner_agent_id == first.owner_agent_id]
        )

    def rival_capabilities(self, id: str) -> dict[str, CapabilityRecord]:
        """Owner → its claim, if only the seniority of edge nodes decides between them."""
        records = self.catalog.records.get(id, {})
        if len(records) < 2:
            return {}
        claims = self._capability_claims(list(records.values()))
        if any(member.may(Act.DESCRIBE_ANY_AGENT) for member, _ in claims):
            return {}
        found: dict[str, CapabilityRecord] = {}
        for _, claim in sorted(claims, key=lambda pair: pair[1].epoch):
            found[claim.owner_agent_id] = claim
        return found

    def _capability_claims(
        self, records: list[SignedRecord]
    ) -> list[tuple[RoomMember, CapabilityRecord]]:
        return [
            (member, claim)
            for member, claim in self._claims_by_members(records, CapabilityRecord)
            if self._may_describe(member, claim.owner_agent_id)
        ]

    def _choose_eligibility(self, id: str, records: list[SignedRecord]) -> EligibilityRecord | None:
        """Choose the index entry; a withdrawn or disabled capability has none."""
        capability = self.catalog.chosen.get(id)
        return None if capability is None else self.find_eligibility(id, capability)

    def find_eligibility(self, id: str, capability: CapabilityRecord) -> EligibilityRecord | None:
        """The agents that offer a capability, as the gateway of its owner says."""
        if capability.status == "disabled":
            return None
        records = list(self.index.records.get(id, {}).values())
        return _highest_epoch(
            [
                claim
                for member, claim in self._claims_by_members(records, EligibilityRecord)
                if self._may_describe(member, capability.owner_agent_id)
            ]
        )

    def _may_describe(self, member: RoomMember, agent: str) -> bool:
        return member.may(Act.DESCRIBE_ANY_AGENT) or member.id == self._gateway_of(agent)

    def _choose_invite(self, id: str, records: list[SignedRecord]) -> InviteRecord | None:
        claims = self._claims_by_members(records, InviteRecord)
        return next(
            (claim for member, claim in claims if may_write(member.role, InviteRecord)), None
        )

    def _choose_coordinator(
        self, id: str, records: list[SignedRecord]
    ) -> CoordinationRecord | None:
        """The claim of the latest term: of the genesis, or if it permits elections of any node."""
        members = self._claims_by_members(records, CoordinationRecord)
        own = [claim for member, claim in members if may_write(member.role, CoordinationRecord)]
        elected = [claim for member, claim in members if member.is_backbone]
        claims = elected if any(claim.elections for claim in own) else own
        return max(claims, key=lambda claim: claim.term, default=None)

    def _choose_reports(self, type: type[S]) -> ChooseRecord[tuple[FindingClaim[S], ...]]:
        """The claims about a review or an incident, of which findings.py chooses one.

        An edge node settles only a report that it alone has raised.
        """

        def choose(id: str, records: list[SignedRecord]) -> tuple[FindingClaim[S], ...] | None:
            found = [
                FindingClaim(member.id, member.may(Act.SETTLE_ANY_REPORT), claim)
                for member, claim in self._claims_by_members(records, type)
            ]
            counting = [
                claim
                for claim in found
                if claim.record.status == "open" or claim.is_trusted or len(found) == 1
            ]
            return tuple(counting) or None

        return choose

    def _choose_advice(
        self, id: str, records: list[SignedRecord]
    ) -> tuple[FindingClaim[EtaAdviceRecord], ...] | None:
        """Advice of backbone nodes, and of the gateway of the capability's owner."""
        capability = self.catalog.chosen.get(id)
        owner = None if capability is None else self._gateway_of(capability.owner_agent_id)
        found = [
            FindingClaim(member.id, member.may(Act.ADVISE_ANY_CAPABILITY), claim)
            for member, claim in self._claims_by_members(records, EtaAdviceRecord)
        ]
        return tuple(claim for claim in found if claim.is_trusted or claim.writer == owner) or None

    def _choose_secrets(self, id: str, records: list[SignedRecord]) -> MeshSecretRecord | None:
        claims = self._claims_by_members(records, MeshSecretRecord)
        counting = [claim for member, claim in claims if may_write(member.role, MeshSecretRecord)]
        return max(counting, key=lambda claim: (claim.version, claim.rotated_by), default=None)

    def _choose_senior(self, type: type[R]) -> ChooseRecord[R]:
        def choose_first(id: str, records: list[SignedRecord]) -> R | None:
            return next((claim for _, claim in self._claims_by_members(records, type)), None)

        return choose_first

    def _gateway_of(self, agent: str) -> str | None:
        owned = self.agents.chosen.get(agent)
        return None if owned is None else owned.gateway


E = TypeVar("E", RoutingRecord, CapabilityRecord, EligibilityRecord)


def _highest_epoch(claims: list[E]) -> E | None:
    """The claim with the highest epoch; among equals the first, from the senior writer."""
    return max(claims, key=lambda claim: claim.epoch, default=None)


def _has_taken_back(known: KnownOwner, records: list[SignedRecord]) -> bool:
    """Whether an owner withdrew its claim. An agent of a revoked or dead owner is not free."""
    return any(signed.writer == known.gateway and signed.data is None for signed in records)


def _has_other_home(before: OwnedAgent | None, after: OwnedAgent | None) -> bool:
    def home(owned: OwnedAgent | None) -> object:
        return owned and (
            owned.gateway,
            owned.standbys,
            owned.rivals,
            owned.claimants,
            owned.former,
            owned.record.order,
        )

    return home(before) != home(after)


def _has_moved(before: OwnedAgent | None, after: OwnedAgent | None) -> bool:
    return (before and before.gateway) != (after and after.gateway)
