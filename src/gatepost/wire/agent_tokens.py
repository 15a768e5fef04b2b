"""Tokens of external agents on the wire: the exchange of an invite, and the refresh of a session.

A value that carries a secret prints only the name of its type.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

# Every invite of an external agent starts with it.
AGENT_INVITE_PREFIX = "gpa1."

Nonce = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{16,128}\Z")]
TokenText = Annotated[str, Meta(max_length=256)]


class SecretValue(Struct, frozen=True):
    """A value that carries a secret. Printing it shows only its type."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class AgentExchangeRequest(SecretValue, frozen=True, rename="camel"):
    invite_token: TokenText


class AgentRefreshRequest(SecretValue, frozen=True, rename="camel"):
    """`attempt` is a random value, the same when a client asks again after a lost answer."""

    refresh_token: TokenText
    attempt: Nonce | None = None


class AgentTokens(SecretValue, frozen=True, rename="camel"):
    """Times are epoch milliseconds."""

    access_token: str
    access_expires_at: int
    refresh_token: str
    refresh_expires_at: int
    session_id: str
    agent_id: str
    scopes: tuple[str, ...]
