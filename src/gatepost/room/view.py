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

from gatepost.room.admission import Genesis
from gatepost.room.ownership import Owned, owner
from gatepost.room.records import (
    Agent,
    Capability,
    Coordination,
    Delivery,
    Eligibility,
    Invite,
    Node,
    Record,
    Review,
    Routing,
    subject,
)
from gatepost.room.signing import Signed
from gatepost.room.standing import Member, Standing, decide

T = TypeVar("T")
R = TypeVar("R", bound=Record)
Judge = Callable[[str, list[Signed]], T | None]


class Table(Generic[T]):
    """One map: all records by subject, and the result chosen for each subject."""

    def __init__(self, judge: Judge[T]) -> None:
        self._judge = judge
        self.records: dict[str, dict[tuple[str, bytes], Signed]] = defaultdict(dict)
        self.shown: dict[str, T] = {}
        self.stale: set[str] = set()

    def add(self, signed: Signed) -> Signed | None:
        """Store a record and return the one it supersedes."""
        id, slot = subject(signed.key), (signed.key, signed.public_key)
        known = self.records[id].get(slot)
        self.records[id][slot] = signed
        self.stale.add(id)
        return known

    def refresh(self) -> set[str]:
        """Choose again for all stale ids; return the ids with a new result."""
        changed = {id for id in self.stale if self._refresh(id)}
        self.stale.clear()
        return changed

    def _refresh(self, id: str) -> bool:
        before = self.shown.pop(id, None)
        after = self._judge(id, list(self.records[id].values()))
        if after is not None:
            self.shown[id] = after
        return before != after


