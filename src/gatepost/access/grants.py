"""Grants: what one session of an external agent may pass on to another.

A session with `ansible.admin.access` invites agents. It never gives away more than it has: not more
scopes, no longer life, and no agent that another session or the operator brought in. A session that
was opened by such an invite has the granting session as its `parent`, and ends with it.
"""

from collections.abc import Iterable
from typing import Literal, Protocol

from gatepost.access.scopes import Scope, require_scope
from gatepost.errors import Forbidden, RateLimited, Revoked
from gatepost.journal.transaction import Tx

MAX_OPEN_INVITES = 100

_SELECT_END = """
SELECT max(t.expires_at) FROM agent_session s JOIN agent_token t ON t.session = s.id
WHERE s.id = ? AND s.revoked_at IS NULL AND t.kind = 'refresh' AND t.used_at IS NULL
"""
_COUNT_OPEN_INVITES = """
SELECT count(*) FROM agent_invite
WHERE grantor = ? AND used_at IS NULL AND revoked_at IS NULL AND expires_at > ?
"""
_SELECT_GRANTORS = "SELECT DISTINCT grantor FROM agent_invite WHERE agent_id = ?"
# The sessions opened under these, recursively.
_SELECT_FAMILY = """
WITH RECURSIVE family (id) AS (
    SELECT ?1 UNION SELECT s.id FROM agent_session s JOIN family f ON s.parent = f.id
)
SELECT f.id FROM family f JOIN agent_session s ON s.id = f.id WHERE s.revoked_at IS NULL
"""
_END_SESSION = """
UPDATE agent_session SET revoked_at = ?, revoked_by = ? WHERE id = ? AND revoked_at IS NULL
"""
_REVOKE_GRANTED_INVITES = """
UPDATE agent_invite SET revoked_at = ?
WHERE grantor = ? AND used_at IS NULL AND revoked_at IS NULL
"""


class Grantor(Protocol):
    """The session that grants."""

    @property
    def id(self) -> str: ...

    @property
    def agent_id(self) -> str: ...

    @property
    def scopes(self) -> tuple[str, ...]: ...

    @property
    def kind(self) -> Literal["access", "context"]: ...


def authorize_grantor(tx: Tx, grantor: Grantor) -> int:
    """Return the latest end of everything that the session grants."""
    if grantor.kind != "access":
        raise Forbidden("a context token grants nothing; use the access token")
    require_scope(grantor, Scope.ADMIN_ACCESS)
    ((count,),) = tx.fetch_all(_COUNT_OPEN_INVITES, (grantor.id, tx.now))
    if count >= MAX_OPEN_INVITES:
        raise RateLimited(f"{count} invites of this session are open", retry_after=60.0)
    return live_session_end(tx, grantor.id)


def live_session_end(tx: Tx, session: str) -> int:
    """Return the end of a session if it is not refreshed again; Revoked if it has ended."""
    row = tx.fetch_one(_SELECT_END, (session,))
    end = None if row is None else row[0]
    if end is None or tx.now >= end:
        raise Revoked("the session that granted this has ended; ask for a new invite")
    return int(end)


def check_granted_agent(tx: Tx, agent: str, grantor: Grantor, is_known: bool) -> None:
    """Raise Forbidden unless the agent is new here, or was brought in by this session alone.

    `is_known` tells whether the gateway or its room know the agent, or there is mail for it.
    """
    if agent == grantor.agent_id:
        return
    grantors = {row[0] for row in tx.fetch_all(_SELECT_GRANTORS, (agent,))}
    if grantors == {grantor.id} or not (grantors or is_known):
        return
    raise Forbidden(f"{agent} is not an agent of this session; the operator may invite it")


def end_sessions(tx: Tx, sessions: Iterable[str], by: str) -> list[str]:
    """End live sessions with everything they granted; return the ids of all that ended."""
    ended: dict[str, None] = {}
    for session in sessions:
        ended |= dict.fromkeys(row[0] for row in tx.fetch_all(_SELECT_FAMILY, (session,)))
    for id in ended:
        tx.execute(_END_SESSION, (tx.now, by, id))
        tx.execute(_REVOKE_GRANTED_INVITES, (tx.now, id))
    return list(ended)
