"""Authentication of local API clients by the bearer token in the state directory."""

import hashlib
import hmac

from gatepost.access.tokens import TokenKind

_SESSION_TOKENS = (f"{TokenKind.ACCESS}.", f"{TokenKind.CONTEXT}.")


class LocalTokenAuth:
    """Checks bearer tokens. Keeps the token's hash, never the token.

    `own_calls` is the token by which this process calls its own API. It is never on disk, and
    ends with the process.
    """

    def __init__(self, token: str, own_calls: str | None = None) -> None:
        self.own_calls = own_calls
        tokens = (token,) if own_calls is None else (token, own_calls)
        self._hashes = [_hash_token(each) for each in tokens]

    def is_token(self, authorization: str | None) -> bool:
        """Whether the header carries the token."""
        token = parse_bearer_token(authorization)
        if token is None:
            return False
        given = _hash_token(token)
        return any(hmac.compare_digest(given, each) for each in self._hashes)


def parse_bearer_token(authorization: str | None) -> str | None:
    """Return the token; None if the header is missing or has another scheme."""
    scheme, _, token = (authorization or "").partition(" ")
    return token if scheme.lower() == "bearer" else None


def is_session_token(authorization: str | None) -> bool:
    """Whether the header carries the token of a session, and not the local token."""
    return (parse_bearer_token(authorization) or "").strip().startswith(_SESSION_TOKENS)


def _hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