class View:
    """Live typed mappings by id. Only `add_records` changes the stored records."""

    def __init__(self, genesis: Genesis) -> None:
        self._genesis = genesis
        self._nodes = Table[Member](lambda id, records: None)
        self._agents = Table(self._agent)
        self._catalog = Table(self._capability)
        self._index = Table(self._eligibility)
        self._routing = Table(self._route)
        self._invites = Table(self._invite)
        self._delivery = Table(self._senior_of(Delivery))
        self._coordination = Table(self._coordinator)
        self._reviews = Table(self._senior_of(Review))
        self._tables: dict[str, Table[Any]] = {
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
        self._touching: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._standing = Standing({}, {}, {})
        self._members: dict[str, Member] = {}
        self._undecided = False

    @property
    def nodes(self) -> Mapping[str, Member]:
        self._refresh()
        return MappingProxyType(self._members)

    @property
    def standing(self) -> Standing:
        self._refresh()
        return self._judgement()

    @property
    def agents(self) -> Mapping[str, Owned]:
        return self._look(self._agents)

    @property
    def routing(self) -> Mapping[str, Routing]:
        return self._look(self._routing)

    @property
    def catalog(self) -> Mapping[str, Capability]:
        return self._look(self._catalog)

    @property
    def index(self) -> Mapping[str, Eligibility]:
        return self._look(self._index)

    @property
    def invites(self) -> Mapping[str, Invite]:
        return self._look(self._invites)

    @property
    def delivery(self) -> Mapping[str, Delivery]:
        return self._look(self._delivery)

    @property
    def reviews(self) -> Mapping[str, Review]:
        return self._look(self._reviews)

    @property
    def coordination(self) -> Coordination | None:
        """The claim with the highest term."""
        return self._look(self._coordination).get("coordinator")

    def update(self, changed: Iterable[Signed]) -> None:
        for signed in changed:
            known = self._tables[signed.map].add(signed)
            for node in _nodes_in(signed):
                self._touching[node].add((signed.map, subject(signed.key)))
            if signed.map == "nodes":
                self._node_changed(known, signed)

    def _node_changed(self, known: Signed | None, signed: Signed) -> None:
        """Recompute the membership, except after a mere heartbeat, the most frequent change."""
        member = self._members.get(signed.writer)
        if known is None or known.chain != signed.chain or not _both_nodes(known, signed):
            self._undecided = True
        elif member and isinstance(signed.data, Node) and member.public_key == signed.public_key:
            self._members[member.id] = replace(member, record=signed.data)

    def _look(self, table: Table[T]) -> Mapping[str, T]:
        self._refresh()
        return MappingProxyType(table.shown)

    def _refresh(self) -> None:
        if self._undecided:
            self._decide()
        before = {id: self._agents.shown.get(id) for id in self._agents.stale}
        if any(_moved(before[id], self._agents.shown.get(id)) for id in self._agents.refresh()):
            self._routing.stale.update(self._routing.records)
            self._catalog.stale.update(self._catalog.records)
            self._index.stale.update(self._index.records)
        self._index.stale |= self._catalog.refresh() & self._index.records.keys()
        for table in self._tables.values():
            table.refresh()

    def _decide(self) -> None:
        records = (s for slots in self._nodes.records.values() for s in slots.values())
        before, keys = self._members, self._standing.keys
        self._standing = decide(records, self._genesis)
        self._members = dict(self._standing.members)
        self._undecided = False
        for node in before.keys() | self._standing.keys.keys():
            known = (before.get(node), keys.get(node))
            if _standing_differs(known, (self._members.get(node), self._standing.keys.get(node))):
                for map, id in self._touching[node]:
                    self._tables[map].stale.add(id)

    def _judgement(self) -> Standing:
        return replace(self._standing, members=self._members)

    def _by_members(self, records: list[Signed], type: type[R]) -> list[tuple[Member, R]]:
        """The claims written by members, senior writers first, so that the first of equals wins."""
        found = [
            (member, signed.data)
            for signed in records
            if isinstance(signed.data, type) and (member := self._author(signed)) is not None
        ]
        return sorted(found, key=lambda pair: pair[0].rank)

    def _author(self, signed: Signed) -> Member | None:
        member = self._members.get(signed.writer)
        return member if member and member.public_key == signed.public_key else None

    def _agent(self, id: str, records: list[Signed]) -> Owned | None:
        claims = [s for s in records if isinstance(s.data, Agent) and self._author(s)]
        return owner(id, claims, self._judgement())

    def _route(self, id: str, records: list[Signed]) -> Routing | None:
        return _latest(
            [
                claim
                for member, claim in self._by_members(records, Routing)
                if member.is_backbone or member.id in (id, self._gateway(id))
            ]
        )

    def _capability(self, id: str, records: list[Signed]) -> Capability | None:
        return _latest(
            [
                claim
                for member, claim in self._by_members(records, Capability)
                if member.is_backbone or member.id == self._gateway(claim.owner_agent_id)
            ]
        )

    def _eligibility(self, id: str, records: list[Signed]) -> Eligibility | None:
        """Choose the index entry; a withdrawn or disabled capability has none."""
        capability = self._catalog.shown.get(id)
        if capability is None or capability.status == "disabled":
            return None
        gateway = self._gateway(capability.owner_agent_id)
        return _latest(
            [
                claim
                for member, claim in self._by_members(records, Eligibility)
                if member.is_backbone or member.id == gateway
            ]
        )

    def _invite(self, id: str, records: list[Signed]) -> Invite | None:
        claims = self._by_members(records, Invite)
        return next((claim for member, claim in claims if member.is_backbone), None)

    def _coordinator(self, id: str, records: list[Signed]) -> Coordination | None:
        claims = [claim for _, claim in self._by_members(records, Coordination)]
        return max(claims, key=lambda claim: claim.term, default=None)

    def _senior_of(self, type: type[R]) -> Judge[R]:
        def choose_first(id: str, records: list[Signed]) -> R | None:
            return next((claim for _, claim in self._by_members(records, type)), None)

        return choose_first

    def _gateway(self, agent: str) -> str | None:
        owned = self._agents.shown.get(agent)
        return None if owned is None else owned.gateway


E = TypeVar("E", Routing, Capability, Eligibility)


def _latest(claims: list[E]) -> E | None:
    """The claim with the highest epoch; among equals the first, from the senior writer."""
    return max(claims, key=lambda claim: claim.epoch, default=None)


def _nodes_in(signed: Signed) -> set[str]:
    """The nodes whose membership decides whether the record counts."""
    data = signed.data
    if not isinstance(data, Agent):
        return {signed.writer}
    givers = {step.giver for step in data.transfers}
    return {signed.writer, *givers, *([data.gateway] if data.gateway else [])}


def _both_nodes(known: Signed, signed: Signed) -> bool:
    return isinstance(known.data, Node) and isinstance(signed.data, Node)


def _moved(before: Owned | None, after: Owned | None) -> bool:
    return (before and before.gateway) != (after and after.gateway)


_Known = tuple[Member | None, frozenset[bytes] | None]


def _standing_differs(before: _Known, after: _Known) -> bool:
    def relevant_part(known: _Known) -> object:
        member, keys = known
        return keys, member and (member.public_key, member.rank, member.tier)

    return relevant_part(before) != relevant_part(after)
