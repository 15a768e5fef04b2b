"""Another gateway in words."""

import time

from gatepost.cli.peer_texts import heard_text, reach_text, waiting_text
from gatepost.wire import PeerStatus


def test_how_a_gateway_is_reached() -> None:
    assert reach_text(PeerStatus("vps", "online", True, None, 0)) == "directly"
    assert reach_text(PeerStatus("far", "online", False, "vps", 0)) == "relayed via vps"
    assert reach_text(PeerStatus("far", "online", False, None, 0)) == "not reached"


def test_when_a_gateway_was_heard() -> None:
    heard = int((time.time() - 56) * 1000)
    assert heard_text(PeerStatus("far", "online", False, None, heard)) in ("56 s ago", "57 s ago")
    assert heard_text(PeerStatus("far", "online", False, None, None)) == "never"


def test_what_waits_for_a_gateway() -> None:
    since = int((time.time() - 300) * 1000)
    waits = PeerStatus("far", "online", False, None, 0, 3, since, 2)
    assert waiting_text(waits) == "3 messages for 5 min, 2 in work there"
    assert waiting_text(PeerStatus("far", "online", False, None, 0)) == ""
