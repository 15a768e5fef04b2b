"""Which gateways are believed to be online without a connection to them."""

from gatepost.delivery.links.peer_presence import PeerPresence


def test_a_gateway_stays_online_for_a_while_after_its_connection() -> None:
    presence = PeerPresence(offline_ms=100, heartbeat_ms=1_000)
    assert not presence.is_online("b", 50_000)
    presence.note_contact("b", 50_000)
    assert presence.is_online("b", 50_099)
    assert not presence.is_online("b", 50_100)


def test_a_heartbeat_that_changes_proves_life_until_the_next_is_due() -> None:
    presence = PeerPresence(offline_ms=100, heartbeat_ms=1_000)
    presence.note_heartbeat("b", 7, 50_000)
    assert not presence.is_online("b", 50_000), "it may have stood in the room for days"
    presence.note_heartbeat("b", 8, 50_000)
    assert presence.online_until("b") == 51_100
    presence.note_heartbeat("b", 8, 60_000)
    assert not presence.is_online("b", 60_000)


def test_heartbeats_that_came_while_connected_prove_nothing_afterwards() -> None:
    presence = PeerPresence(offline_ms=100, heartbeat_ms=1_000)
    for now in (50_000, 51_000, 52_000):
        presence.note_heartbeat("b", now - 40_000, now)
    presence.note_contact("b", 52_500)
    presence.note_heartbeat("b", 12_000, 52_500)
    assert presence.online_until("b") == 52_600


def test_a_heartbeat_that_was_long_on_its_way_proves_life_at_its_own_time() -> None:
    presence = PeerPresence(offline_ms=100, heartbeat_ms=1_000)
    presence.note_heartbeat("b", 10_000, 50_000)
    presence.note_heartbeat("b", 11_000, 51_000)
    presence.note_heartbeat("b", 12_000, 90_000)
    assert presence.online_until("b") == 53_100, "it was written at 52,000 by our clock"


def test_a_clock_that_was_set_is_believed_soon() -> None:
    presence = PeerPresence(offline_ms=100, heartbeat_ms=1_000)
    presence.note_heartbeat("b", 10_000, 50_000)
    presence.note_heartbeat("b", 2_000, 51_000)
    assert presence.is_online("b", 51_999), "its clock was set back"
    # Our own clock leaps forward by an hour.
    for beat in range(5):
        presence.note_heartbeat("b", 3_000 + beat, 3_700_000 + beat)
    assert presence.is_online("b", 3_700_005)
