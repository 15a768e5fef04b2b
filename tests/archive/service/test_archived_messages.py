"""A message that has left the journal: its status and its trace come from the archive."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gatepost.archive.service.archived_messages import read_archived_journey
from gatepost.errors import UnknownMessage
from gatepost.gateway.admin.trace_api import JourneyTracer
from gatepost.gateway.api.operations import Operations
from gatepost.testing import ManualClock
from gatepost.wire.operations import Ack, Await, Awaited, Dequeue
from tests.core.test_own_archive import _archive, _send_and_archive
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio

_UNKNOWN = "01900000-0000-7000-8000-000000000000"


async def _forget(operations: Operations) -> None:
    """As compaction does, much later."""

    def delete(tx: Any) -> None:
        tx.execute("DELETE FROM delivery")
        tx.execute("DELETE FROM inbox")

    await operations.core.commit(delete)


def _tracer(operations: Operations) -> JourneyTracer:
    links: Any = SimpleNamespace(links_to=lambda node: [])
    return JourneyTracer(operations.core, links)


async def test_the_status_of_a_pruned_message_comes_from_the_archive(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, **_archive(state)) as operations:
        first, second, *_ = await _send_and_archive(operations)
        await _forget(operations)
        found: Awaited = await operations.perform(Await(event_id=first, wait_secs=0))
        assert (found.result.state, found.result.node) == ("archived", operations.core.node.id)
        assert found.result.sent_at is not None
        waited: Awaited = await operations.perform(Await(event_id=second, wait_secs=30))
        assert waited.result.has_reached("processed"), "nobody waits for what has ended"
        with pytest.raises(UnknownMessage):
            await operations.perform(Await(event_id=_UNKNOWN, wait_secs=0))
        events = await read_archived_journey(operations.core.archive, first)
        assert [event.kind for event in events] == ["message", "ack"]


async def test_the_trace_of_a_pruned_message_comes_from_the_archive(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, **_archive(state, archive__payloads="none")) as operations:
        first, *_ = await _send_and_archive(operations)
        journey = await _tracer(operations).trace_journey(first, False)
        assert [step.what for step in journey.steps][:2] == ["sent", "accepted"]
        assert journey.corr_id
        assert journey.notes == ["events that have left the journal come from the archive"]
        with pytest.raises(UnknownMessage):
            await _tracer(operations).trace_journey(_UNKNOWN, False)


async def test_a_message_that_has_left_the_journal_in_part_is_traced_from_its_send_on(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, **_archive(state)) as operations:
        first, *_ = await _send_and_archive(operations)
        leased = await operations.perform(Dequeue(mailbox="bob"))
        clock.advance(1_000)
        await operations.perform(Ack(mailbox="bob", receipts=[leased.messages[0].receipt]))
        journey = await _tracer(operations).trace_journey(first, False)
        steps = [step.what for step in journey.steps if step.event_id == first]
        assert [steps.count(what) for what in ("sent", "accepted", "processed")] == [1, 1, 1]
        assert journey.ended == [first]


async def test_a_broken_archive_is_told_and_the_rest_is_shown(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock, **_archive(state)) as operations:
        first, *_ = await _send_and_archive(operations)
        for file in (state.parent / "archive").rglob("*.parquet"):
            file.write_bytes(b"other")
        journey = await _tracer(operations).trace_journey(first, False)
        assert journey.notes[0].startswith("the archive cannot be searched: ")
        assert {step.what for step in journey.steps} == {"sent", "heard_accepted", "waiting"}
