"""A newcomer believes only what its host signed for this very session."""

import pytest

from gatepost.access.tokens import encode_b64
from gatepost.access.welcome_header import (
    Welcome,
    _signed_statement,
    decode_welcome,
    encode_welcome,
)
from gatepost.errors import InvalidTicket
from tests.room.sample_records import GENESIS, author, key

HOST = key("root")
SAID = Welcome(GENESIS, 1, author("ben").chain)


def test_it_arrives_as_it_was_written() -> None:
    assert decode_welcome(encode_welcome(SAID, "s1", HOST), "s1", HOST.public) == SAID


@pytest.mark.parametrize(
    ("text", "session"),
    [
        (encode_welcome(SAID, "s1", HOST), "s2"),
        (encode_welcome(SAID, "s1", key("mallory")), "s1"),
        (encode_welcome(SAID, "s1", HOST)[:-6], "s1"),
        ("x" + encode_welcome(SAID, "s1", HOST), "s1"),
        ("", "s1"),
        ("ünï.code", "s1"),
        (".", "s1"),
    ],
)
def test_anything_else_is_refused(text: str, session: str) -> None:
    with pytest.raises(InvalidTicket):
        decode_welcome(text, session, HOST.public)


def test_a_signed_welcome_that_is_nested_deeply_is_refused() -> None:
    body = b'{"genesis": {"x": %s}}' % (b"[" * 100_000 + b"]" * 100_000)
    signature = encode_b64(HOST.sign(_signed_statement("s1", body)))
    with pytest.raises(InvalidTicket):
        decode_welcome(f"{encode_b64(body)}.{signature}", "s1", HOST.public)
