"""How soon a peer is dialled again."""

import pytest

from gatepost.errors import InvalidTicket, Revoked, Unavailable, WrongHost
from gatepost.links.service import dialer
from gatepost.links.service.seeds import Seed

NAMED, FROM_ROOM = Seed("https://a.example"), Seed("https://a.example", "key", from_room=True)


@pytest.mark.parametrize(
    ("seed", "error", "pause", "longest"),
    [
        (FROM_ROOM, WrongHost("somebody else"), 4.0, 600.0),
        (FROM_ROOM, InvalidTicket("forged"), 4.0, 600.0),
        (FROM_ROOM, Unavailable("busy"), 4.0, 15.0),
        (FROM_ROOM, OSError("offline"), 4.0, 15.0),
        (NAMED, WrongHost("somebody else"), 4.0, 15.0),
        (FROM_ROOM, Revoked("gone"), 15.0, 15.0),
        (FROM_ROOM, dialer.PeerBehindError("later"), 1.0, 15.0),
    ],
)
def test_an_address_from_the_room_that_leads_elsewhere_is_tried_seldom(
    seed: Seed, error: Exception, pause: float, longest: float
) -> None:
    assert dialer._limit_pause(seed, error, 4.0) == (pause, longest)
