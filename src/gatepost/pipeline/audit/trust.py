"""Whose word counts: which key is a node's, and who says so.

A gateway tells in `room/<id>.json` which nodes it knows by which keys, and signs that. Its word
counts if the signature is its own and if it does not contradict what most others say. What nobody
but the node itself says of its key proves that the archive was not changed, but not by whom it was
written: such a key is self-asserted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from gatepost.archive import room_facts
from gatepost.archive.manifest import Manifest
from gatepost.archive.room_facts import RoomFacts
from gatepost.archive.store import Store
from gatepost.errors import ArchiveError

_FOLDER = "room"
_SUFFIX = ".json"

Keys = dict[str, set[bytes]]


class Doubt(Struct, frozen=True):
    """Why a gateway is not believed; `at` is when it said what it said."""

    node: str
    at: int
    detail: str


class Trust(Struct, frozen=True):
    """`facts` are the believed ones, `keys` are those that sign for each node."""

    facts: list[RoomFacts]
    keys: dict[str, tuple[bytes, ...]]
    self_asserted: tuple[str, ...]
    doubts: list[Doubt]


def read(store: Store) -> tuple[list[RoomFacts], list[Doubt]]:
    """What every gateway says, and which of it cannot be read or is not its own."""
    told, doubts = [], []
    for name in store.files(_FOLDER):
        node = name.removeprefix(f"{_FOLDER}/").removesuffix(_SUFFIX)
        try:
            facts = room_facts.read(store, node) if name.endswith(_SUFFIX) else None
        except ArchiveError as error:
            doubts.append(Doubt(node, 0, error.message))
            continue
        if facts is not None and facts.node != node:
            doubts.append(Doubt(node, facts.at, f"{name} is what {facts.node} says"))
        elif facts is not None:
            told.append(facts)
    return told, doubts


def judge(told: Sequence[RoomFacts], listed: Sequence[Manifest]) -> Trust:
    """Believe who signed and is not contradicted."""
    doubts: list[Doubt] = []
    believed = list(told)
    for doubted in (_unsigned, _impostors, _contradictory):
        found = list(doubted(believed))
        doubts += found
        gone = {doubt.node for doubt in found}
        believed = [facts for facts in believed if facts.node not in gone]
    own: dict[str, tuple[bytes, ...]] = {node.node: (node.public_key,) for node in listed}
    own |= {facts.node: tuple(sorted(_said(facts)[facts.node])) for facts in believed}
    vouched = _vouched(believed)
    alone = tuple(sorted({node.node for node in listed} - vouched.keys()))
    keys = {node: tuple(sorted(known)) for node, known in vouched.items()}
    return Trust(believed, own | keys, alone, doubts)


def _said(facts: RoomFacts) -> Keys:
    """By node the keys this gateway knows; one that was shut out may be back with a new one."""
    keys: Keys = {}
    known = [(fact.id, fact.public_key) for fact in facts.nodes]
    known += [(fact.node, fact.public_key) for fact in facts.revocations if fact.public_key]
    for node, key in known:
        keys.setdefault(node, set()).add(key)
    return keys


def _unsigned(told: Iterable[RoomFacts]) -> Iterator[Doubt]:
    for facts in told:
        own = _said(facts).get(facts.node, set())
        if not any(room_facts.is_signed(facts, key) for key in own):
            yield _doubt(facts, "what it says of the room is not signed with its key")


def _impostors(told: Sequence[RoomFacts]) -> Iterator[Doubt]:
    """Signed, but with a key under which most others do not know this node."""
    for facts in told:
        others = [_said(other) for other in told if other.node != facts.node]
        votes = [known[facts.node] for known in others if facts.node in known]
        key = _majority(votes)
        if key is not None and key not in _said(facts)[facts.node]:
            yield _doubt(facts, "other gateways know this node by another key")


def _contradictory(told: Sequence[RoomFacts]) -> Iterator[Doubt]:
    """Those who know a node by another key than most do; if there is no most, all who know it."""
    said = {facts.node: _said(facts) for facts in told}
    for node in sorted({node for known in said.values() for node in known}):
        votes = [known[node] for known in said.values() if node in known]
        key = _majority(votes)
        if any(not one & other for one in votes for other in votes):
            for facts in told:
                if node in said[facts.node] and key not in said[facts.node][node]:
                    yield _doubt(facts, f"it contradicts other gateways about the key of {node}")


def _majority(votes: Sequence[set[bytes]]) -> bytes | None:
    """The key that more than half of them know."""
    counts = Counter(key for keys in votes for key in keys)
    best = max(counts, key=lambda key: (counts[key], key), default=None)
    return best if best is not None and 2 * counts[best] > len(votes) else None


def _vouched(believed: Iterable[RoomFacts]) -> Keys:
    """By node the keys that others know it by."""
    keys: Keys = {}
    for facts in believed:
        for node, known in _said(facts).items():
            if node != facts.node:
                keys.setdefault(node, set()).update(known)
    return keys


def _doubt(facts: RoomFacts, detail: str) -> Doubt:
    return Doubt(facts.node, facts.at, detail)
