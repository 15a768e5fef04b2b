"""Decides which keys belong to which node, and which nodes to the room, from signed room facts.

A gateway lists in `room/<id>.json` the nodes it knows and their keys, and signs the list. Its facts
are believed if the signature is its own, and if they do not contradict most other gateways. A key
that only the node itself states is *self-asserted*: it proves that the archive was not changed, but
not who wrote it. The gateway that the most others know is a member of the room; so are the nodes
that it knows, those that these know, and so on. No node becomes a member by its own word.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from gatepost.archive import room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest
from gatepost.archive.room_facts import HeadFact, RoomFacts
from gatepost.archive.signed_json import encode_canonical
from gatepost.errors import ArchiveError, ArchiveTooNew

_ROOM_FOLDER = "room"
_SUFFIX = ".json"
# The most gateways whose position in one outbox is kept.
_HEADS_KEPT = 8

Keys = frozenset[bytes]
# Node → the keys by which a gateway knows it; a revoked node may be back with a new key.
NodeKeys = Mapping[str, Keys]


class FactsDoubt(Struct, frozen=True):
    """The reason not to believe a gateway's facts; `at` is the time of these facts.

    A newer Gatepost wrote those that are `too_new`: they may be right.
    """

    node: str
    at: int
    detail: str
    too_new: bool = False


class SeenHead(Struct, frozen=True):
    """A head of an outbox, and the gateway that saw it."""

    head: HeadFact
    by: str


# (node, incarnation) → the furthest heads that other gateways saw.
SeenHeads = dict[tuple[str, str], list[SeenHead]]


class KeyTrust(Struct, frozen=True):
    """`facts` are the believed ones, `keys` the keys whose signatures count for each node.

    The facts come without their lists of nodes and heads, which `members` and `heads` sum up.
    `members` are the nodes of the room, revoked ones included; it is empty without believed facts.
    Only one of several gateways knows the key that signed the manifests of the `lone_keys` nodes.
    """

    facts: list[RoomFacts]
    keys: dict[str, tuple[bytes, ...]]
    members: frozenset[str]
    heads: SeenHeads
    self_asserted: tuple[str, ...]
    doubts: list[FactsDoubt]
    lone_keys: tuple[str, ...] = ()


def read_room_facts(
    store: ArchiveStore, doubts: list[FactsDoubt], most: int | None = None
) -> Iterator[RoomFacts]:
    """The facts of every gateway, one at a time; adds doubts about unusable files.

    With `most`, only those of about so many gateways.
    """
    names = store.list_files(_ROOM_FOLDER)
    for name in names[:: -(-len(names) // most)] if most and names else names:
        node = name.removeprefix(f"{_ROOM_FOLDER}/").removesuffix(_SUFFIX)
        try:
            facts = room_facts.read_facts(store, node) if name.endswith(_SUFFIX) else None
        except ArchiveError as error:
            doubts.append(FactsDoubt(node, 0, error.message, isinstance(error, ArchiveTooNew)))
            continue
        if facts is not None and facts.node != node:
            doubts.append(FactsDoubt(node, facts.at, f"{name} holds the facts of {facts.node}"))
        elif facts is not None:
            yield facts


def judge_room_facts(told: Iterable[RoomFacts], listed: Sequence[ArchiveManifest]) -> KeyTrust:
    """Believe gateways that signed their facts and are not contradicted."""
    doubts: list[FactsDoubt] = []
    heads: SeenHeads = {}
    believed = _index_statements(told, heads)
    for find_doubts in (_find_unsigned, _find_impostors, _find_contradictory, _find_outsiders):
        found = list(find_doubts(believed))
        doubts += found
        doubted = {doubt.node for doubt in found}
        believed = [each for each in believed if each.facts.node not in doubted]
    own: dict[str, tuple[bytes, ...]] = {node.node: (node.public_key,) for node in listed}
    own |= {each.facts.node: tuple(sorted(each.own_keys)) for each in believed}
    vouched = _vouched_keys(believed)
    alone = tuple(sorted({node.node for node in listed} - vouched.keys()))
    keys = {node: tuple(sorted(known)) for node, known in vouched.items()}
    return KeyTrust(
        [each.facts for each in believed],
        own | keys,
        _find_members(believed),
        _heads_by(heads, {each.facts.node for each in believed}),
        alone,
        doubts,
        tuple(_find_lone_keys(believed, listed)),
    )


class _Statement(Struct, frozen=True):
    """A gateway's facts, and the keys they state. Gateways that state the same share `keys`."""

    facts: RoomFacts
    keys: NodeKeys
    is_signed: bool

    @property
    def own_keys(self) -> Keys:
        return self.keys.get(self.facts.node, frozenset())


def _index_statements(told: Iterable[RoomFacts], heads: SeenHeads) -> list[_Statement]:
    """Statements with the keys that are stated; adds all heads to `heads`.

    The lists themselves are dropped: thousands of gateways each list thousands of nodes.
    """
    shared: dict[bytes, NodeKeys] = {}
    statements = []
    for facts in told:
        stated = sha256(encode_canonical((facts.nodes, facts.revocations))).digest()
        if stated not in shared:
            shared[stated] = _stated_keys(facts)
        own = shared[stated].get(facts.node, frozenset())
        signed = any(room_facts.are_facts_signed(facts, key) for key in own)
        for head in facts.heads:
            if head.node != facts.node:
                _keep_furthest(heads.setdefault((head.node, head.incarnation), []), head, facts)
        statements.append(_Statement(replace(facts, nodes=(), heads=()), shared[stated], signed))
    return statements


