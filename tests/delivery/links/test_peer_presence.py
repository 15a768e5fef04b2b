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
