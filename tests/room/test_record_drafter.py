"""A node's own records: versions that only grow, and no more of them than needed."""

import pytest
from msgspec.structs import replace

from gatepost.errors import Forbidden, PayloadTooLarge, RoomFull
from gatepost.room import RecordAuthor, RecordRetention, SharedRoom, SignedRecord, writer_quota
from gatepost.room.record_drafter import VersionLeap
from gatepost.room.retention import rotate_room
from tests.room.sample_records import NOW, agent, author, entry, node, proof_of, publish, room

BEN = author("ben")
MINUTE = 60_000


def alive(at: int, status: str = "online") -> object:
    return replace(node(BEN), last_heartbeat_at=at, status=status)


def put(into: SharedRoom, at: int, **changes: object) -> int:
    data = replace(node(BEN), last_heartbeat_at=at, **changes)
    return len(publish(into, "nodes", "ben", data, at))


def version(of: SharedRoom, map: str = "nodes", key: str = "ben") -> int:
    found = of.document.record_at((map, key, BEN.key.public))
    return found.version if found else 0


def _restored_room(*records: SignedRecord) -> SharedRoom:
    leap = VersionLeap(1000, NOW + 1)
    return SharedRoom(room().genesis, author=BEN, records=records, leap=leap)


def test_versions_count_up_from_one() -> None:
    mine = room(of=BEN)
    for number in range(1, 4):
        publish(mine, "agents", "job@ben", replace(agent("ben"), epoch=number), NOW + number)
        assert version(mine, "agents", "job@ben") == number


def test_signs_of_life_go_out_once_a_minute() -> None:
    mine = room(of=BEN)
    written = [put(mine, NOW + second * 1000) for second in range(0, 181, 10)]
    assert written == [1, 0, 0, 0, 0, 0] * 3 + [1]


def test_a_change_of_status_goes_out_at_once() -> None:
    mine = room(of=BEN)
    assert [put(mine, NOW), put(mine, NOW + 1), put(mine, NOW + 2, status="offline")] == [1, 0, 1]


def test_saying_the_same_again_writes_nothing() -> None:
    mine = room(of=BEN)
    assert [
        put(mine, NOW),
        len(publish(mine, "nodes", "ben", node(BEN), NOW + 9**9)),
    ] == [1, 0]
    assert publish(mine, "agents", "never@ben", None, NOW) == ()


def test_a_clock_that_went_back_does_not_silence_a_node() -> None:
    mine = room(of=BEN)
    assert [put(mine, NOW), put(mine, NOW - 9**9)] == [1, 1]


def test_two_drafts_before_either_is_accepted_have_two_versions() -> None:
    mine = room(of=BEN)
    first = mine.draft_record("agents", "job@ben", agent("ben"), NOW)
    second = mine.draft_record("agents", "job@ben", None, NOW)
    assert first is not None
    assert second is not None
    assert (first.version, second.version) == (1, 2)
    mine.accept_drafts([second])
    mine.accept_drafts([first])
    assert version(mine, "agents", "job@ben") == 2


def test_after_a_restart_versions_go_on() -> None:
    again = room(entry(BEN, 41), of=BEN)
    put(again, NOW + MINUTE)
    assert version(again) == 42


def test_a_version_from_before_the_backup_is_not_signed_again() -> None:
    restored = _restored_room(entry(BEN, 41))
    put(restored, NOW + MINUTE)
    put(restored, NOW + 2 * MINUTE)
    assert version(restored) == 1043


def test_a_restored_room_leaps_once_and_not_at_every_start() -> None:
    restored = _restored_room(entry(BEN, 41))
    put(restored, NOW + MINUTE)
    started_again = _restored_room(*restored.document)
    put(started_again, NOW + 2 * MINUTE)
    assert version(started_again) == 1043


def test_a_restored_room_leaps_in_its_next_document_too() -> None:
    moved = rotate_room(
        _restored_room(entry(BEN, 41)), proof_of(2), NOW + MINUTE, RecordRetention()
    )
    put(moved, NOW + MINUTE)
    assert version(moved) == 1042


def test_what_came_back_from_others_is_gone_on_from() -> None:
    mine = room(entry(BEN, 4), of=BEN)
    mine.accept_drafts([entry(BEN, 90)])
    put(mine, NOW + MINUTE)
    assert version(mine) == 91


def test_a_record_nobody_would_take_is_not_written() -> None:
    mine = room(of=BEN)
    with pytest.raises(Forbidden, match="protocolVersion"):
        put(mine, NOW, protocol_version="two words")
    with pytest.raises(Forbidden, match="ann to write"):
        publish(mine, "nodes", "ann", node(BEN), NOW)
    with pytest.raises(PayloadTooLarge):
        put(mine, NOW, capabilities=tuple("x" * 100 + str(i) for i in range(60)))
    assert len(mine.document) == 0


def test_a_node_with_too_many_keys_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_quota, "MAX_KEYS_PER_WRITER", 1)
    mine = room(entry(BEN), of=BEN)
    with pytest.raises(RoomFull):
        publish(mine, "agents", "job@ben", agent("ben"), NOW)


def test_a_node_that_was_not_admitted_yet_writes_nothing() -> None:
    joining = room()
    with pytest.raises(Forbidden, match="not admitted"):
        publish(joining, "nodes", "ben", node(BEN), NOW)
    joining.set_author(RecordAuthor(BEN.key, BEN.chain))
    assert put(joining, NOW) == 1


def test_a_node_admitted_anew_goes_on_with_its_versions() -> None:
    mine = room(of=BEN)
    assert mine.draft_record("agents", "job@ben", agent("ben"), NOW) is not None
    again = author("ben", "backbone", at=NOW + 5)
    mine.set_author(again)
    draft = mine.draft_record("agents", "job@ben", agent(None), NOW)
    assert draft is not None
    assert (draft.version, draft.chain) == (2, again.chain)


def test_a_removed_agent_makes_place_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_quota, "MAX_KEYS_PER_WRITER", 2)
    mine = room(of=BEN)
    for name in ("a", "b"):
        publish(mine, "agents", f"{name}@ben", agent("ben"), NOW)
    with pytest.raises(RoomFull):
        publish(mine, "agents", "c@ben", agent("ben"), NOW)
    publish(mine, "agents", "a@ben", None, NOW)
    publish(mine, "agents", "c@ben", agent("ben"), NOW)
    assert set(mine.effective.agents) == set()
    with pytest.raises(RoomFull):
        publish(mine, "agents", "a@ben", agent("ben"), NOW)


def test_tombstones_have_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_quota, "MAX_SLOTS_PER_WRITER", 3)
    mine = room(of=BEN)
    for number in range(3):
        publish(mine, "agents", f"a{number}@ben", agent("ben"), NOW)
        publish(mine, "agents", f"a{number}@ben", None, NOW)
    assert mine.document.quotas.tombstone_count(BEN.key.public) == 3
    with pytest.raises(RoomFull):
        publish(mine, "agents", "a3@ben", agent("ben"), NOW)
    publish(mine, "agents", "a0@ben", agent("ben"), NOW)
