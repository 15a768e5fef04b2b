"""Authentication of local API clients by the bearer token in the state directory."""

import hashlib
import hmac

from gatepost.access.tokens import TokenKind

_SESSION_TOKENS = (f"{TokenKind.ACCESS}.", f"{TokenKind.CONTEXT}.")


class LocalTokenAuth:
    """Checks bearer tokens. Keeps the token's hash, never the token."""

    def __init__(self, token: str) -> None:
        self._hash = _hash_token(token)

    def is_token(self, authorization: str | None) -> bool:
        """Whether the header carries the token."""
        token = parse_bearer_token(authorization)
        return token is not None and hmac.compare_digest(_hash_token(token), self._hash)


def parse_bearer_token(authorization: str | None) -> str | None:
    """Return the token; None if the header is missing or has another scheme."""
    scheme, _, token = (authorization or "").partition(" ")
    return token if scheme.lower() == "bearer" else None


def is_session_token(authorization: str | None) -> bool:
    """Whether the header carries the token of a session, and not the local token."""
    return (parse_bearer_token(authorization) or "").strip().startswith(_SESSION_TOKENS)


def _hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
