"""Who counts, whatever order the records came in."""

from itertools import permutations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from gatepost.room import (
    RecordAuthor,
    RevocationRecord,
    SignedRecord,
    StandingRecord,
    sign_admission,
)
from gatepost.room.signed_record import sign_record
from tests.room.sample_records import (
    GENESIS,
    NOW,
    ROOT,
    author,
    claim,
    entry,
    key,
    node,
    revocation,
    room,
    update,
)

VPS = author("vps", "backbone", at=NOW + 1)
LAB = author("lab", "backbone", at=NOW + 2)
LAPTOP = author("laptop", "edge", VPS)
DEEP = author("deep", "backbone", VPS)
PHONE = author("phone", "edge", DEEP)
EVERYONE = [entry(who) for who in (ROOT, VPS, LAB, LAPTOP, DEEP, PHONE)]


def counted(*records: SignedRecord) -> set[str]:
    return set(room(*records).effective.nodes)


def after(*more: SignedRecord) -> set[str]:
    return counted(*EVERYONE, *more)


def test_everyone_admitted_counts() -> None:
    assert after() == {"root", "vps", "lab", "laptop", "deep", "phone"}


def test_a_node_counts_without_its_issuers_record() -> None:
    assert counted(entry(PHONE)) == {"phone"}


def test_a_node_that_left_does_not_count_but_those_it_admitted_do() -> None:
    left = sign_record(VPS, "nodes", "vps", 2, NOW, None)
    assert after(left) == {"root", "lab", "laptop", "deep", "phone"}


def test_a_revoked_edge_node_is_out() -> None:
    assert after(revocation(LAB, LAPTOP)) == {"root", "vps", "lab", "deep", "phone"}


def test_with_a_revoked_issuer_go_those_it_admitted_and_those_they_admitted() -> None:
    assert after(revocation(ROOT, VPS)) == {"root", "lab"}


def test_whom_the_revocation_names_stays() -> None:
    assert after(revocation(ROOT, VPS, DEEP)) == {"root", "lab", "deep", "phone"}
    assert after(revocation(ROOT, VPS, LAPTOP)) == {"root", "lab", "laptop"}


def test_each_of_two_revocations_has_to_spare_a_node() -> None:
    both = (revocation(ROOT, LAB), revocation(VPS, LAB))
    member = author("member", "edge", LAB)
    assert "member" in after(entry(member), revocation(ROOT, LAB, member))
    assert "member" in after(entry(member), *(revocation(r, LAB, member) for r in (ROOT, VPS)))
    assert "member" not in after(entry(member), both[0], revocation(VPS, LAB, member))


def test_of_two_that_revoke_each_other_the_senior_stays() -> None:
    assert after(revocation(VPS, LAB), revocation(LAB, VPS)) == after() - {"lab"}


def test_a_junior_does_not_revoke_its_senior() -> None:
    assert after(revocation(LAB, VPS)) == after()
    assert after(revocation(DEEP, VPS)) == after()


def test_what_a_revoked_node_revokes_does_not_count() -> None:
    assert after(revocation(ROOT, VPS, LAPTOP), revocation(VPS, LAPTOP)) == {
        "root",
        "lab",
        "laptop",
    }


def test_a_revocation_taken_back_leaves_the_node_in() -> None:
    back = claim(LAB, "nodes", "laptop", None, 2)
    assert after(revocation(LAB, LAPTOP), back) == after()


def test_a_revocation_is_of_a_key_not_of_a_name() -> None:
    other = RecordAuthor(key("other"), author("x").chain)
    assert (
        after(sign_record(LAB, "nodes", "laptop@lab", 1, NOW, revocation(LAB, other).data))
        == after()
    )


def test_a_node_admitted_again_by_another_outlives_its_first_issuer() -> None:
    again = RecordAuthor(LAPTOP.key, author("laptop", "edge", LAB, NOW + 9).chain)
    saved = sign_record(again, "nodes", "laptop", 2, NOW, node(again))
    assert after(revocation(ROOT, VPS), saved) == {"root", "lab", "laptop"}


def test_admitted_again_an_issuer_keeps_those_it_admitted_before() -> None:
    again = RecordAuthor(DEEP.key, author("deep", "backbone", LAB, NOW + 9).chain)
    saved = sign_record(again, "nodes", "deep", 2, NOW, node(again))
    assert after(revocation(ROOT, VPS), saved) == {"root", "lab", "deep", "phone"}


