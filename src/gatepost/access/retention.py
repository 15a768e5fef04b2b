"""Deletes expired invites, sessions, tickets and tokens, and voids unused ones after a restore."""

from gatepost.access.policy import AccessPolicy
from gatepost.journal.transaction import Tx

# A ticket row is deleted once the ticket can no longer be presented. Rows that an operator can list
# stay `AccessPolicy.remember` longer.
_DELETE_SPENT_TICKETS = """
DELETE FROM ticket WHERE jti IN (SELECT jti FROM ticket WHERE keep_until <= ? LIMIT ?)
"""
_DELETE_OLD_ROWS = (
    """DELETE FROM invite WHERE id IN (SELECT id FROM invite WHERE expires_at <= ? LIMIT ?)""",
    """DELETE FROM agent_invite
       WHERE id IN (SELECT id FROM agent_invite WHERE expires_at <= ? LIMIT ?)""",
    """DELETE FROM agent_token
       WHERE id IN (SELECT id FROM agent_token WHERE expires_at <= ? LIMIT ?)""",
    """DELETE FROM agent_session WHERE id IN (
           SELECT id FROM agent_session s WHERE seen_at <= ?
           AND NOT EXISTS (SELECT 1 FROM agent_token WHERE session = s.id) LIMIT ?)""",
)
# Each of these may have been used, or revoked, since the backup was made.
_VOID = (
    "UPDATE invite SET revoked_at = ? WHERE used_at IS NULL AND revoked_at IS NULL",
    "UPDATE agent_invite SET revoked_at = ? WHERE used_at IS NULL AND revoked_at IS NULL",
    "UPDATE agent_session SET revoked_at = ?, revoked_by = 'restore' WHERE revoked_at IS NULL",
    "UPDATE ticket SET used_at = ? WHERE used_at IS NULL",
)


def void_credentials(tx: Tx) -> None:
    """In a restored journal, make unused invites and tickets and all sessions invalid."""
    for sql in _VOID:
        tx.execute(sql, (tx.now,))


def prune_expired(tx: Tx, policy: AccessPolicy, limit: int) -> int:
    """Delete up to `limit` rows of each kind; return the number of deleted rows."""
    tx.execute(_DELETE_SPENT_TICKETS, (tx.now, limit))
    deleted = tx.changed_rows()
    for sql in _DELETE_OLD_ROWS:
        tx.execute(sql, (tx.now - policy.remember, limit))
        deleted += tx.changed_rows()
    return deleted
