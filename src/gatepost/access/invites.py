"""Invites for nodes: `gp1.<publicId>.<secret>`. An invite admits one node, once.

The public part ends in the fingerprint of the issuer's key, so that the joining node can verify the
gateway it talks to. Only the issuing gateway decides whether an invite is still valid.
"""

from typing import Literal

from msgspec import Struct

from gatepost.access.issuer import Issuer
from gatepost.access.tokens import Guarded, Kind, Token, matches, mint, parse
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
from gatepost.journal.transaction import Tx
from gatepost.wire import Tier

_COLUMNS = """
id, tier, expected_node_id, expected_key, created_by, created_at, expires_at,
used_at, used_by, used_key, revoked_at
"""
_INSERT = f"""
INSERT INTO invite ({_COLUMNS}, secret_hash)
VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL, NULL, ?)
"""
_FIND = f"SELECT {_COLUMNS}, secret_hash FROM invite WHERE id = ?"
_LIST = f"SELECT {_COLUMNS} FROM invite ORDER BY created_at, id"
_CONSUME = """
UPDATE invite SET used_at = ?, used_by = ?, used_key = ?
WHERE id = ? AND used_at IS NULL AND revoked_at IS NULL
"""
_REVOKE = "UPDATE invite SET revoked_at = ? WHERE id = ?"

# Exchanges are remembered until their invite expires, so its life must be limited.
_LONGEST = 30 * 86_400_000

State = Literal["open", "used", "revoked", "expired"]


class Invite(Struct, frozen=True):
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

    def state(self, now: int) -> State:
        if self.used_at is not None:
            return "used"
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if now >= self.expires_at else "open"


class IssuedInvite(Guarded, frozen=True):
    """A new invite with its token. The token is not stored and is visible only here."""

    invite: Invite
    token: str


def issue(
    tx: Tx,
    issuer: Issuer,
    *,
    tier: Tier,
    ttl: int,
    actor: str,
    expected_node_id: str | None = None,
    expected_key: bytes | None = None,
) -> IssuedInvite:
    """Issue an invite for `ttl` ms. Naming the expected node and its key makes it safer."""
    if issuer.tier != "backbone":
        raise Forbidden(f"{issuer.id} is an edge node; invite from a backbone node")
    if not 0 < ttl <= _LONGEST:
        raise InvalidRequest("an invite lasts at most 30 days; ask for less")
    if expected_node_id is not None:
        check_node_id(expected_node_id)
    token = mint(issuer.clock, Kind.INVITE, issuer.key.fingerprint)
    expected = (expected_node_id, expected_key)
    row = (token.id, tier, *expected, actor, tx.now, tx.now + ttl, token.hash)
    tx.execute(_INSERT, row)
    record_audit_entry(
        tx, actor, "invite.issue", token.id, f"{tier} {expected_node_id or 'any node'}"
    )
    return IssuedInvite(get(tx, token.id), token.text)


def listed(tx: Tx) -> list[Invite]:
    return [Invite(*row) for row in tx.fetch_all(_LIST)]


def get(tx: Tx, id: str) -> Invite:
    row = tx.fetch_one(_FIND, (id,))
    if row is None:
        raise UnknownInvite(f"this gateway has no invite {id!r}; `gatepost invites` shows all")
    return Invite(*row[:-1])


def revoke(tx: Tx, id: str, actor: str) -> Invite:
    """Revoke an unused invite. After its use, revoke the node instead."""
    invite = get(tx, id)
    if invite.used_at is not None:
        raise WrongState(f"invite {id} was used by {invite.used_by}; revoke that node instead")
    if invite.revoked_at is None:
        tx.execute(_REVOKE, (tx.now, id))
        record_audit_entry(tx, actor, "invite.revoke", id)
    return get(tx, id)


def redeemable(tx: Tx, text: str, issuer: Issuer) -> Invite:
    """Return the invite of a token. The order of the checks is part of the protocol."""
    invite = _recognise(tx, parse(text, Kind.INVITE), issuer.key.fingerprint)
    if invite.used_at is not None:
        raise _already_used()
    if invite.revoked_at is not None:
        raise _withdrawn()
    if tx.now >= invite.expires_at:
        raise ExpiredToken("this invite has expired; ask for a new one")
    return invite


def consume(tx: Tx, id: str, node_id: str, node_key: bytes) -> bool:
    """Consume the invite for this node; return False if this same node consumed it before."""
    tx.execute(_CONSUME, (tx.now, node_id, node_key, id))
    if tx.changed_rows() == 1:
        return True
    invite = get(tx, id)
    if invite.revoked_at is not None:
        raise _withdrawn()
    if (invite.used_by, invite.used_key) != (node_id, node_key):
        raise _already_used()
    return False


def issuer_fingerprint(text: str) -> str:
    """The fingerprint of the key that must sign the answer to this invite."""
    token = parse(text, Kind.INVITE)
    if len(token.extra) != len(fingerprint_key(b"")):
        raise InvalidToken("this is not an invite; it starts with `gp1.` and is one line")
    return token.extra


def _recognise(tx: Tx, token: Token, issuer: str) -> Invite:
    row = tx.fetch_one(_FIND, (token.id,))
    known = matches(token, None if row is None else row[-1])
    if row is None or not known or token.extra != issuer:
        raise InvalidToken("this gateway did not issue this invite; check where it came from")
    return Invite(*row[:-1])


def _already_used() -> TokenAlreadyUsed:
    return TokenAlreadyUsed(
        "this invite was used; the node admitted with it reconnects with its own proof"
    )


def _withdrawn() -> Revoked:
    return Revoked("this invite was revoked; ask for a new one")
