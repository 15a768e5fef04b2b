"""Tokens of sessions: each is for one agent and one task, and ends with the task.

The token of an imported task is a random UUID, which is its bearer value. Its id here is the begin
of its hash, so that lists of tokens do not show it. No session of this gateway has it: whoever
worked on the task in its former hub may go on until the token expires.
"""

import re
from hashlib import sha256
from hmac import compare_digest

import msgspec
from msgspec import Struct

from gatepost.access.tokens import TokenKind, matches_hash, mint_token, parse_token
from gatepost.clock import Clock
from gatepost.errors import ExpiredToken, InvalidToken, Revoked, WrongState
from gatepost.events import format_event_id, parse_event_id
from gatepost.journal.transaction import Tx
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import find_task, load_task
from gatepost.wire.agent_tokens import SecretValue

# A UUID of version 4 has 122 random bits; others can be guessed.
_RANDOM_UUID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE
)
_ID_DIGITS = 16
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
_START = """
UPDATE task_token SET issued_at = ?, expires_at = ? WHERE task = ? AND revoked_at IS NULL
"""
_SELECT_ID = """
SELECT id FROM task_token WHERE task = ? ORDER BY revoked_at IS NOT NULL, issued_at DESC LIMIT 1
"""
_REVOKE = "UPDATE task_token SET revoked_at = ? WHERE task = ? AND revoked_at IS NULL"
_IS_LIVE = "SELECT 1 FROM task_token WHERE id = ? AND revoked_at IS NULL"
_PRUNE = "DELETE FROM task_token WHERE expires_at <= ?"
_SELECT_SESSION = "SELECT 1 FROM session WHERE task = ? AND ended_at IS NULL"
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


def is_imported_bearer(bearer: str) -> bool:
    """True for the bearer value of a token that can come from another hub."""
    return _RANDOM_UUID.fullmatch(bearer) is not None


def imported_token_id(bearer: str) -> str:
    return _hash_bearer(bearer).hex()[:_ID_DIGITS]


def import_task_token(tx: Tx, bearer: str, token: TaskToken) -> bool:
    """Take a token of another hub's task, until it expires; returns whether it is new."""
    encoded = msgspec.json.encode(token.capabilities).decode()
    times = (token.issued, token.expiry)
    row = (token.token_id, token.agent_name, parse_event_id(token.task_id), encoded, *times)
    tx.execute(f"{_INSERT} ON CONFLICT DO NOTHING", (*row, _hash_bearer(bearer)))
    return tx.changed_rows() > 0


def _hash_bearer(bearer: str) -> bytes:
    return sha256(bearer.lower().encode()).digest()


def authenticate_task_token(tx: Tx, bearer: str) -> TaskToken:
    """Return the token of a bearer value. Reads only."""
    is_imported = is_imported_bearer(bearer)
    if is_imported:
        row = tx.fetch_one(_SELECT, (imported_token_id(bearer),))
        is_known = row is not None and compare_digest(row[-1], _hash_bearer(bearer))
    else:
        token = parse_token(bearer, TokenKind.TASK)
        row = tx.fetch_one(_SELECT, (token.id,))
        is_known = matches_hash(token, None if row is None else row[-1])
    if row is None or not is_known:
        raise InvalidToken("this gateway does not know this token; a task's session gets one")
    found, revoked_at = _token_from_row(row[:-2]), row[-2]
    # No session ends with the task of an imported token, so the sweep finds it later.
    if revoked_at is not None or (is_imported and load_task(tx, found.task_id).has_ended):
        raise Revoked(_why_revoked(tx, found))
    if tx.now >= found.expiry:
        raise ExpiredToken(
            "this token has expired, and only a live token can be renewed"
            " (POST /api/hub/tokens/renew); without a token, a session still ends its task if it"
            " writes the result to GATEPOST_RESULT_FILE and exits with 0"
        )
    return found


def require_live_token(tx: Tx, token: TaskToken) -> None:
    """Revoked if the token of an authenticated caller died before this transaction."""
    if not tx.fetch_one(_IS_LIVE, (token.token_id,)):
        raise Revoked(_why_revoked(tx, token))


def _why_revoked(tx: Tx, token: TaskToken) -> str:
    task = find_task(tx, token.task_id)
    if task is None or task.has_ended:
        return "the task of this token has ended"
    if find_token_id(tx, token.task_id) != token.token_id:
        return "another session works on the task of this token now"
    is_of_session = task.executor == "session"
    if is_of_session and not tx.fetch_one(_SELECT_SESSION, (parse_event_id(token.task_id),)):
        return "the session of this token has ended"
    return (
        "the operator revoked this token; its task goes on, and its session can still write the"
        " result to GATEPOST_RESULT_FILE and exit with 0"
    )


def renew_task_token(tx: Tx, token: TaskToken, ttl: int) -> TaskToken:
    """Let a token last `ttl` milliseconds from now, if its task is accepted or running."""
    task = load_task(tx, token.task_id)
    if task.state not in (TaskState.ACCEPTED, TaskState.RUNNING):
        raise WrongState(f"task {task.id} is {task.state}, so its token cannot be renewed")
    expiry = tx.now + ttl
    tx.execute(_RENEW, (expiry, token.token_id))
    if not tx.changed_rows():
        raise Revoked("the session of this token has ended")
    return msgspec.structs.replace(token, expiry=expiry)


def start_task_tokens(tx: Tx, task: str, ttl: int) -> None:
    """Count the time of a task's token from now, as its session has it now: `ttl` milliseconds."""
    tx.execute(_START, (tx.now, tx.now + ttl, parse_event_id(task)))


def find_token_id(tx: Tx, task: str) -> str | None:
    """The id of a task's latest token, also if it is dead; None once it is forgotten."""
    row = tx.fetch_one(_SELECT_ID, (parse_event_id(task),))
    return None if row is None else str(row[0])


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
