"""Whose word an audit takes."""

import pytest

from gatepost.archive import manifest, room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.manifest import ArchiveManifest
from gatepost.archive.room_facts import HeadFact, NodeFact, RevocationFact, RoomFacts
from gatepost.events import NodeKey
from gatepost.pipeline.audit import trust
from gatepost.pipeline.audit.trust import FactsDoubt, KeyTrust
from gatepost.testing import ManualClock

NODES = ("a", "b", "c", "d")
KEYS = {node: NodeKey.generate(ManualClock(seed=place)) for place, node in enumerate(NODES)}
OTHER = NodeKey.generate(ManualClock(seed=99))
PUBLIC = {node: key.public for node, key in KEYS.items()}


def known(keys: dict[str, bytes]) -> tuple[NodeFact, ...]:
    return tuple(
        NodeFact(id=node, public_key=key, tier="backbone", added_by="a", added_at=1)
        for node, key in keys.items()
    )


def says(node: str, keys: dict[str, bytes] | None = None, key: NodeKey | None = None) -> RoomFacts:
    """What a gateway says of everybody's keys, signed by it."""
    facts = RoomFacts(node=node, at=7, nodes=known(keys or PUBLIC))
    return room_facts.sign_facts(facts, key or KEYS[node])


def listed(*nodes: str) -> list[ArchiveManifest]:
    return [
        manifest.sign_manifest(ArchiveManifest(node=node, public_key=b""), KEYS[node])
        for node in nodes
    ]


def judged(*told: RoomFacts) -> KeyTrust:
    return trust.judge_room_facts(told, listed(*NODES))


def doubted(found: KeyTrust) -> list[str]:
    return [doubt.node for doubt in found.doubts]


def test_who_agrees_is_believed() -> None:
    found = judged(*map(says, NODES))
    assert found.doubts == []
    assert found.keys == {node: (key,) for node, key in PUBLIC.items()}
    assert found.self_asserted == ()


def test_without_any_facts_keys_are_self_asserted() -> None:
    found = judged()
    assert found.self_asserted == NODES
    assert found.keys == {node: (key,) for node, key in PUBLIC.items()}


def test_nobody_vouches_for_itself() -> None:
    assert judged(says("a")).self_asserted == ("a",)
    alone = trust.judge_room_facts([says("a", {"a": PUBLIC["a"]})], listed("a", "b"))
    assert alone.self_asserted == ("a", "b")
    assert alone.doubts == []


@pytest.mark.parametrize(
    "unsigned",
    [
        room_facts.sign_facts(RoomFacts(node="b", at=7, nodes=known(PUBLIC)), OTHER),
        RoomFacts(node="b", at=7, nodes=known(PUBLIC)),
        says("b", {"a": PUBLIC["a"]}),
    ],
    ids=["by another key", "not at all", "by a key it does not name"],
)
def test_what_is_not_signed_is_not_believed(unsigned: RoomFacts) -> None:
    found = judged(says("a"), unsigned, says("c"))
    assert [(doubt.node, doubt.at) for doubt in found.doubts] == [("b", 7)]
    assert "not signed" in found.doubts[0].detail
    assert [facts.node for facts in found.facts] == ["a", "c"]


def test_an_impostor_is_known_by_its_key() -> None:
    """Somebody put another file in the place of b's, in which everything is consistent."""
    lies = says("b", dict.fromkeys(NODES, OTHER.public), OTHER)
    found = judged(says("a"), lies, says("c"))
    assert doubted(found) == ["b"]
    assert found.keys["b"] == (PUBLIC["b"],)
    assert found.keys["d"] == (PUBLIC["d"],)


def test_who_contradicts_most_is_not_believed() -> None:
    found = judged(says("a"), says("b"), says("c", PUBLIC | {"d": OTHER.public}))
    assert doubted(found) == ["c"]
    assert "the key of d" in found.doubts[0].detail
    assert found.keys["d"] == (PUBLIC["d"],)


def test_where_there_is_no_majority_nobody_is_believed() -> None:
    found = judged(says("a"), says("b", PUBLIC | {"d": OTHER.public}))
    assert doubted(found) == ["a", "b"]
    assert found.facts == []
    assert found.self_asserted == NODES


def test_a_node_that_came_back_with_a_new_key_contradicts_nobody() -> None:
    """One gateway has not heard of it yet."""
    gone = RevocationFact(node="d", public_key=PUBLIC["d"], by="a", at=3, last_seq=9)
    unknown = RevocationFact(node="x", public_key=b"", by="a", at=3, last_seq=9)
    new = RoomFacts(
        node="a",
        at=7,
        nodes=known(PUBLIC | {"d": OTHER.public}),
        revocations=(gone, unknown),
    )
    found = judged(room_facts.sign_facts(new, KEYS["a"]), says("b"))
    assert found.doubts == []
    assert set(found.keys["d"]) == {PUBLIC["d"], OTHER.public}
    assert "x" not in found.keys


def test_a_gateway_that_nobody_knows_proves_nothing() -> None:
    """Anybody who can write to the archive can sign facts with a key of their own."""
    accused = HeadFact(node="b", incarnation="i", seq=10**9, at=1)
    gone = RevocationFact(node="b", public_key=OTHER.public, by="evil", at=3, last_seq=1)
    evil = RoomFacts(
        node="evil",
        at=7,
        nodes=known(PUBLIC | {"evil": OTHER.public}),
        revocations=(gone,),
        heads=(accused,),
    )
    found = judged(*map(says, NODES), room_facts.sign_facts(evil, OTHER))
    assert [(doubt.node, doubt.detail) for doubt in found.doubts] == [
        ("evil", "no gateway of the room knows this gateway")
    ]
    assert [facts.node for facts in found.facts] == list(NODES)
    assert (found.keys["b"], found.heads) == ((PUBLIC["b"],), {})


def test_a_key_that_one_of_several_gateways_knows_is_told() -> None:
    gone = RevocationFact(node="b", public_key=OTHER.public, by="c", at=3, last_seq=9)
    rogue = RoomFacts(node="c", at=7, nodes=known(PUBLIC), revocations=(gone,))
    told = [says("a"), says("b"), room_facts.sign_facts(rogue, KEYS["c"]), says("d")]
    assert trust.judge_room_facts(told, listed(*NODES)).lone_keys == ()
    forged = manifest.sign_manifest(ArchiveManifest(node="b", public_key=b""), OTHER)
    assert trust.judge_room_facts(told, [*listed("a", "c"), forged]).lone_keys == ("b",)
    # Nobody else knows the node at all: it has just been added.
    assert trust.judge_room_facts([says("a")], listed("a", "b")).lone_keys == ()


def test_files_that_cannot_be_read_or_lie_elsewhere_are_doubted(tmp_path: object) -> None:
    store = ArchiveStore.open(str(tmp_path))
    room_facts.write_facts(store, says("a"))
    store.write_file("room/b.json", b"{}")
    store.write_file("room/c.json", store.read_file("room/a.json") or b"")
    doubts: list[FactsDoubt] = []
    told = list(trust.read_room_facts(store, doubts))
    assert [facts.node for facts in told] == ["a"]
    assert [doubt.node for doubt in doubts] == ["b", "c"]
