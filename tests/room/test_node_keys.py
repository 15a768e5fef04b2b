"""A node id has one key until it is revoked, whatever a backbone node signs later."""

import pytest

from gatepost.room import RecordAuthor, RoomChange, append_admission, sign_admission
from gatepost.room.node_keys import NodeKeys
from gatepost.room.retention import rejoin_room
from gatepost.wire.operations import Tier
from tests.room.sample_records import (
    GENESIS,
    NOW,
    ROOT,
    agent,
    author,
    claim,
    contents,
    entry,
    key,
    proof_of,
    revocation,
    room,
    update,
)

HUB = author("hub", "backbone")
VICTIM = author("victim", at=NOW + 5)


def twin_of(node: str, tier: Tier, at: int, by: RecordAuthor = HUB) -> RecordAuthor:
    """Another key under the id of a node that is a member already."""
    twin = key(f"twin of {node}")
    link = sign_admission(by.key, by.node, node, twin.public, tier, at)
    return RecordAuthor(twin, append_admission(GENESIS, by.chain, link))


@pytest.mark.parametrize("tier", ["edge", "backbone"])
@pytest.mark.parametrize("at", [1, NOW + 99])
@pytest.mark.parametrize("by", [HUB, ROOT], ids=["hub", "root"])
def test_a_second_key_of_a_known_node_replaces_nothing(
    tier: Tier, at: int, by: RecordAuthor
) -> None:
    heard: list[RoomChange] = []
    seen = room(entry(ROOT), entry(HUB), entry(VICTIM))
    seen.on_change(heard.append)
    twin = twin_of("victim", tier, at, by)
    seen.apply_update(update(entry(twin, 9), claim(twin, "agents", "job", agent("victim"))))
    assert seen.effective.nodes["victim"].public_key == VICTIM.key.public
    assert "job" not in seen.effective.agents
    assert not any(twin.key.public == signed.public_key for signed in seen.document)
    (change,) = heard
    assert change.changed == ()
    assert [link.key for _, link in change.second_keys] == [twin.key.public] * 2


def test_a_twin_in_the_middle_of_a_chain_admits_nobody() -> None:
    middle = author("middle", "backbone")
    twin = twin_of("middle", "backbone", 1)
    member = author("member", "edge", twin)
    seen = room(entry(ROOT), entry(HUB), entry(middle))
    assert seen.apply_update(update(entry(member))).second_keys
    assert "member" not in seen.effective.nodes


def test_who_joins_later_does_not_see_the_twin() -> None:
    honest = room(entry(ROOT), entry(HUB), entry(VICTIM))
    honest.apply_update(update(entry(twin_of("victim", "backbone", 1))))
    joining = room()
    for chunk in honest.missing_updates(joining.state_vector()):
        joining.apply_update(chunk)
    joining.apply_update(update(entry(twin_of("victim", "backbone", 1))))
    assert joining.effective.nodes["victim"].public_key == VICTIM.key.public


def test_a_node_that_was_away_still_knows_the_keys_in_the_next_document() -> None:
    ben = author("ben")
    away = room(entry(ROOT), entry(HUB), entry(VICTIM), entry(ben), of=ben)
    back = rejoin_room(away, proof_of(2))
    assert entry(VICTIM).text not in contents(back)
    twin = entry(twin_of("victim", "backbone", 1))
    assert back.apply_update(update(twin, epoch=2)).changed == ()
    assert back.apply_update(update(entry(VICTIM), epoch=2)).changed == (entry(VICTIM),)


def test_after_its_revocation_an_id_may_have_another_key() -> None:
    seen = room(entry(ROOT), entry(HUB), entry(VICTIM))
    twin = entry(twin_of("victim", "edge", 1, ROOT))
    assert seen.apply_update(update(twin)).changed == ()
    seen.apply_update(update(revocation(ROOT, VICTIM)))
    assert seen.apply_update(update(twin)).changed == (twin,)
    assert seen.effective.nodes["victim"].public_key == twin.public_key


def test_the_same_key_may_be_admitted_again_with_another_tier() -> None:
    seen = room(entry(ROOT), entry(VICTIM))
    promoted = author("victim", "backbone", at=NOW + 9)
    assert seen.apply_update(update(entry(promoted, 2))).changed
    assert seen.effective.nodes["victim"].is_backbone


def test_a_branch_brings_in_a_bounded_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatepost.room.node_keys._MAX_NODES_PER_BRANCH", 3)
    keys = NodeKeys(GENESIS)
    for name in ("a", "b"):
        keys.bind_chain(author(name, "edge", HUB).chain)
    assert not keys.has_capacity_for(author("c", "edge", HUB).chain)
    assert keys.has_capacity_for(author("a", "edge", HUB).chain)
    assert keys.has_capacity_for(author("other").chain), "another branch has its own share"
