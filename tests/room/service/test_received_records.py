"""Records of other nodes are saved soon after they were heard."""

import asyncio
from typing import Any

import pytest

from gatepost.errors import StorageFailed
from gatepost.room import RecordAuthor, SignedRecord, sign_admission
from gatepost.room.service.room_replica import RoomReplica
from gatepost.room.signed_record import sign_record
from tests.room.sample_records import key, node, update
from tests.room.service.replicas import records_on_disk
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio


def _hear_of_ben(replica: RoomReplica) -> SignedRecord:
    genesis, own = replica.current_room.genesis, replica.author
    link = sign_admission(own.key, "ann", "ben", key("ben").public, "edge", 1)
    ben = RecordAuthor(key("ben"), (link,))
    signed = sign_record(ben, "nodes", "ben", 1, 1, node(ben, genesis))
    replica.current_room.apply_update(update(signed), "peer")
    return signed


async def test_a_received_record_is_saved(replica: RoomReplica) -> None:
    signed = _hear_of_ben(replica)
    assert signed.text not in records_on_disk(replica)
    await replica.received.save_records()
    assert signed.text in records_on_disk(replica)


async def test_saving_is_tried_again_until_it_succeeds(
    replica: RoomReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, failures = replica.core.commit, [StorageFailed("full"), StorageFailed("full")]

    async def fail_twice(operation: Any) -> Any:
        if failures:
            raise failures.pop()
        return await commit(operation)

    monkeypatch.setattr(replica.core, "commit", fail_twice)
    saving = asyncio.create_task(replica.received.keep_saving())
    signed = _hear_of_ben(replica)
    await async_wait_until(lambda: signed.text in records_on_disk(replica))
    saving.cancel()
    assert not failures
