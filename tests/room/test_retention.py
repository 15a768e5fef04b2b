"""What is over goes, with the epoch that knew it, and nothing else does."""

import pytest
from msgspec.structs import replace

from gatepost.errors import RoomViolation
from gatepost.room import (
    InviteRecord,
    RecordRetention,
    ReviewRecord,
    SharedRoom,
    SignedRecord,
    retention,
    room_id,
    sign_transfer,
    transfer_claim,
)
from gatepost.room.signed_record import sign_record
from tests.room.sample_records import (
    NOW,
    ROOT,
    agent,
    author,
    claim,
    contents,
    entry,
    proof_of,
    publish,
    room,
    shown,
    update,
)

DAY = 86_400_000
KEEP = RecordRetention(tombstone_ms=30 * DAY, invite_ms=7 * DAY, review_ms=10 * DAY)
BEN = author("ben")
INVITE = InviteRecord(tier="edge", expires_at=NOW + DAY, created_by="root")
REVIEW = ReviewRecord(
    capability_id="job",
    delegation_skill_version="1",
    executor_skill_version="1",
    failure_class="sla_breach",
    raised_at=NOW,
)


def kept(signed: SignedRecord, now: int) -> bool:
    old = room(entry(ROOT), entry(BEN), signed, of=ROOT)
    return signed.text in contents(retention.rotate_room(old, proof_of(2), now, KEEP))


def test_an_invite_is_over_some_days_after_it_was_used_or_expired() -> None:
    unused = claim(ROOT, "invites", "i", INVITE)
    used = claim(ROOT, "invites", "i", replace(INVITE, used_at=NOW))
    assert [kept(unused, NOW + days * DAY) for days in (1, 7, 8)] == [True, True, False]
    assert [kept(used, NOW + days * DAY) for days in (1, 7, 8)] == [True, False, False]


def test_a_review_is_kept_until_it_was_settled_long_ago() -> None:
    settled = replace(REVIEW, status="resolved", settled_at=NOW)
    assert kept(claim(ROOT, "reviews", "r", REVIEW), NOW + 999 * DAY)
    assert kept(claim(ROOT, "reviews", "r", settled), NOW + 9 * DAY)
    assert not kept(claim(ROOT, "reviews", "r", settled), NOW + 10 * DAY)


def test_a_tombstone_is_kept_as_long_as_somebody_may_be_away() -> None:
    tombstone = claim(BEN, "agents", "job", None, 2)
    assert [kept(tombstone, NOW + days * DAY) for days in (29, 30)] == [True, False]


def test_an_agent_stays_where_a_node_handed_it_before_it_left() -> None:
    step = sign_transfer(BEN.key, "ben", "cat", "job", 2)
    cats = claim(author("cat"), "agents", "job", transfer_claim(agent("ben"), step))
    left = sign_record(BEN, "nodes", "ben", 2, NOW, None)
    old = room(entry(ROOT), entry(author("cat")), left, cats, of=ROOT)
    new = retention.rotate_room(old, proof_of(2), NOW + 999 * DAY, KEEP)
    assert new.effective.agents["job"].gateway == "cat"


def test_everything_else_is_kept() -> None:
    assert kept(claim(BEN, "agents", "job", agent("ben")), NOW + 999 * DAY)
    assert kept(entry(BEN, 7), NOW + 999 * DAY)


def test_a_writer_finds_its_own_records_that_are_over() -> None:
    mine, other = author("vps", "backbone"), ROOT
    theirs = claim(other, "invites", "a", INVITE)
    own = claim(mine, "invites", "b", replace(INVITE, created_by="vps"))
    crowded = room(theirs, own, of=mine)
    assert retention.finished_records(crowded, NOW, KEEP) == []
    assert retention.finished_records(crowded, NOW + 30 * DAY, KEEP) == [("invites", "b@vps")]


def test_an_epoch_is_a_document_of_its_own() -> None:
    old = room(entry(ROOT), entry(BEN, 7), of=ROOT)
    new = retention.rotate_room(old, proof_of(2), NOW, KEEP)
    assert (old.id, new.id) == (room_id(1), "ansible-control.2")
    assert not set(dict(new.document.slot_clocks())) & set(dict(old.document.slot_clocks()))
    assert shown(new) == shown(old)


def test_replicas_that_move_with_different_knowledge_meet_again() -> None:
    ahead = retention.rotate_room(room(entry(ROOT), entry(BEN, 7), of=ROOT), proof_of(2), NOW, KEEP)
    behind = retention.rotate_room(
        room(entry(ROOT), entry(BEN, 5), of=ROOT), proof_of(2), NOW, KEEP
    )
    for here, there in ((ahead, behind), (behind, ahead)):
        for chunk in here.missing_updates(there.state_vector()):
            there.apply_update(chunk)
    assert contents(ahead) == contents(behind) == {entry(ROOT).text, entry(BEN, 7).text}


def test_who_was_away_brings_only_its_own_records() -> None:
    forgotten = claim(ROOT, "invites", "i", INVITE)
    mine = claim(BEN, "agents", "job", agent("ben"), 3)
    gone = claim(BEN, "agents", "old", None, 2)
    away = room(entry(ROOT), entry(BEN), forgotten, mine, gone, of=BEN)
    back = retention.rejoin_room(away, proof_of(5))
    assert contents(back) == {entry(BEN).text, mine.text}
    publish(back, "agents", "job@ben", replace(agent("ben"), role=None), NOW + 1)
    assert max(signed.version for signed in back.document) == 4


def test_moving_is_due_when_most_of_a_large_room_is_over() -> None:
    few = [claim(ROOT, "invites", f"i{n}", INVITE) for n in range(50)]
    many = [claim(ROOT, "invites", f"i{n}", INVITE) for n in range(200)]
    later = NOW + 30 * DAY
    assert not retention.is_rotation_due(room(*few, of=ROOT), later, KEEP)
    assert not retention.is_rotation_due(room(*many, of=ROOT), NOW, KEEP)
    assert retention.is_rotation_due(room(*many, of=ROOT), later, KEEP)


def test_a_writer_that_runs_out_of_slots_makes_a_rotation_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "MAX_SLOTS_PER_WRITER", 8)
    tombs = [claim(ROOT, "agents", f"a{n}", None) for n in range(3)]
    crowded, hour = room(entry(ROOT), entry(BEN), *tombs, of=ROOT), 3_600_000
    assert not retention.is_rotation_due(crowded, NOW + hour - 1, KEEP)
    assert retention.is_rotation_due(crowded, NOW + hour, KEEP)
    moved = retention.rotate_room(crowded, proof_of(2), NOW + hour, KEEP)
    assert contents(moved) == {entry(ROOT).text, entry(BEN).text}
    roomy = room(entry(ROOT), *tombs[:2], of=ROOT)
    assert not retention.is_rotation_due(roomy, NOW + hour, KEEP)


def test_an_update_of_another_epoch_is_refused() -> None:
    new = SharedRoom(room().genesis, epoch=2)
    with pytest.raises(RoomViolation):
        new.apply_update(update(entry(BEN)))
    assert new.apply_update(update(entry(BEN), epoch=2)).changed == (entry(BEN),)
