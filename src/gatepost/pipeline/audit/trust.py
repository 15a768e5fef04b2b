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

_FOLDER = "room"
_SUFFIX = ".json"

Keys = dict[str, set[bytes]]


class Doubt(Struct, frozen=True):
    """The reason not to believe a gateway's facts; `at` is the time of these facts."""

    node: str
    at: int
    detail: str


class Trust(Struct, frozen=True):
    """`facts` are the believed ones, `keys` the keys whose signatures count for each node."""

    facts: list[RoomFacts]
    keys: dict[str, tuple[bytes, ...]]
    self_asserted: tuple[str, ...]
    doubts: list[Doubt]


def read(store: ArchiveStore) -> tuple[list[RoomFacts], list[Doubt]]:
    """The facts of every gateway, and doubts about files that are unreadable or misplaced."""
    read_facts, doubts = [], []
    for name in store.list_files(_FOLDER):
        node = name.removeprefix(f"{_FOLDER}/").removesuffix(_SUFFIX)
        try:
            facts = room_facts.read_facts(store, node) if name.endswith(_SUFFIX) else None
        except ArchiveError as error:
            doubts.append(Doubt(node, 0, error.message))
            continue
        if facts is not None and facts.node != node:
            doubts.append(Doubt(node, facts.at, f"{name} holds the facts of {facts.node}"))
        elif facts is not None:
            read_facts.append(facts)
    return read_facts, doubts


def judge(told: Sequence[RoomFacts], listed: Sequence[ArchiveManifest]) -> Trust:
    """Believe gateways that signed their facts and are not contradicted."""
    doubts: list[Doubt] = []
    believed = list(told)
    for find_doubts in (_unsigned, _impostors, _contradictory):
        found = list(find_doubts(believed))
        doubts += found
        doubted = {doubt.node for doubt in found}
        believed = [facts for facts in believed if facts.node not in doubted]
    own: dict[str, tuple[bytes, ...]] = {node.node: (node.public_key,) for node in listed}
    own |= {facts.node: tuple(sorted(_said(facts)[facts.node])) for facts in believed}
    vouched = _vouched(believed)
    alone = tuple(sorted({node.node for node in listed} - vouched.keys()))
    keys = {node: tuple(sorted(known)) for node, known in vouched.items()}
    return Trust(believed, own | keys, alone, doubts)


def _said(facts: RoomFacts) -> Keys:
    """Node → keys this gateway knows; a revoked node may be back with a new key."""
    keys: Keys = {}
    known = [(fact.id, fact.public_key) for fact in facts.nodes]
    known += [(fact.node, fact.public_key) for fact in facts.revocations if fact.public_key]
    for node, key in known:
        keys.setdefault(node, set()).add(key)
    return keys


def _unsigned(told: Iterable[RoomFacts]) -> Iterator[Doubt]:
    for facts in told:
        own = _said(facts).get(facts.node, set())
        if not any(room_facts.are_facts_signed(facts, key) for key in own):
            yield _doubt(facts, "its facts of the room are not signed with its key")


def _impostors(told: Sequence[RoomFacts]) -> Iterator[Doubt]:
    """Gateways that signed, but with a key that most others do not know as this node's."""
    for facts in told:
        others = [_said(other) for other in told if other.node != facts.node]
        votes = [known[facts.node] for known in others if facts.node in known]
        key = _majority(votes)
        if key is not None and key not in _said(facts)[facts.node]:
            yield _doubt(facts, "other gateways know this node by another key")


def _contradictory(told: Sequence[RoomFacts]) -> Iterator[Doubt]:
    """Gateways that know a node by another key than the majority.

    Without a majority all gateways that know the node are doubted.
    """
    stated = {facts.node: _said(facts) for facts in told}
    for node in sorted({node for known in stated.values() for node in known}):
        votes = [known[node] for known in stated.values() if node in known]
        key = _majority(votes)
        if any(not one & other for one in votes for other in votes):
            for facts in told:
                if node in stated[facts.node] and key not in stated[facts.node][node]:
                    yield _doubt(facts, f"it contradicts other gateways about the key of {node}")


def _majority(votes: Sequence[set[bytes]]) -> bytes | None:
    """The key that more than half of the voters know, if there is one."""
    counts = Counter(key for keys in votes for key in keys)
    best = max(counts, key=lambda key: (counts[key], key), default=None)
    return best if best is not None and 2 * counts[best] > len(votes) else None


def _vouched(believed: Iterable[RoomFacts]) -> Keys:
    """Node → keys that other gateways know it by."""
    keys: Keys = {}
    for facts in believed:
        for node, known in _said(facts).items():
            if node != facts.node:
                keys.setdefault(node, set()).update(known)
    return keys


def _doubt(facts: RoomFacts, detail: str) -> Doubt:
    return Doubt(facts.node, facts.at, detail)
