"""Two slots with one Yjs client: neither record takes the other's place, anywhere."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.room import SharedRoom, SignedRecord
from gatepost.room.document import RoomDocument, SlotKey
from tests.room.sample_records import (
    ROOT,
    agent,
    author,
    claim,
    contents,
    entry,
    publish,
    room,
    shown,
    update,
)
from tests.room.test_slot_digest import Pair
from tests.security.yjs_cases import YjsReader, held_values, served_updates

SENIOR, JUNIOR = author("senior", "backbone"), author("junior")
FIRST, SECOND = entry(SENIOR, 2), claim(JUNIOR, "agents", "spy", agent("junior"), 5)
LATER = claim(JUNIOR, "agents", "spy", agent("junior"), 6)
BASE = (entry(ROOT), entry(JUNIOR))
_CLIENT = 4711


@pytest.fixture(autouse=True, scope="module")
def forced_collision() -> Iterator[None]:
    """The hash of the two slots has the same first 53 bits."""
    derive = RoomDocument._derive_client

    def derive_same(document: RoomDocument, slot_key: SlotKey) -> int:
        if slot_key in (FIRST.slot_key, SECOND.slot_key):
            return _CLIENT
        return derive(document, slot_key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RoomDocument, "_derive_client", derive_same)
        yield


@given(st.permutations([FIRST, SECOND, LATER, entry(SENIOR, 1), *BASE]))
def test_the_record_of_the_senior_writer_counts_in_any_order(records: list[SignedRecord]) -> None:
    heard = room()
    for signed in records:
        heard.apply_update(update(signed))
    assert contents(heard) == contents(room(*BASE, FIRST))
    assert shown(heard) == shown(room(*BASE, FIRST))
    assert heard.state_vector() == room(*records).state_vector()
    assert (
        heard.document.digests.bucket_digests()
        == room(*BASE, FIRST).document.digests.bucket_digests()
    )
    reader = YjsReader(served_updates(heard))
    assert reader.shown() == held_values(heard)
    assert reader.clocks()[_CLIENT] == FIRST.version


@pytest.mark.parametrize("order", [[FIRST, SECOND], [SECOND, FIRST]])
def test_a_collision_is_reported_wherever_both_are_known(order: list[SignedRecord]) -> None:
    heard = room(*BASE)
    changes = [heard.apply_update(update(signed)) for signed in order]
    assert [pair for change in changes for pair in change.collisions] == [(FIRST, SECOND)]


@pytest.mark.parametrize(("anns", "bobs"), [[FIRST, SECOND], [SECOND, FIRST]])
def test_replicas_that_heard_one_each_agree_after_a_sync(
    anns: SignedRecord, bobs: SignedRecord
) -> None:
    pair = Pair(room(*BASE, anns), room(*BASE, bobs))
    pair.sync()
    pair.compare()
    for each in pair.rooms:
        assert contents(each) == contents(room(*BASE, FIRST))
        assert shown(each) == shown(room(*BASE, FIRST))
    assert {both for change in pair.changes for both in change.collisions} == {(FIRST, SECOND)}


def test_a_writer_whose_record_does_not_count_still_raises_its_version() -> None:
    """Its slot has another client in the next document, and its record counts again."""
    own = SharedRoom(room().genesis, author=JUNIOR, records=[*BASE, FIRST, SECOND])
    assert publish(own, "agents", "spy@junior", None, 5) == ()
    assert own.document.record_at(SECOND.slot_key) is not None
    held = {signed.slot_key: signed.version for signed in own.document.held_records()}
    assert held[SECOND.slot_key] == SECOND.version + 1