def test_of_two_keys_for_one_name_the_senior_counts() -> None:
    link = sign_admission(DEEP.key, "deep", "laptop", key("thief").public, "edge", 0)
    thief = RecordAuthor(key("thief"), (*DEEP.chain, link))
    both = room(*EVERYONE, sign_record(thief, "nodes", "laptop", 99, NOW, node(thief)))
    assert both.effective.nodes["laptop"].public_key == LAPTOP.key.public


def test_a_revoked_node_is_known_to_be_revoked_and_by_whom() -> None:
    word = revocation(LAB, LAPTOP)
    standing = room(*EVERYONE, word).effective.membership
    assert standing.revoked == {("laptop", LAPTOP.key.public): (word,)}


CASES = [
    revocation(ROOT, VPS, LAPTOP),
    revocation(VPS, LAB),
    revocation(LAB, VPS),
    revocation(LAB, DEEP, PHONE),
    revocation(VPS, PHONE),
]


@given(st.sets(st.sampled_from(range(len(CASES)))), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(chosen: set[int], random: Random) -> None:
    records = [*EVERYONE, *(CASES[i] for i in chosen)]
    expected = counted(*records)
    random.shuffle(records)
    late = room()
    for record in records:
        late.accept_drafts([record])
        assert len(late.effective.nodes) <= len(EVERYONE)
    assert set(late.effective.nodes) == expected


def test_two_in_a_circle_come_out_the_same_in_every_order() -> None:
    outcomes = {frozenset(counted(*EVERYONE, *order)) for order in permutations(CASES[1:4])}
    assert len(outcomes) == 1


def test_genesis_is_first_in_seniority() -> None:
    members = room(*EVERYONE).effective.nodes
    ranked = sorted(members.values(), key=lambda m: m.rank)
    assert [m.id for m in ranked] == ["root", "vps", "lab", "deep", "laptop", "phone"]
    assert members["root"].public_key == GENESIS.key


# -- more standing keys than one record holds


def crowd(size: int) -> list[RecordAuthor]:
    return [author(f"member{n}", "edge", HUB_OF_MANY) for n in range(size)]


HUB_OF_MANY = author("many", "backbone")


def revoked_with_parts(
    members: list[RecordAuthor], kept: int
) -> tuple[SignedRecord, list[SignedRecord]]:
    """The revocation of the hub that keeps so many of its members, and its parts."""
    prints = [member.key.fingerprint for member in members[:kept]]
    key = HUB_OF_MANY.key.fingerprint
    parts = [
        claim(ROOT, "standing", f"{key}.{n}", StandingRecord(standing=tuple(prints[at : at + 50])))
        for n, at in enumerate(range(50, kept, 50))
    ]
    data = RevocationRecord(
        key=key, standing=tuple(prints[:50]), standing_parts=len(parts), revoked_at=NOW
    )
    return claim(ROOT, "nodes", "many", data), parts


def test_a_node_with_very_many_admissions_is_revoked_and_those_that_are_listed_stay() -> None:
    members = crowd(160)
    revoked, parts = revoked_with_parts(members, 130)
    seen = room(entry(ROOT), entry(HUB_OF_MANY), *map(entry, members), revoked, *parts)
    assert set(seen.effective.nodes) == {"root", *(member.node for member in members[:130])}
    assert all(len(signed.text) < 4096 for signed in (revoked, *parts))


def test_a_part_that_comes_late_makes_no_member_an_outsider() -> None:
    members = crowd(120)
    revoked, parts = revoked_with_parts(members, 110)
    seen = room(entry(ROOT), entry(HUB_OF_MANY), *map(entry, members))
    for signed in (revoked, *parts[:-1]):
        seen.apply_update(update(signed))
        assert len(seen.effective.nodes) == 121, "the hub is out, and nobody else"
    seen.apply_update(update(parts[-1]))
    assert len(seen.effective.nodes) == 111


def test_parts_of_another_writer_spare_nobody() -> None:
    members = crowd(3)
    other = author("other", "backbone", at=NOW + 1)
    key = HUB_OF_MANY.key.fingerprint
    forged = StandingRecord(standing=tuple(member.key.fingerprint for member in members))
    revoked, _ = revoked_with_parts(members, 1)
    seen = room(
        *map(entry, (ROOT, HUB_OF_MANY, other, *members)),
        revoked,
        claim(other, "standing", f"{key}.0", forged),
    )
    assert set(seen.effective.nodes) == {"root", "other", "member0"}
