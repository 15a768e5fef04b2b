"""Membership: the nodes whose admission chain leads to the genesis without a revoked node.

Nodes have a seniority: first the genesis, then backbone nodes before edge nodes, then nodes with
fewer admissions between them and the genesis, then nodes admitted earlier. A revocation counts if
its writer is a member and senior to the node it names. Deciding nodes from senior to junior then
uses only decisions already made; without the order, two nodes that revoke each other would have no
outcome. The order also prevents a compromised node from revoking the nodes that can revoke it.

A node whose issuer was revoked stays a member if the revocation lists its key in `standing`, or in
one of the parts that belong to it. Until all parts are there, every node that the revoked one
admitted stays a member: a part that comes late must not make a member an outsider for a moment.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from msgspec import Struct

from gatepost.room.admission_chain import AdmissionLink, Genesis
from gatepost.room.records import (
    NodeRecord,
    RevocationRecord,
    StandingRecord,
    key_subject,
    standing_key,
)
from gatepost.room.roles import Act, Role, may_act, role_of_tier
from gatepost.room.signed_record import SignedRecord
from gatepost.wire.operations import Tier

SeniorityRank = tuple[bool, int, int, str, bytes]
# The rank of a non-member: junior to every member.
OUTSIDER_RANK: SeniorityRank = (True, 2**31, 0, "", b"")

NodeIdentity = tuple[str, bytes]


class RoomMember(Struct, frozen=True):
    """A node that counts. The smaller rank is the senior one."""

    id: str
    public_key: bytes
    rank: SeniorityRank
    record: NodeRecord
    chain: tuple[AdmissionLink, ...]

    @property
    def tier(self) -> Tier:
        return self.record.tier

    @property
    def role(self) -> Role:
        is_genesis = self.rank[1] == 0
        return Role.COORDINATOR if is_genesis else role_of_tier(self.tier)

    @property
    def is_backbone(self) -> bool:
        return self.role >= Role.BACKBONE

    def may(self, act: Act) -> bool:
        return may_act(self.role, act)


class RoomMembership(Struct, frozen=True):
    """Members by node id, the revocations that count, and all keys seen per node id.

    `ranks` has every admitted node that counts, also one whose record of itself is not there.
    """

    members: Mapping[str, RoomMember]
    revoked: Mapping[NodeIdentity, tuple[SignedRecord, ...]]
    keys: Mapping[str, frozenset[bytes]]
    ranks: Mapping[NodeIdentity, SeniorityRank]

    def last_honoured_seqs(self) -> dict[NodeIdentity, int]:
        """Revoked node → the last sequence number of its outbox that counts.

        If several nodes have revoked it, the lowest number counts.
        """
        return {
            identity: min(s.data.last_seq for s in records if isinstance(s.data, RevocationRecord))
            for identity, records in self.revoked.items()
        }


def decide_membership(
    records: Iterable[SignedRecord],
    genesis: Genesis,
    chains: Iterable[tuple[AdmissionLink, ...]] = (),
) -> RoomMembership:
    """Decide the membership from all records of the maps `nodes` and `standing`.

    `chains` are admissions of nodes beside those of the writers.
    """
    records = list(records)
    case = _MembershipWalk(genesis, records, {*chains, *(signed.chain for signed in records)})
    case.walk_admissions()
    keys = defaultdict(set)
    for link in case.all_links():
        keys[link.node].add(link.key)
    members = _members_by_id(records, case.ranks)
    known = {node: frozenset(seen) for node, seen in keys.items()}
    return RoomMembership(members, case.revoked, known, case.ranks)


class _MembershipWalk:
    """Walks the admissions from the genesis outwards, senior nodes first."""

    def __init__(
        self,
        genesis: Genesis,
        records: list[SignedRecord],
        chains: set[tuple[AdmissionLink, ...]],
    ) -> None:
        self._genesis = (genesis.node, genesis.key)
        self._links_by_issuer = self._links_issued(chains)
        self._revocations = _revocations_by_node(records, chains)
        self._parts = _standing_by_key(records)
        self._queue: list[tuple[SeniorityRank, NodeIdentity]] = []
        self._seen: set[NodeIdentity] = set()
        self.ranks: dict[NodeIdentity, SeniorityRank] = {}
        self.revoked: dict[NodeIdentity, tuple[SignedRecord, ...]] = {}

    def all_links(self) -> Iterable[AdmissionLink]:
        return (link for links in self._links_by_issuer.values() for link in links)

    def walk_admissions(self) -> None:
        self._queue = [((False, 0, 0, *self._genesis), self._genesis)]
        while self._queue:
            rank, identity = heappop(self._queue)
            if identity not in self._seen:
                self._seen.add(identity)
                self._judge_node(identity, rank)

    def _judge_node(self, identity: NodeIdentity, rank: SeniorityRank) -> None:
        revocations = [s for s in self._revocations.get(identity, ()) if self._revocation_counts(s)]
        if revocations:
            self.revoked[identity] = tuple(revocations)
        else:
            self.ranks[identity] = rank
        standing = [self._standing_keys(revocation) for revocation in revocations]
        for link in self._links_by_issuer.get(identity, ()):
            if all(keys is None or link.fingerprint in keys for keys in standing):
                heappush(self._queue, (_rank_link(link, rank[1] + 1), (link.node, link.key)))

    def _revocation_counts(self, revocation: SignedRecord) -> bool:
        # Only nodes senior to the one being judged have a rank by now.
        rank = self.ranks.get((revocation.writer, revocation.public_key))
        return rank is not None and not rank[0]

    def _standing_keys(self, revocation: SignedRecord) -> frozenset[str] | None:
        """The keys that stay admitted after a revocation; None if a part of them is missing."""
        data = revocation.data
        assert isinstance(data, RevocationRecord)
        found = set(data.standing)
        for number in range(data.standing_parts):
            key = standing_key(data.key, number, revocation.writer)
            part = self._parts.get((revocation.writer, revocation.public_key, key))
            if part is None:
                return None
            found |= part
        return frozenset(found)

    def _links_issued(
        self, chains: set[tuple[AdmissionLink, ...]]
    ) -> dict[NodeIdentity, set[AdmissionLink]]:
        issued: dict[NodeIdentity, set[AdmissionLink]] = defaultdict(set)
        for chain in chains:
            issuer = self._genesis
            for link in chain:
                issued[issuer].add(link)
                issuer = (link.node, link.key)
        return issued


def _revocations_by_node(
    records: list[SignedRecord], chains: set[tuple[AdmissionLink, ...]]
) -> dict[NodeIdentity, list[SignedRecord]]:
    """The revocations by the node they name."""
    links = {link for chain in chains for link in chain}
    keys = {(link.node, link.fingerprint): link.key for link in links}
    against: dict[NodeIdentity, list[SignedRecord]] = defaultdict(list)
    for signed in records:
        if isinstance(signed.data, RevocationRecord):
            node = key_subject(signed.key)
            if (key := keys.get((node, signed.data.key))) is not None:
                against[node, key].append(signed)
    return against


def _standing_by_key(records: list[SignedRecord]) -> dict[tuple[str, bytes, str], frozenset[str]]:
    """The parts of standing keys, by their writer and key."""
    return {
        (signed.writer, signed.public_key, signed.key): frozenset(signed.data.standing)
        for signed in records
        if isinstance(signed.data, StandingRecord)
    }


def rank_chain(chain: tuple[AdmissionLink, ...]) -> SeniorityRank:
    """The rank that the writer of a record has by its chain, if nothing in it is revoked."""
    return _rank_link(chain[-1], len(chain))


def _rank_link(link: AdmissionLink, depth: int) -> SeniorityRank:
    return link.tier == "edge", depth, link.issued_at, link.node, link.key


def _members_by_id(
    records: list[SignedRecord], ranks: Mapping[NodeIdentity, SeniorityRank]
) -> dict[str, RoomMember]:
    members: dict[str, RoomMember] = {}
    for signed in records:
        rank = ranks.get((signed.writer, signed.public_key))
        if isinstance(signed.data, NodeRecord) and rank is not None:
            found = RoomMember(signed.writer, signed.public_key, rank, signed.data, signed.chain)
            known = members.get(found.id)
            # A node id keeps one key for ever. If two keys turn up, the senior one counts.
            if known is None or found.rank < known.rank:
                members[found.id] = found
    return members
