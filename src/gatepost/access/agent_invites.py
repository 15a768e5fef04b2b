"""Invites for external agents. An invite names one agent and its scopes, and works once."""

import msgspec
from msgspec import Struct

from gatepost.access.auth_messages import AgentInviteRequest
from gatepost.access.grants import Grantor, authorize_grantor, check_granted_agent
from gatepost.access.scopes import check_grantable
from gatepost.access.tokens import TokenKind, matches_hash, mint_token, parse_token
from gatepost.clock import Clock
from gatepost.errors import (
    ExpiredToken,
    InvalidToken,
    Revoked,
    TokenAlreadyUsed,
    UnknownInvite,
)
from gatepost.events import check_agent_id
from gatepost.events.reserved_names import require_agent_name
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Row, Tx
from gatepost.wire.agent_tokens import SecretValue

_COLUMNS = "id, agent_id, scopes, created_by, created_at, expires_at, used_at, revoked_at, grantor"
_INSERT_INVITE = """
INSERT INTO agent_invite
    (id, agent_id, scopes, created_by, created_at, expires_at, grantor, secret_hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_SELECT_INVITE = f"SELECT {_COLUMNS}, secret_hash FROM agent_invite WHERE id = ?"
_SELECT_INVITES = f"SELECT {_COLUMNS} FROM agent_invite ORDER BY created_at, id"
_REVOKE_OPEN_INVITES = """
UPDATE agent_invite SET revoked_at = ?
WHERE agent_id = ? AND used_at IS NULL AND revoked_at IS NULL
"""


class AgentInvite(Struct, frozen=True):
    id: str
    agent_id: str
    scopes: tuple[str, ...]
    created_by: str
    created_at: int
    expires_at: int
    used_at: int | None
    revoked_at: int | None
    # The session that granted it; None for the operator.
    grantor: str | None


class IssuedAgentInvite(SecretValue, frozen=True):
    """A new invite with its token. The token is not stored and is visible only here."""

    invite: AgentInvite
    token: str


def issue_agent_invite(
    tx: Tx,
    clock: Clock,
    request: AgentInviteRequest,
    actor: str,
    grantor: Grantor | None = None,
    tls_pin: str | None = None,
    is_known: bool = False,
) -> IssuedAgentInvite:
    """Issue an invite as the operator, or as the session `grantor` within its bounds.

    `tls_pin` tells the agent by which key it knows this gateway; `is_known`: see
    `check_granted_agent`.
    """
    agent_id = require_agent_name(check_agent_id(request.agent_id))
    expires_at = tx.now + request.ttl_secs * 1000
    if grantor is not None:
        expires_at = min(expires_at, authorize_grantor(tx, grantor))
        check_granted_agent(tx, agent_id, grantor, is_known)
    scopes = check_grantable(request.scopes, None if grantor is None else grantor.scopes)
    token = mint_token(clock, TokenKind.AGENT_INVITE, tls_pin or "")
    row = (token.id, agent_id, encode_scopes(scopes), actor, tx.now, expires_at)
    tx.execute(_INSERT_INVITE, (*row, None if grantor is None else grantor.id, token.hash))
    record_audit_entry(tx, actor, "agent.invite", agent_id, " ".join(scopes))
    return IssuedAgentInvite(load_agent_invite(tx, token.id), token.text)


def list_agent_invites(tx: Tx) -> list[AgentInvite]:
    return [_invite_from_row(row) for row in tx.fetch_all(_SELECT_INVITES)]


def load_agent_invite(tx: Tx, id: str) -> AgentInvite:
    row = tx.fetch_one(_SELECT_INVITE, (id,))
    if row is None:
        raise UnknownInvite(f"this gateway has no agent invite {id!r}")
    return _invite_from_row(row[:-1])


def revoke_open_invites(tx: Tx, agent_id: str) -> None:
    tx.execute(_REVOKE_OPEN_INVITES, (tx.now, agent_id))


def redeem_agent_invite(tx: Tx, text: str) -> AgentInvite:
    """Check an invite token and mark its invite as used."""
    token = parse_token(text, TokenKind.AGENT_INVITE)
    row = tx.fetch_one(_SELECT_INVITE, (token.id,))
    if not matches_hash(token, None if row is None else row[-1]) or row is None:
        raise InvalidToken("this gateway did not issue this invite; check where it came from")
    invite = _invite_from_row(row[:-1])
    require_agent_name(invite.agent_id)
    _check_open(invite, tx.now)
    tx.execute("UPDATE agent_invite SET used_at = ? WHERE id = ?", (tx.now, invite.id))
    return invite


def encode_scopes(scopes: tuple[str, ...]) -> str:
    return msgspec.json.encode(scopes).decode()


def decode_scopes(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


def _check_open(invite: AgentInvite, now: int) -> None:
    if invite.used_at is not None:
        raise TokenAlreadyUsed("this invite was used; it works once, ask for a new one")
    if invite.revoked_at is not None:
        raise Revoked("this invite was revoked; ask for a new one")
    if now >= invite.expires_at:
        raise ExpiredToken("this invite has expired; ask for a new one")


def _invite_from_row(row: Row) -> AgentInvite:
    id, agent_id, scopes, *rest = row
    return AgentInvite(id, agent_id, decode_scopes(scopes), *rest)
