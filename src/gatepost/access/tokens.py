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

from gatepost.clock import Clock
from gatepost.wire.agent_tokens import SecretValue

_ID_BYTES = 8
_SECRET_BYTES = 32
_ID_DIGITS = 2 * _ID_BYTES
_TOKEN_PATTERN = re.compile(r"([a-z]+1)\.([0-9a-f]{16,128})\.([A-Za-z0-9_-]{43})")
_NO_HASH = bytes(32)


class TokenKind(StrEnum):
    INVITE = "gp1"
    AGENT_INVITE = "gpa1"
    ACCESS = "gps1"
    REFRESH = "gpr1"
    CONTEXT = "gpc1"
    TASK = "gpt1"


class BearerToken(SecretValue, frozen=True):
    """`id` identifies the row; `extra` is the rest of the public part, readable by the holder."""

    kind: TokenKind
    id: str
    secret: bytes
    extra: str = ""

    @property
    def text(self) -> str:
        return f"{self.kind}.{self.id}{self.extra}.{encode_b64(self.secret)}"

    @property
    def hash(self) -> bytes:
        return sha256(self.secret).digest()


def new_public_id(clock: Clock) -> str:
    return clock.random(_ID_BYTES).hex()


def mint_token(clock: Clock, kind: TokenKind, extra: str = "") -> BearerToken:
    return BearerToken(kind, new_public_id(clock), clock.random(_SECRET_BYTES), extra)


def parse_token(text: str, *kinds: TokenKind) -> BearerToken:
    """Parse a token of one of these kinds; any other text gives a token that matches no row.

    Malformed and unknown tokens thus take the same path, cost the same time and get the same
    answer.
    """
    found = _TOKEN_PATTERN.fullmatch(text)
    if found is None or found[1] not in kinds:
        return BearerToken(kinds[0], "", bytes(_SECRET_BYTES))
    public = found[2]
    return BearerToken(
        TokenKind(found[1]), public[:_ID_DIGITS], decode_b64(found[3]), public[_ID_DIGITS:]
    )


def matches_hash(token: BearerToken, stored: bytes | None) -> bool:
    """Whether the token's secret has the stored hash, compared in constant time."""
    same = compare_digest(token.hash, _NO_HASH if stored is None else stored)
    return same and stored is not None


def encode_b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_b64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
