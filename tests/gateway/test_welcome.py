"""A newcomer believes only what its host signed for this very session."""

import pytest

from gatepost.errors import InvalidTicket
from gatepost.gateway.welcome import Welcome, read, write
from tests.room.cast import GENESIS, author, key

HOST = key("root")
SAID = Welcome(GENESIS, 1, author("ben").chain)


def test_it_arrives_as_it_was_written() -> None:
    assert read(write(SAID, "s1", HOST), "s1", HOST.public) == SAID


@pytest.mark.parametrize(
    ("text", "session"),
    [
        (write(SAID, "s1", HOST), "s2"),
        (write(SAID, "s1", key("mallory")), "s1"),
        (write(SAID, "s1", HOST)[:-6], "s1"),
        ("x" + write(SAID, "s1", HOST), "s1"),
        ("", "s1"),
        ("ünï.code", "s1"),
        (".", "s1"),
    ],
)
def test_anything_else_is_refused(text: str, session: str) -> None:
    with pytest.raises(InvalidTicket):
        read(text, session, HOST.public)
