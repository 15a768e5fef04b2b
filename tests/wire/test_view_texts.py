"""Peers, tasks and steps of messages in words."""

from gatepost.wire.gateway_views import PeerStatus
from gatepost.wire.view_texts import describe_waiting

NOW = 1_800_000_000_000


def test_what_waits_for_a_gateway() -> None:
    waits = PeerStatus("far", "online", False, None, 0, 3, NOW - 300_000, 2)
    said = "3 messages for 5 min, 2 accepted there, not processed yet"
    assert describe_waiting(waits, NOW) == said
    assert describe_waiting(PeerStatus("far", "online", False, None, 0), NOW) == ""
