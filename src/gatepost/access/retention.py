"""Pruning of expired tickets, invites, tokens and sessions, one batch per transaction."""

from gatepost.access.policy import AccessPolicy
from gatepost.journal.transaction import Tx

# A ticket row goes once the ticket cannot be presented any more. Rows that people look at stay
# `AccessPolicy.remember` longer.
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


def prune_expired(tx: Tx, policy: AccessPolicy, limit: int) -> int:
    """Delete up to `limit` rows of each kind; return the number of deleted rows."""
    tx.execute(_DELETE_SPENT_TICKETS, (tx.now, limit))
    deleted = tx.changed_rows()
    for sql in _DELETE_OLD_ROWS:
        tx.execute(sql, (tx.now - policy.remember, limit))
        deleted += tx.changed_rows()
    return deleted
