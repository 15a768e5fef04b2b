"""Own records are on disk before they are sent, and a failed one is sent later."""

from typing import Any

import pytest

from gatepost.errors import Forbidden, StorageFailed
from gatepost.room import RoomChange
from gatepost.room.service.record_announcer import RecordAnnouncer
from tests.room.sample_records import proof_of
from tests.room.service.replicas import REVIEW_SLOT, records_on_disk, review

pytestmark = pytest.mark.anyio


async def _full(operation: Any) -> None:
    raise StorageFailed("the disk is full")


async def test_an_own_record_is_on_disk_before_it_is_sent(announcer: RecordAnnouncer) -> None:
    heard: list[bool] = []

    def hear(applied: RoomChange) -> None:
        texts = {signed.text for signed in applied.changed}
        heard.append(texts <= records_on_disk(announcer.replica))

    announcer.replica.current_room.on_change(hear)
    await announcer.publish_records({REVIEW_SLOT: review()})
    assert heard == [True]


async def test_a_record_that_could_not_be_saved_is_published_with_the_next(
    announcer: RecordAnnouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = announcer.replica
    with monkeypatch.context() as patched:
        patched.setattr(replica.core, "commit", _full)
        with pytest.raises(StorageFailed):
            await announcer.publish_records({REVIEW_SLOT: review()})
        assert "r1" not in replica.current_room.effective.reviews
    await announcer.publish_records({})
    assert "r1" in replica.current_room.effective.reviews


async def test_a_draft_of_an_earlier_document_is_dropped(
    announcer: RecordAnnouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = announcer.replica
    with monkeypatch.context() as patched:
        patched.setattr(replica.core, "commit", _full)
        with pytest.raises(StorageFailed):
            await announcer.publish_records({REVIEW_SLOT: review()})
    await replica.catch_up_to(proof_of(2, replica.author))
    await announcer.publish_records({})
    assert "r1" not in replica.current_room.effective.reviews


async def test_a_record_and_its_transaction_happen_together_or_not_at_all(
    announcer: RecordAnnouncer,
) -> None:
    def refuse(_: object) -> None:
        raise Forbidden("no")

    room = announcer.replica.current_room
    with pytest.raises(Forbidden):
        await announcer.commit_with(*REVIEW_SLOT, review(), refuse)
    await announcer.publish_records({})
    assert "r1" not in room.effective.reviews
    resolved = review("resolved")
    assert await announcer.commit_with(*REVIEW_SLOT, resolved, lambda tx: "done") == "done"
    assert room.effective.reviews["r1"][0].record == resolved
    assert {signed.text for signed in room.document} == records_on_disk(announcer.replica)


async def test_none_deletes_a_record(announcer: RecordAnnouncer) -> None:
    await announcer.publish_records({REVIEW_SLOT: review()})
    await announcer.publish_records({REVIEW_SLOT: None})
    assert "r1" not in announcer.replica.current_room.effective.reviews
