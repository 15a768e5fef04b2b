"""Invites for nodes: `gp1.<publicId>.<secret>`. An invite admits one node, once.

The public part has the fingerprint of the issuer's key, so that the joining node can verify the
gateway it talks to. If no authority signed the issuer's certificate, the pin of its TLS key
follows: the joining node then needs no other file to know the right machine. Only the issuing
gateway decides whether an invite is still valid.
"""

from typing import Literal

from msgspec import Struct

from gatepost.access.issuer import Issuer
from gatepost.access.tokens import BearerToken, TokenKind, matches_hash, mint_token, parse_token
from gatepost.errors import (
    ExpiredToken,
    Forbidden,
    InvalidRequest,
    InvalidToken,
    Revoked,
    TokenAlreadyUsed,
    UnknownInvite,
    WrongState,
)
from gatepost.events import check_node_id, fingerprint_key
from gatepost.journal.audit import record_audit_entry
from gatepost.journal.transaction import Row, Tx
from gatepost.room.roles import Act, may_act, role_of_tier
from gatepost.tls import PIN_DIGITS
from gatepost.wire.agent_tokens import SecretValue
from gatepost.wire.operations import Tier

_COLUMNS = """
id, tier, expected_node_id, expected_key, created_by, created_at, expires_at,
used_at, used_by, used_key, revoked_at
"""
_INSERT_INVITE = f"""
INSERT INTO invite ({_COLUMNS}, secret_hash)
VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL, NULL, ?)
"""
_SELECT_INVITE = f"SELECT {_COLUMNS}, secret_hash FROM invite WHERE id = ?"
_SELECT_INVITES = f"SELECT {_COLUMNS} FROM invite ORDER BY created_at, id"
_CONSUME_INVITE = """
UPDATE invite SET used_at = ?, used_by = ?, used_key = ?
WHERE id = ? AND used_at IS NULL AND revoked_at IS NULL
"""
_REVOKE_INVITE = "UPDATE invite SET revoked_at = ? WHERE id = ?"

_FINGERPRINT_DIGITS = len(fingerprint_key(b""))
# Exchanges are remembered until their invite expires, so its life must be limited.
_MAX_TTL_MS = 30 * 86_400_000

InviteState = Literal["open", "used", "revoked", "expired"]


class NodeInvite(Struct, frozen=True):
    """An invite without its secret."""

    id: str
    tier: Tier
    expected_node_id: str | None
    expected_key: bytes | None
    created_by: str
    created_at: int
    expires_at: int
    used_at: int | None
    used_by: str | None
    used_key: bytes | None
    revoked_at: int | None

    def state_at(self, now: int) -> InviteState:
        if self.used_at is not None:
            return "used"
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if now >= self.expires_at else "open"


class IssuedNodeInvite(SecretValue, frozen=True):
    """A new invite with its token. The token is not stored and is visible only here."""

    invite: NodeInvite
    token: str


def issue_node_invite(
    tx: Tx,
    issuer: Issuer,
    *,
    tier: Tier,
    ttl: int,
    actor: str,
    expected_node_id: str | None = None,
    expected_key: bytes | None = None,
    tls_pin: str | None = None,
) -> IssuedNodeInvite:
    """Issue an invite for `ttl` ms. Naming the expected node and its key makes it safer."""
    if not may_act(role_of_tier(issuer.tier), Act.ADMIT_NODE):
        raise Forbidden(f"{issuer.id} is an edge node; invite from a backbone node")
    if not 0 < ttl <= _MAX_TTL_MS:
        raise InvalidRequest("an invite lasts at most 30 days; ask for less")
    if expected_node_id is not None:
        check_node_id(expected_node_id)
    extra = issuer.key.fingerprint + (tls_pin or "")
    token = mint_token(issuer.clock, TokenKind.INVITE, extra)
    expected = (expected_node_id, expected_key)
    row = (token.id, tier, *expected, actor, tx.now, tx.now + ttl, token.hash)
    tx.execute(_INSERT_INVITE, row)
    record_audit_entry(
        tx, actor, "invite.issue", token.id, f"{tier} {expected_node_id or 'any node'}"
    )
    return IssuedNodeInvite(load_node_invite(tx, token.id), token.text)


