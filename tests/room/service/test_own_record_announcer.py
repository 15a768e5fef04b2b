"""The records a gateway publishes about itself, and when."""

from functools import partial
from typing import Any

import pytest

from gatepost.delivery import Agents
from gatepost.errors import StorageFailed
from gatepost.events import Order
from gatepost.journal import Tx
from gatepost.room import NodeRecord
from gatepost.room.service.own_record_announcer import OwnRecordAnnouncer
from gatepost.room.service.record_announcer import RecordAnnouncer
from gatepost.routing.directory import copy_agent_homes
from gatepost.testing import ManualClock

pytestmark = pytest.mark.anyio
_DAY_MS = 86_400_000


@pytest.fixture
def own(announcer: RecordAnnouncer) -> OwnRecordAnnouncer:
    return OwnRecordAnnouncer(announcer)


def _node_record(announcer: RecordAnnouncer) -> NodeRecord:
    record = announcer.replica.current_room.effective.nodes["ann"].record
    assert isinstance(record, NodeRecord)
    return record


async def test_a_heartbeat_is_published_once_a_minute(
    announcer: RecordAnnouncer, own: OwnRecordAnnouncer, clock: ManualClock
) -> None:
    first = _node_record(announcer).last_heartbeat_at
    clock.advance(59_000)
    await own.refresh_records()
    assert _node_record(announcer).last_heartbeat_at == first
    clock.advance(2_000)
    await own.refresh_records()
    assert _node_record(announcer).last_heartbeat_at == first + 61_000


async def test_agents_registered_here_are_claimed_and_removed_ones_are_not(
    announcer: RecordAnnouncer, own: OwnRecordAnnouncer
) -> None:
    core, room = announcer.replica.core, announcer.replica.current_room
    await core.commit(lambda tx: core.agents.register(tx, "bob"))
    await own.refresh_records()
    assert room.effective.agents["bob"].gateway == "ann"
    await core.commit(lambda tx: core.agents.remove(tx, "bob", "test"))
    own.note_agents_changed()
    await own.refresh_records()
    assert "bob" not in room.effective.agents


async def test_nothing_is_published_before_the_room_was_heard(
    announcer: RecordAnnouncer, own: OwnRecordAnnouncer
) -> None:
    announcer.may_publish.clear()
    core = announcer.replica.core
    await core.commit(lambda tx: core.agents.register(tx, "bob"))
    await own.refresh_records()
    assert "bob" not in announcer.replica.current_room.effective.agents


async def test_a_gateway_that_leaves_is_offline_and_stays_so(
    announcer: RecordAnnouncer, own: OwnRecordAnnouncer, clock: ManualClock
) -> None:
    await own.announce_leaving()
    assert _node_record(announcer).status == "offline"
    clock.advance(120_000)
    await own.refresh_records()
    assert _node_record(announcer).status == "offline"


async def test_ten_thousand_agents_are_published_and_cost_nothing_while_nothing_changes(
    announcer: RecordAnnouncer, own: OwnRecordAnnouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, room = announcer.replica.core, announcer.replica.current_room

    def register_all(tx: Tx) -> None:
        for number in range(10_000):
            core.agents.register(tx, f"agent-{number}")

    await core.commit(register_all)
    await own.refresh_records()
    assert len(room.effective.agents) == 10_000
    listed = 0

    def list_agents(tx: Tx) -> list[Any]:
        nonlocal listed
        listed += 1
        return Agents.list(core.agents, tx)

    monkeypatch.setattr(core.agents, "list", list_agents)
    # The room shows our own records as a change, once.
    for _ in range(10):
        await own.refresh_records()
    assert listed <= 1
    await core.commit(lambda tx: core.agents.remove(tx, "agent-1", "test"))
    own.note_agents_changed()
    await own.refresh_records()
    assert len(room.effective.agents) == 9_999


async def test_the_room_shows_role_and_last_activity_of_an_agent(
    announcer: RecordAnnouncer, own: OwnRecordAnnouncer, clock: ManualClock
) -> None:
    core, room = announcer.replica.core, announcer.replica.current_room
    await core.commit(lambda tx: core.agents.register(tx, "bob", role="worker"))
    await own.refresh_records()
    first = room.effective.agents["bob"].record
    assert first.role == "worker"
    for secs, is_shown in ((30, False), (40, True)):
        clock.advance(secs * 1000)
        core.agents.note_activity("bob")
        await core.save_activity()
        own.note_agents_changed()
        await own.refresh_records()
        shown = room.effective.agents["bob"].record.last_seen_at
        assert shown == (clock.now() if is_shown else first.last_seen_at)


async def test_the_room_shows_that_a_mailbox_is_a_work_queue(
    announcer: RecordAnnouncer, own: OwnRecordAnnouncer
) -> None:
    core, room = announcer.replica.core, announcer.replica.current_room
    await core.commit(lambda tx: core.agents.register(tx, "bob"))
    await own.refresh_records()
    orders: list[tuple[Order, bool]] = [("none", True), ("fifo", False)]
    for order, is_shown in orders:
        await core.commit(partial(core.dispatcher.set_order, mailbox="bob", order=order))
        own.note_agents_changed()
        await own.refresh_records()
        homes = copy_agent_homes(room.effective)
        assert homes["bob"].unordered is is_shown


async def test_a_gateway_with_a_problem_says_that_it_is_degraded(
    announcer: RecordAnnouncer, own: OwnRecordAnnouncer, clock: ManualClock
) -> None:
    problems = ["the outbox was not archived"]
    announcer.replica.core.health.add_check(lambda: problems)
    await own.refresh_records()
    assert _node_record(announcer).status == "degraded"
    (entry,) = announcer.replica.awareness.own_entries()
    assert '"status":"degraded","reason":"the outbox was not archived"' in entry.state
    problems.clear()
    clock.advance(31_000)
    await own.refresh_records()
    assert _node_record(announcer).status == "online"


async def test_with_a_full_disk_the_connections_are_told(
    announcer: RecordAnnouncer, own: OwnRecordAnnouncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = announcer.replica.core
    await own.refresh_records()
    monkeypatch.setattr(core.writer, "failure", "the journal cannot write")
    with pytest.raises(StorageFailed):
        await own.refresh_records()
    (entry,) = announcer.replica.awareness.own_entries()
    assert '"status":"degraded"' in entry.state


async def test_the_room_counts_the_unresolved_incidents_of_a_gateway(
    announcer: RecordAnnouncer, own: OwnRecordAnnouncer
) -> None:
    core, room = announcer.replica.core, announcer.replica.current_room
    raise_ = core.delivery.incidents.raise_
    await core.commit(lambda tx: raise_(tx, "link_error", "one", "x"))
    await core.commit(lambda tx: raise_(tx, "link_error", "two", "x"))
    await core.commit(lambda tx: raise_(tx, "dead_letter", "three", "x"))
    await core.commit(
        lambda tx: tx.execute("UPDATE incident SET status = 'resolved' WHERE subject = 'two'")
    )
    await own.refresh_records()
    counts = room.effective.delivery["ann"].incident_counts
    assert counts == (("dead_letter", 1), ("link_error", 1))
