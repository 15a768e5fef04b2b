"""Tokens of sessions: each is for one agent and one task, and ends with the task."""

import msgspec
from msgspec import Struct

from gatepost.access.tokens import TokenKind, matches_hash, mint_token, parse_token
from gatepost.agent_tokens import SecretValue
from gatepost.clock import Clock
from gatepost.errors import ExpiredToken, InvalidToken, Revoked, WrongState
from gatepost.events import format_event_id, parse_event_id
from gatepost.hub.task_states import TaskState
from gatepost.hub.tasks import load_task
from gatepost.journal.transaction import Tx

_COLUMNS = "id, agent, task, capabilities, issued_at, expires_at"
_INSERT = f"""
INSERT INTO task_token ({_COLUMNS}, secret_hash) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_SELECT = f"SELECT {_COLUMNS}, revoked_at, secret_hash FROM task_token WHERE id = ?"
_SELECT_LIVE = f"""
SELECT {_COLUMNS} FROM task_token WHERE revoked_at IS NULL AND expires_at > ?
ORDER BY issued_at, id
"""
_RENEW = "UPDATE task_token SET expires_at = ? WHERE id = ? AND revoked_at IS NULL"
_EXTEND = "UPDATE task_token SET expires_at = ? WHERE task = ? AND revoked_at IS NULL"
_REVOKE = "UPDATE task_token SET revoked_at = ? WHERE task = ? AND revoked_at IS NULL"
_PRUNE = "DELETE FROM task_token WHERE expires_at <= ?"
_decode_capabilities = msgspec.json.Decoder(tuple[str, ...]).decode


class TaskToken(Struct, frozen=True):
    """A token without its secret. Times are epoch milliseconds."""

    token_id: str
    agent_name: str
    task_id: str
    capabilities: tuple[str, ...]
    issued: int
    expiry: int


class IssuedTaskToken(SecretValue, frozen=True):
    """A new token with its secret, which is shown this once."""

    text: str
    token: TaskToken


def issue_task_token(
    tx: Tx, clock: Clock, agent: str, task: str, capabilities: tuple[str, ...], ttl: int
) -> IssuedTaskToken:
    """Issue a token for `ttl` milliseconds, and forget the expired ones."""
    tx.execute(_PRUNE, (tx.now,))
    bearer = mint_token(clock, TokenKind.TASK)
    token = TaskToken(bearer.id, agent, task, capabilities, tx.now, tx.now + ttl)
    encoded = msgspec.json.encode(capabilities).decode()
    row = (bearer.id, agent, parse_event_id(task), encoded, token.issued, token.expiry)
    tx.execute(_INSERT, (*row, bearer.hash))
    return IssuedTaskToken(bearer.text, token)


def authenticate_task_token(tx: Tx, bearer: str) -> TaskToken:
    """Return the token of a bearer value. Reads only."""
    token = parse_token(bearer, TokenKind.TASK)
    row = tx.fetch_one(_SELECT, (token.id,))
    if not matches_hash(token, None if row is None else row[-1]) or row is None:
        raise InvalidToken("this gateway does not know this token; a task's session gets one")
    found, revoked_at = _token_from_row(row[:-2]), row[-2]
    if revoked_at is not None:
        raise Revoked("the task of this token has ended")
    if tx.now >= found.expiry:
        raise ExpiredToken("this token has expired; renew it while its task runs")
    return found


def renew_task_token(tx: Tx, token: TaskToken, ttl: int) -> TaskToken:
    """Let a token last `ttl` milliseconds from now, if its task is accepted or running."""
    task = load_task(tx, token.task_id)
    if task.state not in (TaskState.ACCEPTED, TaskState.RUNNING):
        raise WrongState(f"task {task.id} is {task.state}, so its token cannot be renewed")
    expiry = tx.now + ttl
    tx.execute(_RENEW, (expiry, token.token_id))
    return msgspec.structs.replace(token, expiry=expiry)


def extend_task_tokens(tx: Tx, task: str, ttl: int) -> None:
    """Let the token of a task last `ttl` milliseconds from now."""
    tx.execute(_EXTEND, (tx.now + ttl, parse_event_id(task)))


def revoke_task_tokens(tx: Tx, task: str) -> None:
    tx.execute(_REVOKE, (tx.now, parse_event_id(task)))


def revoke_token(tx: Tx, token_id: str) -> int:
    """Revoke one token; returns how many were revoked."""
    sql = "UPDATE task_token SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
    tx.execute(sql, (tx.now, token_id))
    return tx.changed_rows()


def list_task_tokens(tx: Tx) -> list[TaskToken]:
    """The tokens that are neither expired nor revoked, oldest first."""
    return [_token_from_row(row) for row in tx.fetch_all(_SELECT_LIVE, (tx.now,))]


def _token_from_row(row: tuple[object, ...]) -> TaskToken:
    id, agent, task, capabilities, issued, expiry = row
    decoded = _decode_capabilities(str(capabilities))
    return TaskToken(str(id), str(agent), format_event_id(task), decoded, issued, expiry)  # type: ignore[arg-type]
