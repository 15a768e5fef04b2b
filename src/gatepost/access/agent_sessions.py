"""Sessions of external agents: access tokens, rotating refresh tokens, context tokens.

A session is the family of all tokens that descend from one invite. If another session granted that
invite, it ends with that one (`grants.py`). Each refresh consumes one
refresh token. A refresh token presented twice was copied, and the gateway cannot tell the owner
from the copier, so it ends the session.

One case is not a theft: the answer to a refresh was lost, and the same client asks again. The
random number of its first attempt shows that it is the same. It gets new tokens within a short
grace, as long as none of the tokens in the lost answer was used. Those are void from then on.
"""

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Literal

from msgspec import Struct

from gatepost.access import agent_invites
from gatepost.access.agent_invites import decode_scopes, encode_scopes
from gatepost.access.auth_messages import ContextToken, ContextTokenRequest
from gatepost.access.grants import end_sessions, live_session_end
from gatepost.access.policy import AccessPolicy
from gatepost.access.scopes import check_grantable, scopes_cover
from gatepost.access.tokens import (
    BearerToken,
    TokenKind,
    matches_hash,
    mint_token,
    new_public_id,
    parse_token,
)
from gatepost.clock import Clock
from gatepost.errors import (
    ExpiredToken,
    Forbidden,
    InvalidToken,
    RateLimited,
    Revoked,
    TokenReused,
)
from gatepost.events.reserved_names import require_agent_name
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Tx
from gatepost.wire.agent_tokens import AgentTokens

MAX_CONTEXT_TOKENS = 1000

_KIND_NAMES = {
    TokenKind.ACCESS: "access",
    TokenKind.REFRESH: "refresh",
    TokenKind.CONTEXT: "context",
}
_SELECT_TOKEN = """
SELECT t.session, s.agent_id, t.scopes, t.label, t.expires_at, t.used_at, s.revoked_at, s.seen_at,
       t.attempt_hash, s.parent, t.secret_hash
FROM agent_token t JOIN agent_session s ON s.id = t.session WHERE t.id = ? AND t.kind = ?
"""
_INSERT_SESSION = """
INSERT INTO agent_session (id, agent_id, scopes, created_at, seen_at, parent)
VALUES (?, ?, ?, ?, ?, ?)
"""
_INSERT_TOKEN = """
INSERT INTO agent_token (id, session, kind, scopes, label, expires_at, secret_hash, parent)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_USE_REFRESH_TOKEN = """
UPDATE agent_token SET used_at = coalesce(used_at, ?), attempt_hash = ? WHERE id = ?
"""
_HAS_USED_SUCCESSOR = "SELECT 1 FROM agent_token WHERE parent = ? AND used_at IS NOT NULL"
# A void refresh token counts as used, so presenting it ends the session.
_VOID_SUCCESSORS = """
UPDATE agent_token SET parent = NULL, used_at = ?, expires_at = CASE kind WHEN 'access' THEN ?
    ELSE expires_at END
WHERE parent = ?
"""
_COUNT_CONTEXT_TOKENS = """
SELECT count(*) FROM agent_token WHERE session = ? AND kind = 'context' AND expires_at > ?
"""
_MARK_USED = "UPDATE agent_token SET used_at = ? WHERE id = ? AND used_at IS NULL"
_SELECT_SESSIONS = """
SELECT s.id, s.agent_id, s.scopes, s.created_at, s.seen_at,
       (SELECT max(expires_at) FROM agent_token
        WHERE session = s.id AND kind = 'refresh' AND used_at IS NULL),
       s.revoked_at, s.revoked_by, s.parent
FROM agent_session s ORDER BY s.created_at, s.id
"""
_SELECT_LIVE_SESSIONS = (
    "SELECT id FROM agent_session WHERE agent_id = ? AND revoked_at IS NULL ORDER BY id"
)
_SELECT_LIVE_SCOPES = "SELECT scopes FROM agent_session WHERE agent_id = ? AND revoked_at IS NULL"
_TOUCH_SESSION = (
    "UPDATE agent_session SET seen_at = ? WHERE id = ? AND revoked_at IS NULL AND seen_at < ?"
)


def find_missing_scope(tx: Tx, agent_id: str, wanted: Iterable[str]) -> str | None:
    """The first of these scopes that no live session of an external agent has.

    None if its sessions have them all, or if it has no session: then it does not need scopes.
    """
    rows = tx.fetch_all(_SELECT_LIVE_SCOPES, (agent_id,))
    granted = {scope for (scopes,) in rows for scope in decode_scopes(scopes)}
    return next((each for each in wanted if rows and not scopes_cover(granted, each)), None)


class AgentSession(Struct, frozen=True):
    """The session behind a token. It acts only as its own agent."""

    id: str
    agent_id: str
    scopes: tuple[str, ...]
    kind: Literal["access", "context"]
    label: str
    expires_at: int
    seen_at: int
    token_id: str
    # False until `mark_token_used` is committed for the token.
    is_token_used: bool


class AgentSessionInfo(Struct, frozen=True):
    """A session in the operator's list."""

    id: str
    agent_id: str
    scopes: tuple[str, ...]
    created_at: int
    seen_at: int
    expires_at: int | None
    revoked_at: int | None
    revoked_by: str | None
    granted_by: str | None


