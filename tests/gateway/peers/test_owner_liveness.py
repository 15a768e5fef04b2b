"""A gateway is dead after a long silence, by our clock and not by its own."""

import pytest
from msgspec.structs import replace

from gatepost.gateway.peers.owner_liveness import OwnerLiveness
from gatepost.room import RoomMember
from gatepost.testing import ManualClock
from tests.room.sample_records import NOW, ROOT, author, entry, room

DAY = 86_400_000
BEN = author("ben")


def member(heartbeat: int) -> RoomMember:
    found = room(entry(ROOT), entry(BEN)).effective.nodes["ben"]
    return replace(found, record=replace(found.record, last_heartbeat_at=heartbeat))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


def liveness(clock: ManualClock, *connected: str, node: str = "ann") -> OwnerLiveness:
    return OwnerLiveness(clock, node, DAY, lambda name: name in connected)


def test_a_gateway_is_dead_after_a_day_of_silence(clock: ManualClock) -> None:
    found = liveness(clock)
    assert not found.is_dead(member(NOW))
    clock.advance(DAY)
    assert not found.is_dead(member(NOW))
    clock.advance(1)
    assert found.is_dead(member(NOW))
    assert found.seconds_silent(member(NOW)) > DAY / 1000
    assert not found.is_dead(member(NOW + 1)), "it was heard of again"


def test_a_clock_that_is_ahead_does_not_prolong_a_life(clock: ManualClock) -> None:
    found = liveness(clock)
    assert not found.is_dead(member(NOW + 99 * DAY))
    clock.advance(DAY + 1)
    assert found.is_dead(member(NOW + 99 * DAY))


def test_who_is_connected_is_alive(clock: ManualClock) -> None:
    clock.advance(3 * DAY)
    found = liveness(clock, "ben")
    clock.advance(DAY)
    assert not found.is_dead(member(NOW))
    assert found.seconds_silent(member(NOW)) == 0


def test_after_its_start_a_gateway_judges_nobody_at_once(clock: ManualClock) -> None:
    clock.advance(3 * DAY)
    found = liveness(clock)
    assert not found.is_dead(member(NOW)), "it has yet to hear of the others"
    clock.advance(60_000)
    assert found.is_dead(member(NOW))


def test_a_gateway_that_was_dead_itself_lets_its_agents_go(clock: ManualClock) -> None:
    for heartbeat, dead in ((NOW - DAY - 1, True), (NOW - DAY + 1, False)):
        found = liveness(clock, node="ben")
        found.note_own_heartbeat(heartbeat)
        assert found.is_dead(member(heartbeat)) == dead
    clock.advance(60_000)
    assert not found.is_dead(member(NOW)), "an override that comes later is no consequence of it"
