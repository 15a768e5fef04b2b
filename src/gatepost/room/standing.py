"""Membership: the nodes whose admission chain leads to the genesis without a revoked node.

Nodes have a seniority: first the genesis, then backbone nodes before edge nodes, then nodes with
fewer admissions between them and the genesis, then nodes admitted earlier. A revocation counts if
its writer is a member and senior to the node it names. Deciding nodes from senior to junior then
uses only decisions already made; without the order, two nodes that revoke each other would have no
outcome. The order also prevents a compromised node from revoking the nodes that can revoke it.

A node whose issuer was revoked stays a member if the revocation lists its key in `standing`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from msgspec import Struct

from gatepost.room.admission import Genesis, Link
from gatepost.room.records import Node, Revocation, subject
from gatepost.room.signing import Signed
from gatepost.wire import Tier

Rank = tuple[bool, int, int, str, bytes]
# The rank of a non-member: junior to every member.
OUTSIDE: Rank = (True, 2**31, 0, "", b"")

Identity = tuple[str, bytes]


class Member(Struct, frozen=True):
    """A node that counts. The smaller rank is the senior one."""

    id: str
    public_key: bytes
    rank: Rank
    record: Node
    chain: tuple[Link, ...]

    @property
    def tier(self) -> Tier:
        return self.record.tier

    @property
    def is_backbone(self) -> bool:
        return self.record.tier == "backbone"


class Standing(Struct, frozen=True):
    """Members by node id, the revocations that count, and all keys seen per node id."""

    members: Mapping[str, Member]
    revoked: Mapping[Identity, tuple[Signed, ...]]
    keys: Mapping[str, frozenset[bytes]]


def decide(records: Iterable[Signed], genesis: Genesis) -> Standing:
    """Decide the membership from all records of the map `nodes`."""
    records = list(records)
    case = _Case(genesis, records)
    case.run()
    keys = defaultdict(set)
    for link in case.links():
        keys[link.node].add(link.key)
    members = _members(records, case.ranks)
    return Standing(members, case.revoked, {n: frozenset(k) for n, k in keys.items()})


class _Case:
    """Walks the admissions from the genesis outwards, senior nodes first."""

    def __init__(self, genesis: Genesis, records: list[Signed]) -> None:
        self._genesis = (genesis.node, genesis.key)
        self._issued = self._admissions({signed.chain for signed in records})
        self._against = _revocations(records)
        self._queue: list[tuple[Rank, Identity]] = []
        self._seen: set[Identity] = set()
        self.ranks: dict[Identity, Rank] = {}
        self.revoked: dict[Identity, tuple[Signed, ...]] = {}

    def links(self) -> Iterable[Link]:
        return (link for links in self._issued.values() for link in links)

    def run(self) -> None:
        self._queue = [((False, 0, 0, *self._genesis), self._genesis)]
        while self._queue:
            rank, identity = heappop(self._queue)
            if identity not in self._seen:
                self._seen.add(identity)
                self._judge(identity, rank)

    def _judge(self, identity: Identity, rank: Rank) -> None:
        revocations = [s for s in self._against.get(identity, ()) if self._counts(s)]
        if revocations:
            self.revoked[identity] = tuple(revocations)
        else:
            self.ranks[identity] = rank
        for link in self._issued.get(identity, ()):
            if all(_spares(revocation, link) for revocation in revocations):
                heappush(self._queue, (_rank(link, rank[1] + 1), (link.node, link.key)))

    def _counts(self, revocation: Signed) -> bool:
        # Only nodes senior to the one being judged have a rank by now.
        rank = self.ranks.get((revocation.writer, revocation.public_key))
        return rank is not None and not rank[0]

    def _admissions(self, chains: set[tuple[Link, ...]]) -> dict[Identity, set[Link]]:
        issued: dict[Identity, set[Link]] = defaultdict(set)
        for chain in chains:
            issuer = self._genesis
            for link in chain:
                issued[issuer].add(link)
                issuer = (link.node, link.key)
        return issued


def _revocations(records: list[Signed]) -> dict[Identity, list[Signed]]:
    """The revocations by the node they name."""
    links = {link for signed in records for link in signed.chain}
    keys = {(link.node, link.fingerprint): link.key for link in links}
    against: dict[Identity, list[Signed]] = defaultdict(list)
    for signed in records:
        if isinstance(signed.data, Revocation):
            node = subject(signed.key)
            if (key := keys.get((node, signed.data.key))) is not None:
                against[node, key].append(signed)
    return against


def _spares(revocation: Signed, link: Link) -> bool:
    data = revocation.data
    return isinstance(data, Revocation) and link.fingerprint in data.standing


def _rank(link: Link, depth: int) -> Rank:
    return link.tier == "edge", depth, link.issued_at, link.node, link.key


def _members(records: list[Signed], ranks: Mapping[Identity, Rank]) -> dict[str, Member]:
    members: dict[str, Member] = {}
    for signed in records:
        rank = ranks.get((signed.writer, signed.public_key))
        if isinstance(signed.data, Node) and rank is not None:
            found = Member(signed.writer, signed.public_key, rank, signed.data, signed.chain)
            known = members.get(found.id)
            # A node id keeps one key for ever. If two keys turn up, the senior one counts.
            if known is None or found.rank < known.rank:
                members[found.id] = found
    return members