class RefreshTokenReuse(Struct, frozen=True):
    """A refresh token was presented twice, so its session has ended.

    This is returned and not raised, because raising rolls the transaction back. Commit first, then
    raise `as_error()`.
    """

    session_id: str
    agent_id: str
    # This session, and those that were opened by its invites.
    ended: tuple[str, ...]

    def as_error(self) -> TokenReused:
        return TokenReused(
            "this refresh token was used before, so its session has ended;"
            " if that was not you, someone has a copy: ask for a new invite"
        )


class _FoundToken(Struct, frozen=True):
    session: str
    agent_id: str
    scopes: tuple[str, ...]
    label: str
    expires_at: int
    used_at: int | None
    revoked_at: int | None
    seen_at: int
    attempt_hash: bytes | None
    parent: str | None


class AgentSessions:
    def __init__(self, clock: Clock, policy: AccessPolicy) -> None:
        self._clock = clock
        self._policy = policy

    def exchange_invite(self, tx: Tx, invite_token: str) -> AgentTokens:
        """Open a session for an invite token."""
        invite = agent_invites.redeem_agent_invite(tx, invite_token)
        id = new_public_id(self._clock)
        row = (id, invite.agent_id, encode_scopes(invite.scopes), tx.now, tx.now, invite.grantor)
        tx.execute(_INSERT_SESSION, row)
        return self._issue_tokens(tx, id, invite.agent_id, invite.scopes, invite.grantor)

    def refresh_tokens(
        self, tx: Tx, refresh_token: str, attempt: str | None = None
    ) -> AgentTokens | RefreshTokenReuse:
        """Consume a refresh token and issue new tokens. `attempt`: see `AgentRefreshRequest`."""
        token = parse_token(refresh_token, TokenKind.REFRESH)
        found = _find_token(tx, token)
        hashed = None if attempt is None else sha256(attempt.encode()).digest()
        if found.used_at is not None and not self._is_repeat(tx, token.id, found, hashed):
            ended = end_sessions(tx, [found.session], "token reuse")
            record_audit_entry(tx, found.agent_id, "agent.session.reuse", found.session)
            return RefreshTokenReuse(found.session, found.agent_id, tuple(ended))
        _check_token_expiry(found, tx.now)
        tx.execute(_VOID_SUCCESSORS, (tx.now, tx.now, token.id))
        tx.execute(_USE_REFRESH_TOKEN, (tx.now, hashed, token.id))
        self.touch_session(tx, found.session)
        owner = (found.session, found.agent_id, found.scopes, found.parent)
        return self._issue_tokens(tx, *owner, replaces=token.id)

    def _is_repeat(self, tx: Tx, id: str, found: _FoundToken, attempt: bytes | None) -> bool:
        """Whether a request comes from the client that already used this refresh token."""
        if attempt is None or found.attempt_hash is None or found.used_at is None:
            return False
        in_time = tx.now < found.used_at + self._policy.refresh_grace
        is_same = compare_digest(attempt, found.attempt_hash)
        return in_time and is_same and tx.fetch_one(_HAS_USED_SUCCESSOR, (id,)) is None

    def authenticate_token(self, tx: Tx, bearer: str) -> AgentSession:
        """Return the session of an access or context token. Reads only; see `touch_session`."""
        token = parse_token(bearer, TokenKind.ACCESS, TokenKind.CONTEXT)
        found = _find_token(tx, token)
        _check_token_expiry(found, tx.now)
        require_agent_name(found.agent_id)
        kind: Literal["access", "context"] = (
            "access" if token.kind is TokenKind.ACCESS else "context"
        )
        owner = (found.session, found.agent_id, found.scopes)
        times = (found.expires_at, found.seen_at)
        return AgentSession(*owner, kind, found.label, *times, token.id, found.used_at is not None)

    def mark_token_used(self, tx: Tx, token_id: str) -> None:
        """Record the first use of a token: the answer that carried it was not lost."""
        tx.execute(_MARK_USED, (tx.now, token_id))

    def touch_session(self, tx: Tx, session_id: str) -> None:
        """Record that a session is in use. This costs a write; once a minute is enough."""
        tx.execute(_TOUCH_SESSION, (tx.now, session_id, tx.now))

    def issue_context_token(
        self, tx: Tx, session: AgentSession, request: ContextTokenRequest
    ) -> ContextToken:
        """Issue a restricted token: fewer scopes, expires no later than its parent, no refresh."""
        if session.kind != "access":
            raise Forbidden("a context token cannot create another one; use the access token")
        scopes = check_grantable(request.scopes, session.scopes)
        ((count,),) = tx.fetch_all(_COUNT_CONTEXT_TOKENS, (session.id, tx.now))
        if count >= MAX_CONTEXT_TOKENS:
            raise RateLimited(f"this session has {count} context tokens", retry_after=60.0)
        expires_at = min(tx.now + request.ttl_secs * 1000, session.expires_at)
        token = self._store_token(
            tx, TokenKind.CONTEXT, session.id, scopes, expires_at, request.label
        )
        return ContextToken(token.text, expires_at, scopes)

    def revoke_agent(self, tx: Tx, agent_id: str, actor: str) -> list[str]:
        """End all sessions and open invites of an agent, and all that these sessions granted.

        Returns the ids of the ended sessions.
        """
        own = [row[0] for row in tx.fetch_all(_SELECT_LIVE_SESSIONS, (agent_id,))]
        ended = end_sessions(tx, own, actor)
        agent_invites.revoke_open_invites(tx, agent_id)
        record_audit_entry(tx, actor, "agent.revoke", agent_id, f"{len(ended)} sessions")
        return ended

    def list_sessions(self, tx: Tx) -> list[AgentSessionInfo]:
        return [
            AgentSessionInfo(id, agent_id, decode_scopes(scopes), *rest)
            for id, agent_id, scopes, *rest in tx.fetch_all(_SELECT_SESSIONS)
        ]

    def _issue_tokens(
        self,
        tx: Tx,
        session: str,
        agent_id: str,
        scopes: tuple[str, ...],
        grantor: str | None,
        replaces: str | None = None,
    ) -> AgentTokens:
        """`grantor` is the session that granted this one, and `replaces` the last refresh token."""
        refresh_end = tx.now + self._policy.refresh_life
        if grantor is not None:
            refresh_end = min(refresh_end, live_session_end(tx, grantor))
        access_end = min(tx.now + self._policy.access_life, refresh_end)
        grant = (session, scopes)
        access = self._store_token(tx, TokenKind.ACCESS, *grant, access_end, parent=replaces)
        refresh = self._store_token(tx, TokenKind.REFRESH, *grant, refresh_end, parent=replaces)
        tokens = (access.text, access_end, refresh.text, refresh_end)
        return AgentTokens(*tokens, session, agent_id, scopes)

    def _store_token(
        self,
        tx: Tx,
        kind: TokenKind,
        session: str,
        scopes: tuple[str, ...],
        expires_at: int,
        label: str = "",
        parent: str | None = None,
    ) -> BearerToken:
        token = mint_token(self._clock, kind)
        grant = (_KIND_NAMES[kind], encode_scopes(scopes), label)
        tx.execute(_INSERT_TOKEN, (token.id, session, *grant, expires_at, token.hash, parent))
        return token


def _find_token(tx: Tx, token: BearerToken) -> _FoundToken:
    row = tx.fetch_one(_SELECT_TOKEN, (token.id, _KIND_NAMES[token.kind]))
    if not matches_hash(token, None if row is None else row[-1]) or row is None:
        raise InvalidToken("this gateway does not know this token; exchange an invite for one")
    session, agent_id, scopes, *rest = row[:-1]
    found = _FoundToken(session, agent_id, decode_scopes(scopes), *rest)
    if found.revoked_at is not None:
        raise Revoked("this session was ended; ask for a new invite")
    return found


def _check_token_expiry(found: _FoundToken, now: int) -> None:
    if now >= found.expires_at:
        raise ExpiredToken("this token has expired; refresh it, or ask for a new invite")