def _keep_furthest(known: list[SeenHead], head: HeadFact, facts: RoomFacts) -> None:
    """Keep the furthest heads that several gateways saw; one of them may not be believed."""
    known.append(SeenHead(head, facts.node))
    if len(known) > 2 * _HEADS_KEPT:
        known.sort(key=_head_order)
        del known[_HEADS_KEPT:]


def _head_order(seen: SeenHead) -> tuple[int, bool, str]:
    """Furthest first, and among equals first those with a chain."""
    return (-seen.head.seq, not seen.head.chain, seen.by)


def _heads_by(heads: SeenHeads, believed: set[str]) -> SeenHeads:
    """The heads that believed gateways saw, furthest first."""
    kept = {
        outbox: sorted((each for each in seen if each.by in believed), key=_head_order)
        for outbox, seen in heads.items()
    }
    return {outbox: seen for outbox, seen in kept.items() if seen}


def _stated_keys(facts: RoomFacts) -> NodeKeys:
    keys: dict[str, Keys] = {}
    known = [(fact.id, fact.public_key) for fact in facts.nodes]
    known += [(fact.node, fact.public_key) for fact in facts.revocations if fact.public_key]
    for node, key in known:
        keys[node] = keys.get(node, frozenset()) | {key}
    return keys


class _KeyVotes(Struct, frozen=True):
    """The keys by which gateways know one node, each with the number of these gateways."""

    sets: Counter[Keys]

    @classmethod
    def count_votes(cls, told: Sequence[_Statement]) -> dict[str, Self]:
        """Node → votes. Statements that share their keys are counted at once."""
        views = Counter(id(each.keys) for each in told)
        by_id = {id(each.keys): each.keys for each in told}
        votes: dict[str, Counter[Keys]] = {}
        for view, count in views.items():
            for node, keys in by_id[view].items():
                votes.setdefault(node, Counter())[keys] += count
        return {node: cls(sets) for node, sets in votes.items()}

    def majority_key(self, without: Keys | None = None) -> bytes | None:
        """The key that more than half of the voters know; `without` leaves out one of them."""
        counts: Counter[bytes] = Counter()
        voters = 0
        for keys, count in self.sets.items():
            left = count - (keys == without)
            voters += left
            counts.update(dict.fromkeys(keys, left))
        best = max(counts, key=lambda key: (counts[key], key), default=None)
        return best if best is not None and 2 * counts[best] > voters else None

    def count_voters(self, key: bytes, without: Keys | None) -> tuple[int, int]:
        """How many know this key, and how many know any; `without` leaves out one of them."""
        left = self.sets - Counter([without] if without is not None else [])
        return sum(n for keys, n in left.items() if key in keys), left.total()

    @property
    def is_contested(self) -> bool:
        return any(not one & other for one in self.sets for other in self.sets)


def _find_unsigned(told: Iterable[_Statement]) -> Iterator[FactsDoubt]:
    for each in told:
        if not each.is_signed:
            yield _doubt_facts(each, "its facts of the room are not signed with its key")


def _find_impostors(told: Sequence[_Statement]) -> Iterator[FactsDoubt]:
    """Gateways that signed, but with a key that most others do not know as this node's."""
    votes = _KeyVotes.count_votes(told)
    for each in told:
        key = votes[each.facts.node].majority_key(without=each.own_keys)
        if key is not None and key not in each.own_keys:
            yield _doubt_facts(each, "other gateways know this node by another key")


def _find_contradictory(told: Sequence[_Statement]) -> Iterator[FactsDoubt]:
    """Gateways that know a node by another key than the majority.

    Without a majority all gateways that know the node are doubted.
    """
    for node, votes in sorted(_KeyVotes.count_votes(told).items()):
        if votes.is_contested:
            key = votes.majority_key()
            for each in told:
                if node in each.keys and key not in each.keys[node]:
                    yield _doubt_facts(
                        each, f"it contradicts other gateways about the key of {node}"
                    )


def _find_outsiders(told: Sequence[_Statement]) -> Iterator[FactsDoubt]:
    """Gateways that no gateway of the room knows: anybody can write and sign such facts."""
    members = _find_members(told)
    for each in told:
        if each.facts.node not in members:
            yield _doubt_facts(each, "no gateway of the room knows this gateway")


def _find_lone_keys(
    believed: Sequence[_Statement], listed: Sequence[ArchiveManifest]
) -> Iterator[str]:
    """Nodes whose manifest is signed with a key that only one of several gateways knows."""
    votes = _KeyVotes.count_votes(believed)
    own = {each.facts.node: each.own_keys for each in believed}
    for each in listed:
        if each.node in votes:
            known, voters = votes[each.node].count_voters(each.public_key, own.get(each.node))
            if known == 1 < voters:
                yield each.node


def _vouched_keys(believed: Iterable[_Statement]) -> dict[str, set[bytes]]:
    """Node → keys that other gateways know it by."""
    keys: dict[str, set[bytes]] = {}
    for each in believed:
        for node, known in each.keys.items():
            if node != each.facts.node:
                keys.setdefault(node, set()).update(known)
    return keys


def _find_members(believed: Sequence[_Statement]) -> frozenset[str]:
    """The gateway that the most others know, the nodes that it knows, and so on."""
    known_by = Counter(node for each in believed for node in each.keys if node != each.facts.node)
    by_node = {each.facts.node: each for each in believed}
    start = max(by_node, key=lambda node: (known_by[node], node), default=None)
    members: set[str] = set()
    waiting = [] if start is None else [start]
    while waiting:
        node = waiting.pop()
        members.add(node)
        if node in by_node:
            fresh = by_node[node].keys.keys() - members
            members |= fresh
            waiting += fresh & by_node.keys()
    return frozenset(members)


def _doubt_facts(each: _Statement, detail: str) -> FactsDoubt:
    return FactsDoubt(each.facts.node, each.facts.at, detail)
