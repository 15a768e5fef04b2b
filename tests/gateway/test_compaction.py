"""Forgetting: what goes, what stays, and in which order."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from gatepost.delivery.undelivered import UndeliveredFilter, discard_messages
from gatepost.events import NodeKey
from gatepost.gateway.api.operations import Operations
from gatepost.gateway.compaction import compact_journal, remove_orphan_blobs
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory
from gatepost.testing import ManualClock
from gatepost.wire.operations import (
    Ack,
    Await,
    Dequeue,
    Enqueue,
    NewMessage,
    NewSend,
    Register,
    Send,
)
from tests.gateway.tools import dump, opened

pytestmark = pytest.mark.anyio

HOUR, DAY = 3_600_000, 86_400_000
LARGE = Raw(b'"' + b"x" * 70_000 + b'"')


async def _send(operations: Operations, payload: Raw = LARGE, **fields: Any) -> str:
    await operations.perform(Register(agent="bob"))
    new = NewSend("al", "bob", payload, **fields)
    (sent,) = (await operations.perform(Send(messages=[new]))).results
    assert sent.error is None
    return str(sent.event_id)


async def _work(operations: Operations) -> None:
    while messages := (await operations.perform(Dequeue(mailbox="bob", limit=100))).messages:
        receipts = [message.receipt for message in messages]
        await operations.perform(Ack(mailbox="bob", receipts=receipts))


def _sizes(operations: Operations, *tables: str) -> list[int]:
    rows = dump(operations.core)
    return [len(rows[table]) for table in tables]


def _blobs(operations: Operations) -> int:
    return len(list(operations.core.state.blobs.iterdir()))


async def test_bodies_go_before_ids_and_ids_before_nothing(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        new = NewMessage("al", "bob", Raw(b"1"), msg_id="m:1")
        await operations.perform(Enqueue(messages=[new]))
        await _send(operations, Raw(b"2"), idempotency_key="k")
        await _work(operations)
        tables = ("body", "mail", "delivery", "idempotency")
        assert await compact_journal(operations.core) == 0
        assert _sizes(operations, *tables) == [2, 2, 1, 1]
        clock.advance(2 * HOUR)
        await compact_journal(operations.core)
        assert _sizes(operations, *tables) == [0, 2, 1, 1]
        (ack,) = (await operations.perform(Enqueue(messages=[new]))).results
        assert not ack.queued, "its id is remembered"
        clock.advance(3 * DAY)
        await compact_journal(operations.core)
        assert _sizes(operations, *tables) == [0, 0, 0, 0]


async def test_a_key_is_remembered_as_long_as_its_message_lives(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        month: dict[str, Any] = {"idempotency_key": "k", "ttl_secs": 30 * 86_400}
        id = await _send(operations, Raw(b"1"), **month)
        clock.advance(10 * DAY)
        await compact_journal(operations.core)
        assert await _send(operations, Raw(b"1"), **month) == id


async def test_compaction_goes_in_batches_and_ends(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock, journal__sweep_batch=3) as operations:
        for n in range(10):
            await _send(operations, Raw(b"1"), idempotency_key=f"k{n}")
        await _work(operations)
        clock.advance(3 * DAY)
        before = operations.core.writer.group_count
        await compact_journal(operations.core)
        assert operations.core.writer.group_count - before > 3
        assert _sizes(operations, "mail", "body", "delivery", "idempotency") == [0, 0, 0, 0]


async def test_a_blob_lives_as_long_as_mail_that_needs_it(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        await _send(operations)
        clock.advance(2 * HOUR)
        await compact_journal(operations.core)
        assert _blobs(operations) == 1, "its mail waits"
        await _work(operations)
        await compact_journal(operations.core)
        assert _blobs(operations) == 1, "its mail was settled just now"
        clock.advance(2 * HOUR)
        assert await compact_journal(operations.core) > 0
        assert _blobs(operations) == 0
        assert _sizes(operations, "blob", "blob_use") == [0, 0]


async def test_a_dead_letters_blob_stays(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        await _send(operations)
        await operations.mailboxes.purge("bob", "operator")
        clock.advance(30 * DAY)
        await compact_journal(operations.core)
        assert _blobs(operations) == 1


async def test_a_blob_nobody_used_goes_after_an_hour(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        await operations.core.keep_payload([b"x"])
        clock.advance(HOUR // 2)
        await compact_journal(operations.core)
        assert _blobs(operations) == 1
        clock.advance(HOUR)
        await compact_journal(operations.core)
        assert _blobs(operations) == 0


async def test_a_blob_that_a_crash_left_unknown_is_removed_at_the_start(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        known = (await operations.core.keep_payload([b"known"])).digest
        operations.core.blobs.store_payload([b"orphan"])
        assert _blobs(operations) == 2
        assert await remove_orphan_blobs(operations.core) == 1
        assert known in operations.core.blobs


async def test_a_blob_of_an_open_delivery_stays_however_old(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        core = operations.core
        far = NodeKey(clock.random(32))
        directory = RoutingDirectory({"far": GatewayEntry(far.public)}, {"eve": AgentHome("far")})
        await core.commit(lambda tx: core.coordinator.room_changed(tx, directory))
        new = NewSend("al", "eve", LARGE, ttl_secs=5 * 86_400)
        (sent,) = (await operations.perform(Send(messages=[new]))).results
        assert sent.node == "far"
        clock.advance(4 * DAY)
        await core.commit(lambda tx: tx.execute("UPDATE delivery SET next_at = expires_at"))
        await compact_journal(core)
        assert _blobs(operations) == 1, "it may have to be sent again"
        clock.advance(2 * DAY)
        await core.commit(lambda tx: None)
        await compact_journal(core)
        assert _sizes(operations, "undelivered", "blob") == [1, 1], "given up, and not discarded"
        await core.commit(lambda tx: discard_messages(tx, UndeliveredFilter(), 10, "al"))
        await compact_journal(core)
        assert _sizes(operations, "undelivered", "blob") == [0, 0]
        assert _blobs(operations) == 0


async def test_a_blob_of_what_is_not_accepted_yet_stays(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        digest = (await operations.core.keep_payload([b"x"])).digest
        body = b'{"payloadRef":{"digest":"' + digest.encode() + b'"}}'
        held = ("far", "al", "bob", "", 1, b"e" * 16, "order", None, body)
        insert = "INSERT INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        await operations.core.commit(lambda tx: tx.execute(insert, held))
        clock.advance(2 * HOUR)
        await compact_journal(operations.core)
        assert _blobs(operations) == 1
        await operations.core.commit(lambda tx: tx.execute("DELETE FROM held"))
        await compact_journal(operations.core)
        assert _blobs(operations) == 0


async def test_a_reply_is_kept_for_the_lifetime_of_its_message(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        id = await _send(operations, Raw(b"1"), ttl_secs=5 * 86_400)
        (mail,) = (await operations.perform(Dequeue(mailbox="bob"))).messages
        replies = {mail.receipt: LARGE}
        await operations.perform(Ack(mailbox="bob", receipts=[mail.receipt], replies=replies))
        clock.advance(4 * DAY)
        await compact_journal(operations.core)
        kept = (await operations.perform(Await(event_id=id, wait_secs=0.0))).result
        assert kept.reply_ref in operations.core.blobs
        clock.advance(2 * DAY)
        await compact_journal(operations.core)
        assert _sizes(operations, "delivery", "blob") == [0, 0]
