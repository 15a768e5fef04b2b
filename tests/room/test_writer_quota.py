"""One writer, and one branch of the room, fill only their own share."""

import pytest

from gatepost.room import SignedRecord, writer_quota
from gatepost.room.writer_quota import WriterQuotas
from tests.room.sample_records import agent, author, claim, entry, room, update

HUB = author("hub", "backbone")
BEN = author("ben")


def counted(*records: SignedRecord) -> WriterQuotas:
    quotas = WriterQuotas()
    for signed in records:
        quotas.replace_record(signed, None)
    return quotas


def test_the_bytes_of_a_writer_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    first = entry(BEN)
    monkeypatch.setattr(writer_quota, "MAX_BYTES_PER_WRITER", len(first.text) + 10)
    seen = room(first)
    assert seen.apply_update(update(claim(BEN, "agents", "job", agent("ben")))).changed == ()
    assert seen.apply_update(update(entry(HUB))).changed == (entry(HUB),), "others have their own"
    later = entry(BEN, 2)
    assert seen.apply_update(update(later)).changed == (later,), "a version replaces the one before"


def test_the_bytes_and_writers_of_a_branch_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [entry(author(f"member{n}", "edge", HUB)) for n in range(3)]
    monkeypatch.setattr(writer_quota, "MAX_WRITERS_PER_BRANCH", 2)
    quotas = counted(*members[:2])
    assert not quotas.has_capacity_for(members[2], None)
    assert quotas.has_capacity_for(entry(BEN), None)
    monkeypatch.setattr(writer_quota, "MAX_WRITERS_PER_BRANCH", 9)
    assert quotas.has_capacity_for(members[2], None)
    monkeypatch.setattr(writer_quota, "MAX_BYTES_PER_BRANCH", len(members[0].text) * 2)
    assert not quotas.has_capacity_for(members[2], None)


def test_a_record_that_is_replaced_is_not_counted_any_more() -> None:
    quotas = counted(entry(BEN))
    for version in range(2, 9):
        quotas.replace_record(entry(BEN, version), entry(BEN, version - 1))
    assert quotas.slot_counts[BEN.key.public] == 1
    assert quotas._bytes[BEN.key.public] == len(entry(BEN, 8).text)
