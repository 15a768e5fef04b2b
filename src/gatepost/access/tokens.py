"""Bearer tokens: minting, parsing and comparing.

A token is `<prefix>.<public>.<secret>`. The public part identifies its row. The secret is 256
random bits, of which only the SHA-256 is stored. It needs no salt and no slow hash, because 256
random bits cannot be guessed.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from msgspec import Struct

from gatepost.clock import Clock

_ID_BYTES = 8
_SECRET_BYTES = 32
_ID_DIGITS = 2 * _ID_BYTES
_TOKEN = re.compile(r"([a-z]+1)\.([0-9a-f]{16,64})\.([A-Za-z0-9_-]{43})")
_NO_HASH = bytes(32)


class Guarded(Struct, frozen=True):
    """A value that carries a secret. Printing it shows only its type."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Kind(StrEnum):
    INVITE = "gp1"
    AGENT_INVITE = "gpa1"
    ACCESS = "gps1"
    REFRESH = "gpr1"
    CONTEXT = "gpc1"


class Token(Guarded, frozen=True):
    """`id` identifies the row; `extra` is the rest of the public part, readable by the holder."""

    kind: Kind
    id: str
    secret: bytes
    extra: str = ""

    @property
    def text(self) -> str:
        return f"{self.kind}.{self.id}{self.extra}.{b64(self.secret)}"

    @property
    def hash(self) -> bytes:
        return sha256(self.secret).digest()


def new_id(clock: Clock) -> str:
    return clock.random(_ID_BYTES).hex()


def mint(clock: Clock, kind: Kind, extra: str = "") -> Token:
    return Token(kind, new_id(clock), clock.random(_SECRET_BYTES), extra)


def parse(text: str, *kinds: Kind) -> Token:
    """Parse a token of one of these kinds; any other text gives a token that matches no row.

    Malformed and unknown tokens thus take the same path, cost the same time and get the same
    answer.
    """
    found = _TOKEN.fullmatch(text)
    if found is None or found[1] not in kinds:
        return Token(kinds[0], "", bytes(_SECRET_BYTES))
    public = found[2]
    return Token(Kind(found[1]), public[:_ID_DIGITS], unb64(found[3]), public[_ID_DIGITS:])


def matches(token: Token, stored: bytes | None) -> bool:
    """Whether the token's secret has the stored hash, compared in constant time."""
    same = compare_digest(token.hash, _NO_HASH if stored is None else stored)
    return same and stored is not None


def b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
