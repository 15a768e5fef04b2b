"""All honest replicas end with the same view, and no honest connection is ever closed.

One history holds everything that could go wrong: dependents before their admission, nodes later
revoked, an agent handed on and a dead owner overridden, a writer
restored from a backup. It is dealt out to replicas in any order, relayed through any of them.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gatepost.room import sign_transfer, transfer_claim
from tests.conftest import choose
from tests.room.sample_records import (
    ROOT,
    agent,
    author,
    claim,
    contents,
    coordination,
    entry,
    revocation,
    room,
    shown,
    update,
)

VPS = author("vps", "backbone")
ANN, BEN = author("ann", "edge", VPS), author("ben", "edge", VPS)
CAT = author("cat")
ANNS = agent("ann")
BENS = transfer_claim(ANNS, sign_transfer(ANN.key, "ann", "ben", "job", 2))
CATS = transfer_claim(BENS, sign_transfer(ROOT.key, "root", "cat", "job", 3), by_backbone=True)


HISTORY = [
    claim(ANN, "agents", "job", ANNS),
    claim(ANN, "agents", "job", BENS, 2),
    claim(BEN, "agents", "job", BENS),
    claim(ROOT, "agents", "job", CATS),
    claim(CAT, "agents", "job", CATS),
    claim(ANN, "agents", "other", agent("ann")),
    claim(BEN, "agents", "other", agent("ben")),
    coordination(1),
    coordination(2, 2),
    *(entry(who, version) for who in (ROOT, VPS, ANN, BEN, CAT) for version in (1, 2)),
    entry(CAT, 7, status="degraded"),
    # From before and after a backup was restored.
    entry(BEN, 9, status="degraded"),
    entry(BEN, 5000, status="offline"),
    revocation(ROOT, VPS, BEN),
    revocation(VPS, CAT),
    claim(VPS, "nodes", "cat", None, 2),
]


@given(st.randoms(use_true_random=False))
def test_any_order_with_repeats_gives_the_same_room(random: Random) -> None:
    deal = HISTORY + random.sample(HISTORY, 5)
    random.shuffle(deal)
    late = room()
    for record in deal:
        late.apply_update(update(record))
    assert contents(late) == contents(room(*HISTORY))
    assert shown(late) == shown(room(*HISTORY))


@settings(max_examples=choose(30, 300))
@given(st.randoms(use_true_random=False))
def test_partitions_that_meet_in_any_order_agree(random: Random) -> None:
    """Each replica hears a part, several records at a time; then they sync pair by pair."""
    replicas = [room() for _ in range(4)]
    for record in HISTORY:
        for replica in random.sample(replicas, random.randint(1, 3)):
            replica.apply_update(update(record, *random.sample(HISTORY, random.randint(0, 2))))
    for _ in range(3):
        for here in random.sample(replicas, 4):
            for there in random.sample(replicas, 4):
                for chunk in here.missing_updates(there.state_vector()):
                    there.apply_update(chunk)
    for replica in replicas:
        assert contents(replica) == contents(room(*HISTORY))
        assert shown(replica) == shown(room(*HISTORY))


def test_of_two_texts_for_one_version_all_who_saw_both_choose_the_same() -> None:
    twice = [entry(CAT, 7, status="degraded"), entry(CAT, 7, status="offline")]
    assert contents(room(*twice)) == contents(room(*reversed(twice)))


def test_the_history_ends_as_its_authors_would_expect() -> None:
    view = room(*HISTORY).effective
    assert set(view.nodes) == {"root", "ben", "cat"}
    assert view.agents["job"].gateway == "cat"
    assert view.agents["other"].gateway == "ben"
    assert view.coordination is not None
    assert view.coordination.room_epoch == 2
