"""Decides which keys belong to which node, from the facts that gateways signed.

A gateway lists in `room/<id>.json` the nodes it knows and their keys, and signs the list. Its facts
are believed if the signature is its own, and if they do not contradict most other gateways. A key
that only the node itself states is *self-asserted*: it proves that the archive was not changed, but
not who wrote it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from gatepost.archive import room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest
from gatepost.archive.room_facts import RoomFacts
from gatepost.errors import ArchiveError

_ROOM_FOLDER = "room"
_SUFFIX = ".json"

NodeKeys = dict[str, set[bytes]]


class FactsDoubt(Struct, frozen=True):
    """The reason not to believe a gateway's facts; `at` is the time of these facts."""

    node: str
    at: int
    detail: str


class KeyTrust(Struct, frozen=True):
    """`facts` are the believed ones, `keys` the keys whose signatures count for each node."""

    facts: list[RoomFacts]
    keys: dict[str, tuple[bytes, ...]]
    self_asserted: tuple[str, ...]
    doubts: list[FactsDoubt]


def read_room_facts(store: ArchiveStore) -> tuple[list[RoomFacts], list[FactsDoubt]]:
    """The facts of every gateway, and doubts about files that are unreadable or misplaced."""
    read_facts, doubts = [], []
    for name in store.list_files(_ROOM_FOLDER):
        node = name.removeprefix(f"{_ROOM_FOLDER}/").removesuffix(_SUFFIX)
        try:
            facts = room_facts.read_facts(store, node) if name.endswith(_SUFFIX) else None
        except ArchiveError as error:
            doubts.append(FactsDoubt(node, 0, error.message))
            continue
        if facts is not None and facts.node != node:
            doubts.append(FactsDoubt(node, facts.at, f"{name} holds the facts of {facts.node}"))
        elif facts is not None:
            read_facts.append(facts)
    return read_facts, doubts


def judge_room_facts(told: Sequence[RoomFacts], listed: Sequence[ArchiveManifest]) -> KeyTrust:
    """Believe gateways that signed their facts and are not contradicted."""
    doubts: list[FactsDoubt] = []
    believed = list(told)
    for find_doubts in (_find_unsigned, _find_impostors, _find_contradictory):
        found = list(find_doubts(believed))
        doubts += found
        doubted = {doubt.node for doubt in found}
        believed = [facts for facts in believed if facts.node not in doubted]
    own: dict[str, tuple[bytes, ...]] = {node.node: (node.public_key,) for node in listed}
    own |= {facts.node: tuple(sorted(_stated_keys(facts)[facts.node])) for facts in believed}
    vouched = _vouched_keys(believed)
    alone = tuple(sorted({node.node for node in listed} - vouched.keys()))
    keys = {node: tuple(sorted(known)) for node, known in vouched.items()}
    return KeyTrust(believed, own | keys, alone, doubts)


def _stated_keys(facts: RoomFacts) -> NodeKeys:
    """Node → keys this gateway knows; a revoked node may be back with a new key."""
    keys: NodeKeys = {}
    known = [(fact.id, fact.public_key) for fact in facts.nodes]
    known += [(fact.node, fact.public_key) for fact in facts.revocations if fact.public_key]
    for node, key in known:
        keys.setdefault(node, set()).add(key)
    return keys


def _find_unsigned(told: Iterable[RoomFacts]) -> Iterator[FactsDoubt]:
    for facts in told:
        own = _stated_keys(facts).get(facts.node, set())
        if not any(room_facts.are_facts_signed(facts, key) for key in own):
            yield _doubt_facts(facts, "its facts of the room are not signed with its key")


def _find_impostors(told: Sequence[RoomFacts]) -> Iterator[FactsDoubt]:
    """Gateways that signed, but with a key that most others do not know as this node's."""
    for facts in told:
        others = [_stated_keys(other) for other in told if other.node != facts.node]
        votes = [known[facts.node] for known in others if facts.node in known]
        key = _majority_key(votes)
        if key is not None and key not in _stated_keys(facts)[facts.node]:
            yield _doubt_facts(facts, "other gateways know this node by another key")


def _find_contradictory(told: Sequence[RoomFacts]) -> Iterator[FactsDoubt]:
    """Gateways that know a node by another key than the majority.

    Without a majority all gateways that know the node are doubted.
    """
    stated = {facts.node: _stated_keys(facts) for facts in told}
    for node in sorted({node for known in stated.values() for node in known}):
        votes = [known[node] for known in stated.values() if node in known]
        key = _majority_key(votes)
        if any(not one & other for one in votes for other in votes):
            for facts in told:
                if node in stated[facts.node] and key not in stated[facts.node][node]:
                    yield _doubt_facts(
                        facts, f"it contradicts other gateways about the key of {node}"
                    )


def _majority_key(votes: Sequence[set[bytes]]) -> bytes | None:
    """The key that more than half of the voters know, if there is one."""
    counts = Counter(key for keys in votes for key in keys)
    best = max(counts, key=lambda key: (counts[key], key), default=None)
    return best if best is not None and 2 * counts[best] > len(votes) else None


def _vouched_keys(believed: Iterable[RoomFacts]) -> NodeKeys:
    """Node → keys that other gateways know it by."""
    keys: NodeKeys = {}
    for facts in believed:
        for node, known in _stated_keys(facts).items():
            if node != facts.node:
                keys.setdefault(node, set()).update(known)
    return keys


def _doubt_facts(facts: RoomFacts, detail: str) -> FactsDoubt:
    return FactsDoubt(facts.node, facts.at, detail)
