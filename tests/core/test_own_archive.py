"""The gateway reads its own archive beside the traffic, and says if it cannot."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from gatepost.archive.service.archiver import OutboxArchiver
from gatepost.core.own_archive import OwnArchiveReader
from gatepost.errors import ArchiveError, GatepostError
from gatepost.events import decode_event, parse_event_id, verify_group
from gatepost.gateway.api.operations import Operations
from gatepost.links.outbox_feed import ArchivedPage, PrunedStretch
from gatepost.testing import ManualClock
from gatepost.wire.operations import NewSend, Register, Send, SendResults
from tests.gateway.tools import opened
from tests.waiting import async_wait_until

pytestmark = pytest.mark.anyio


def _archive(state: Path, **more: Any) -> dict[str, Any]:
    return {
        "archive__uri": state.parent / "archive",
        "archive__every_secs": 0.01,
        "archive__keep_secs": 0,
        "archive__max_rows": 5,
        "archive__payloads": "encrypted",
    } | more


async def _send_and_archive(operations: Operations) -> list[str]:
    """Send ten messages; return their ids once nothing of them is left in the outbox."""
    core = operations.core
    archiver = OutboxArchiver(
        core, read=lambda tx: None, closed=lambda tx: None, facts=lambda: None
    )
    await operations.perform(Register(agent="bob"))
    messages = [NewSend("al", "bob", Raw(b"1")) for _ in range(10)]
    reply: SendResults = await operations.perform(Send(messages=messages))

    async def is_pruned() -> bool:
        return not await core.read(lambda tx: tx.fetch_all("SELECT 1 FROM outbox"))

    async with archiver.running():
        await async_wait_until(is_pruned)
    return [each.event_id for each in reply.results]


async def _read_page(
    archive: OwnArchiveReader, wanted: PrunedStretch
) -> tuple[ArchivedPage | None, GatepostError | None]:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    archive.read_page(wanted, lambda page, error: answered.set_result((page, error)))
    found: tuple[ArchivedPage | None, GatepostError | None] = await answered
    return found


async def test_pruned_events_are_found_and_read_again(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock, **_archive(state)) as operations:
        core = operations.core
        first, *_ = await _send_and_archive(operations)
        found = await core.archive.find_events(parse_event_id(first))
        assert found is not None
        assert "message" in [event.kind for event in found.events]
        wanted = PrunedStretch(core.node.id, core.node.incarnation, 0, 3)
        page, _ = await _read_page(core.archive, wanted)
        assert page is not None
        assert decode_event(page.rows[0][1]).event_id == first


async def test_the_evidence_of_a_pruned_message_is_in_the_archive(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, **_archive(state)) as operations:
        core = operations.core
        first, second, *_ = await _send_and_archive(operations)
        found = await core.archive.find_evidence(first)
        own = [event for group in found for event in map(decode_event, group.events)]
        assert [event.event_id for event in own if event.kind == "message"] == [first]
        assert second not in {event.ref_event_id for event in own}
        for group in found:
            verify_group(group.previous, group.split_digests(), group.head, core.node.key.public)
        assert await core.archive.find_evidence(first, peer="stranger") == []


async def test_without_an_archive_nothing_can_be_read(state: Path, clock: ManualClock) -> None:
    async with opened(state, clock) as operations:
        archive = operations.core.archive
        assert await archive.find_events(bytes(16)) is None
        page, _ = await _read_page(archive, PrunedStretch("b", "one", 0, 7))
        assert page == ArchivedPage(7, [], missing=True)


async def test_events_that_cannot_be_read_five_times_are_given_up(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, **_archive(state)) as operations:
        core = operations.core
        await _send_and_archive(operations)
        for file in (state.parent / "archive").rglob("*.parquet"):
            file.write_bytes(b"other")
        wanted = PrunedStretch(core.node.id, core.node.incarnation, 0, 3)
        for _ in range(4):
            page, error = await _read_page(core.archive, wanted)
            assert page is None
            assert isinstance(error, ArchiveError)
        page, _ = await _read_page(core.archive, wanted)
        assert page == ArchivedPage(3, [], missing=True)
