"""Which gateways are online, silent or dead, and the words for it."""

import pytest
from msgspec.structs import replace

from gatepost.presence import ContactMemory, OwnerLiveness, describe_presence
from gatepost.room import RoomMember
from gatepost.testing import ManualClock
from tests.room.sample_records import NOW, ROOT, author, entry, room


def test_a_gateway_stays_online_for_a_while_after_its_connection() -> None:
    presence = ContactMemory(offline_ms=100, heartbeat_ms=1_000)
    assert not presence.is_online("b", 50_000)
    presence.note_contact("b", 50_000)
    assert presence.is_online("b", 50_099)
    assert not presence.is_online("b", 50_100)


def test_a_connection_that_ends_was_heard_when_its_last_message_came() -> None:
    presence = ContactMemory(offline_ms=100, heartbeat_ms=1_000)
    presence.note_contact("b", 50_000, silent_ms=39)
    assert presence.heard_at("b") == 49_961
    assert presence.is_online("b", 50_099), "routing goes by the end of the connection"
    presence.note_contact("b", 50_001, silent_ms=60)
    assert presence.heard_at("b") == 49_961, "another connection was silent for longer"
    presence.note_contact("b", 40_000)
    assert presence.heard_at("b") == 40_000, "our clock went back"


def test_a_heartbeat_that_changes_proves_life_until_the_next_is_due() -> None:
    presence = ContactMemory(offline_ms=100, heartbeat_ms=1_000)
    presence.note_heartbeat("b", 7, 50_000)
    assert not presence.is_online("b", 50_000), "it may have stood in the room for days"
    presence.note_heartbeat("b", 8, 50_000)
    assert presence.online_until("b") == 51_100
    presence.note_heartbeat("b", 8, 60_000)
    assert not presence.is_online("b", 60_000)


def test_heartbeats_that_came_while_connected_prove_nothing_afterwards() -> None:
    presence = ContactMemory(offline_ms=100, heartbeat_ms=1_000)
    for now in (50_000, 51_000, 52_000):
        presence.note_heartbeat("b", now - 40_000, now)
    presence.note_contact("b", 52_500)
    presence.note_heartbeat("b", 12_000, 52_500)
    assert presence.online_until("b") == 52_600


def test_a_heartbeat_that_was_long_on_its_way_proves_life_at_its_own_time() -> None:
    presence = ContactMemory(offline_ms=100, heartbeat_ms=1_000)
    presence.note_heartbeat("b", 10_000, 50_000)
    presence.note_heartbeat("b", 11_000, 51_000)
    presence.note_heartbeat("b", 12_000, 90_000)
    assert presence.online_until("b") == 53_100, "it was written at 52,000 by our clock"


def test_a_clock_that_was_set_is_believed_soon() -> None:
    presence = ContactMemory(offline_ms=100, heartbeat_ms=1_000)
    presence.note_heartbeat("b", 10_000, 50_000)
    presence.note_heartbeat("b", 2_000, 51_000)
    assert presence.is_online("b", 51_999), "its clock was set back"
    # Our own clock leaps forward by an hour.
    for beat in range(5):
        presence.note_heartbeat("b", 3_000 + beat, 3_700_000 + beat)
    assert presence.is_online("b", 3_700_005)


# -- dead owners

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


# -- in words


def test_one_sentence_says_how_a_gateway_stands_with_its_reason_and_age() -> None:
    assert describe_presence("online", True, None, 0.2) == "online, linked, heard 200 ms ago"
    relayed = describe_presence("online", False, "vps", 3.0)
    assert relayed == "online, relayed via vps, heard 3 s ago"
    alone = describe_presence("online", False, None, 14.0, problem="it has no address")
    assert alone == "online, not linked, heard 14 s ago: it has no address"
    assert describe_presence("offline", True, None, 114.0) == "offline, silent for 1.9 min"
    left = describe_presence("offline", False, None, 60.0, problem="it left")
    assert left == "offline, silent for 1 min: it left"


def test_a_silent_gateway_that_is_not_reached_is_not_called_online() -> None:
    problem = "not connected, and no relay has its outbox"
    for status in ("online", "degraded"):
        silent = describe_presence(status, False, None, 114.0, problem=problem)
        assert silent == f"not reached, heard 1.9 min ago: {problem}"
        assert describe_presence(status, False, "vps", 114.0).startswith(f"{status}")
        assert describe_presence(status, False, None, 89.0).startswith(f"{status}")


def test_a_degraded_gateway_is_shown_with_its_reason() -> None:
    reason = "the outbox was not archived"
    found = describe_presence("degraded", True, None, 2.0, reason=reason)
    assert found == f"degraded ({reason}), linked, heard 2 s ago"
    unknown = describe_presence("degraded", False, "vps", 2.0)
    expected = "degraded (`gatepost status` there says why), relayed via vps, heard 2 s ago"
    assert unknown == expected
    assert describe_presence("online", True, None, 2.0, reason=reason).startswith("online, linked")
