"""Authentication of local API clients by the bearer token in the state directory."""

import hashlib
import hmac

from gatepost.errors import Unauthorized


class LocalTokenAuth:
    """Checks bearer tokens. Keeps the token's hash, never the token."""

    def __init__(self, token: str) -> None:
        self._hash = _hash_token(token)

    def require_token(self, authorization: str | None) -> None:
        """Raise Unauthorized unless the header carries the token."""
        token = parse_bearer_token(authorization)
        if token is None or not hmac.compare_digest(_hash_token(token), self._hash):
            raise Unauthorized("send `Authorization: Bearer` with the token in the state directory")


def parse_bearer_token(authorization: str | None) -> str | None:
    """Return the token; None if the header is missing or has another scheme."""
    scheme, _, token = (authorization or "").partition(" ")
    return token if scheme.lower() == "bearer" else None


def _hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