def list_node_invites(tx: Tx) -> list[NodeInvite]:
    return [NodeInvite(*row) for row in tx.fetch_all(_SELECT_INVITES)]


def load_node_invite(tx: Tx, id: str) -> NodeInvite:
    row = tx.fetch_one(_SELECT_INVITE, (id,))
    if row is None:
        raise UnknownInvite(f"this gateway has no invite {id!r}; `gatepost invites` shows all")
    return NodeInvite(*row[:-1])


def revoke_node_invite(tx: Tx, id: str, actor: str) -> NodeInvite:
    """Revoke an unused invite. After its use, revoke the node instead."""
    invite = load_node_invite(tx, id)
    if invite.used_at is not None:
        raise WrongState(f"invite {id} was used by {invite.used_by}; revoke that node instead")
    if invite.revoked_at is None:
        tx.execute(_REVOKE_INVITE, (tx.now, id))
        record_audit_entry(tx, actor, "invite.revoke", id)
    return load_node_invite(tx, id)


def find_redeemable_invite(tx: Tx, text: str, issuer: Issuer) -> NodeInvite:
    """Return the invite of a token. The order of the checks is part of the protocol."""
    invite = _find_invite(tx, parse_token(text, TokenKind.INVITE), issuer.key.fingerprint)
    if invite.used_at is not None:
        raise already_used_error()
    if invite.revoked_at is not None:
        raise _revoked_error()
    if tx.now >= invite.expires_at:
        raise ExpiredToken("this invite has expired; ask for a new one")
    return invite


def consume_node_invite(tx: Tx, id: str, node_id: str, node_key: bytes) -> bool:
    """Consume the invite for this node; return False if this same node consumed it before."""
    tx.execute(_CONSUME_INVITE, (tx.now, node_id, node_key, id))
    if tx.changed_rows() == 1:
        return True
    invite = load_node_invite(tx, id)
    if invite.revoked_at is not None:
        raise _revoked_error()
    if (invite.used_by, invite.used_key) != (node_id, node_key):
        raise already_used_error()
    return False


class InviteIssuer(Struct, frozen=True):
    """The gateway that issued an invite: its key's fingerprint, and its TLS pin if it has one."""

    fingerprint: str
    tls_pin: str | None


def read_invite_issuer(text: str) -> InviteIssuer:
    """The gateway that must answer to this invite."""
    token = parse_token(text, TokenKind.INVITE)
    fingerprint, pin = token.extra[:_FINGERPRINT_DIGITS], token.extra[_FINGERPRINT_DIGITS:]
    if len(fingerprint) != _FINGERPRINT_DIGITS or len(pin) not in {0, PIN_DIGITS}:
        raise InvalidToken("this is not an invite; it starts with `gp1.` and is one line")
    return InviteIssuer(fingerprint, pin or None)


def _find_invite(tx: Tx, token: BearerToken, issuer: str) -> NodeInvite:
    row = tx.fetch_one(_SELECT_INVITE, (token.id,))
    known = matches_hash(token, None if row is None else row[-1])
    if row is None or not known or token.extra[:_FINGERPRINT_DIGITS] != issuer:
        raise InvalidToken("this gateway did not issue this invite; check where it came from")
    return NodeInvite(*row[:-1])


def already_used_error() -> TokenAlreadyUsed:
    return TokenAlreadyUsed(
        "this invite was used; the node admitted with it reconnects with its own proof"
    )


def _revoked_error() -> Revoked:
    return Revoked("this invite was revoked; ask for a new one")


def invites_used_by(tx: Tx, node_id: str) -> list[Row]:
    """(id, time of use) of the invites that a node used."""
    return tx.fetch_all("SELECT id, used_at FROM invite WHERE used_by = ?", (node_id,))
