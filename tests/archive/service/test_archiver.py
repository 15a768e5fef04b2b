"""Archiving beside the traffic: off by default, never in the way, and pruning with consent."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import gatepost
from gatepost.archive import manifest, room_facts
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.room_facts import NodeFact, RoomFacts
from gatepost.archive.service.archiver import OutboxArchiver, check_archive_settings
from gatepost.archive.verification import verify_archive
from gatepost.errors import ConfigError
from gatepost.gateway.api.operations import Operations
from gatepost.journal import Tx
from gatepost.testing import ManualClock
from gatepost.wire.operations import NewSend, Register, Send
from tests.gateway.tools import opened, settings
from tests.waiting import async_assert_stays_true, async_wait_until

pytestmark = pytest.mark.anyio

SOURCE = Path(gatepost.__file__).parents[1]


async def _send(operations: Operations, count: int) -> None:
    await operations.perform(Register(agent="bob"))
    messages = [NewSend("al", "bob", Raw(b"1")) for _ in range(count)]
    await operations.perform(Send(messages=messages))


def _nobody(tx: Tx) -> None:
    """Somebody who does not mind."""


def _no_room() -> None:
    """A gateway that is in none."""


async def _archived_beyond(archiver: OutboxArchiver, seq: int) -> None:
    await async_wait_until(lambda: archiver.archived_through > seq)


async def _left(operations: Operations) -> int:
    rows = await operations.core.read(lambda tx: tx.fetch_all("SELECT count(*) FROM outbox"))
    return int(rows[0][0])


async def _nothing_left(operations: Operations) -> bool:
    return await _left(operations) == 0


async def _all_left(operations: Operations, archiver: OutboxArchiver) -> bool:
    """Whether everything that was archived is still in the outbox."""
    return await _left(operations) >= archiver.archived_through


def _archive(state: Path, **more: Any) -> dict[str, Any]:
    return {
        "archive__uri": state.parent / "archive",
        "archive__every_secs": 0.01,
        "archive__keep_secs": 0,
    } | more


async def test_due_events_are_archived_and_pruned(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock, **_archive(state, archive__max_rows=5)) as operations:
        archiver = OutboxArchiver(operations.core, read=_nobody, closed=_nobody, facts=_no_room)
        async with archiver.running():
            await _send(operations, 10)
            await async_wait_until(lambda: archiver.archived_through >= 10)
            await async_wait_until(lambda: _nothing_left(operations))
        store = ArchiveStore.open(str(state.parent / "archive"))
        listed = manifest.read_manifest(store, operations.core.node.id)
        assert listed is not None
        assert listed.archived_through == archiver.archived_through
        assert list(verify_archive(store)) == []
        assert archiver.problem is None


async def test_a_quiet_outbox_is_archived_when_it_is_old_enough(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, **_archive(state, archive__max_age_secs=60)) as operations:
        archiver = OutboxArchiver(operations.core, read=_nobody, closed=_nobody, facts=_no_room)
        async with archiver.running():
            await _send(operations, 1)
            await async_assert_stays_true(lambda: archiver.archived_through == 0, 0.1)
            clock.advance(60_000)
            await async_wait_until(lambda: archiver.archived_through)


async def test_small_segments_are_merged_and_a_damaged_one_stops_only_that(
    state: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    more = _archive(state, archive__max_rows=1000, archive__max_age_secs=0.001)
    async with opened(state, clock, **more) as operations:
        store, node = ArchiveStore.open(str(state.parent / "archive")), operations.core.node.id

        def segments() -> list[manifest.ArchiveSegment]:
            listed = manifest.read_manifest(store, node)
            return list(listed.segments) if listed else []

        async def archive_more(count: int) -> None:
            for _ in range(count):
                await _send(operations, 1)
                clock.advance(10)
                await _archived_beyond(archiver, archiver.archived_through)

        archiver = OutboxArchiver(operations.core, read=_nobody, closed=_nobody, facts=_no_room)
        async with archiver.running():
            await archive_more(8)
            await async_wait_until(lambda: len(segments()) == 1)
            assert list(verify_archive(store)) == []
            store.write_file(f"node={node}/{segments()[0].path}", b"damaged")
            await archive_more(9)
            await async_wait_until(lambda: "small segments stay" in caplog.text)
            await archive_more(2)
            assert len(segments()) == 12
            assert archiver.problem is None


@pytest.mark.parametrize("bound", ["read", "closed"])
async def test_nothing_is_pruned_that_somebody_needs(
    state: Path, clock: ManualClock, bound: str
) -> None:
    async with opened(state, clock, **_archive(state, archive__max_rows=1)) as operations:
        bounds: dict[str, Any] = {"read": _nobody, "closed": _nobody} | {bound: lambda tx: 0}
        archiver = OutboxArchiver(operations.core, facts=_no_room, **bounds)
        async with archiver.running():
            await _send(operations, 3)
            await async_wait_until(lambda: archiver.archived_through)
            await async_assert_stays_true(lambda: _all_left(operations, archiver), 0.1)
            assert await _left(operations) == archiver.archived_through


async def test_without_an_archive_nothing_happens(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        archiver = OutboxArchiver(operations.core, read=_nobody, closed=_nobody, facts=_no_room)
        before = threading.active_count()
        async with archiver.running():
            await _send(operations, 3)
            assert threading.active_count() <= before + 2, "no thread of its own"
        assert archiver.archived_through == 0
        assert await _left(operations) > 0


async def test_a_store_that_fails_is_tried_again(
    state: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = state.parent / "archive"
    blocked.write_bytes(b"a file where a folder should be")
    async with opened(state, clock, **_archive(state, archive__max_rows=1)) as operations:
        archiver = OutboxArchiver(operations.core, read=_nobody, closed=_nobody, facts=_no_room)
        async with archiver.running():
            await _send(operations, 1)
            await async_wait_until(lambda: archiver.problem)
            blocked.unlink()
            await async_wait_until(lambda: archiver.archived_through)
            await async_wait_until(lambda: archiver.problem is None)
    assert caplog.text.count("not archived, and is tried again") == 1, (
        "the same problem is logged once"
    )


async def test_sending_does_not_wait_for_a_slow_store(
    state: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, released = threading.Event(), threading.Event()

    def slow(self: ArchiveStore, path: str, content: object) -> None:
        entered.set()
        released.wait(10)

    monkeypatch.setattr(ArchiveStore, "_write_atomically", slow)
    async with opened(state, clock, **_archive(state, archive__max_rows=1)) as operations:
        archiver = OutboxArchiver(operations.core, read=_nobody, closed=_nobody, facts=_no_room)
        async with archiver.running():
            await _send(operations, 1)
            await async_wait_until(entered.is_set)
            async with asyncio.timeout(5):
                await _send(operations, 100)
            assert not released.is_set()
            released.set()


def test_an_archive_without_pyarrow_is_refused_at_the_start(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    check_archive_settings(settings(state))
    with pytest.raises(ConfigError, match=r"pip install 'gatepost\[archive\]'"):
        check_archive_settings(settings(state, archive__uri=state / "archive"))


def test_the_gateway_starts_without_pyarrow() -> None:
    code = "import sys, gatepost.archive.service.archiver, gatepost.gateway.serve\n"
    code += "print('pyarrow' in sys.modules)"
    env = {"PYTHONPATH": str(SOURCE)}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True) == "False\n"


async def test_archived_events_stay_for_a_while(state: Path, clock: ManualClock) -> None:
    more = _archive(state, archive__max_rows=5, archive__keep_secs=60)
    async with opened(state, clock, **more) as operations:
        archiver = OutboxArchiver(operations.core, read=_nobody, closed=_nobody, facts=_no_room)
        async with archiver.running():
            await _send(operations, 10)
            await async_wait_until(lambda: archiver.archived_through == 20)
            await async_assert_stays_true(lambda: _all_left(operations, archiver), 0.05)
            assert await _left(operations) == 20
            clock.advance(61_000)
            await async_wait_until(lambda: _nothing_left(operations))


async def test_what_is_known_of_the_room_lies_beside_it(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock, **_archive(state)) as operations:
        node = operations.core.node
        known = NodeFact(
            id=node.id, public_key=node.key.public, tier="backbone", added_by=node.id, added_at=1
        )
        facts = RoomFacts(node=node.id, at=5, nodes=(known,))
        archiver = OutboxArchiver(
            operations.core, read=_nobody, closed=_nobody, facts=lambda: facts
        )
        store = ArchiveStore.open(str(state.parent / "archive"))
        async with archiver.running():
            await async_wait_until(lambda: room_facts.read_all_facts(store))
        (read,) = room_facts.read_all_facts(store)
        assert read.nodes == (known,)
        assert room_facts.are_facts_signed(read, node.key.public)
