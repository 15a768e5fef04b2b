"""Another gateway in words."""

import time

from gatepost.cli.peer_texts import waiting_text
from gatepost.wire.gateway_views import PeerStatus


def test_what_waits_for_a_gateway() -> None:
    since = int((time.time() - 300) * 1000)
    waits = PeerStatus("far", "online", False, None, 0, 3, since, 2)
    assert waiting_text(waits) == "3 messages for 5 min, 2 accepted there, not processed yet"
    assert waiting_text(PeerStatus("far", "online", False, None, 0)) == ""
