"""Sessions in the journal: which task each is for, its state, and how to find it again.

Its states are in session_states.py. A session is open until it is `recycled`.
"""

import msgspec
from msgspec import Struct

from gatepost.events import format_event_id, parse_event_id
from gatepost.journal.conditions import join_conditions, optional_value
from gatepost.journal.transaction import Row, Tx
from gatepost.tasks.session_runtime import SessionHandle
from gatepost.tasks.session_states import (
    RELEASABLE,
    SessionInput,
    SessionState,
    update_session,
)

_COLUMNS = "name, task, agent, runtime, state, handle, exit_code, reason, created_at, ended_at"
_INSERT = (
    "INSERT INTO session (name, task, agent, runtime, state, created_at) VALUES (?, ?, ?, ?, ?, ?)"
)
_SELECT = f"SELECT {_COLUMNS} FROM session"
# A literal, so that the index of open sessions is used.
_IS_OPEN = "state <> 'recycled'"
_FORGET_CLAIM = f"DELETE FROM session WHERE name = ? AND state = '{RELEASABLE}'"
_RUN = update_session(SessionInput.RUN, ", handle = ?")
_END = update_session(SessionInput.END, ", exit_code = ?, reason = ?, ended_at = ?")
_RECYCLE = update_session(SessionInput.RECYCLE)
_decode_handle = msgspec.json.Decoder(SessionHandle).decode


class Session(Struct, kw_only=True):
    """One session. Without a `handle` it was not started, or its start was not recorded."""

    name: str
    task_id: str
    agent: str
    runtime: str
    state: SessionState
    handle: SessionHandle | None = None
    exit_code: int | None = None
    reason: str | None = None
    created_at: int = 0
    ended_at: int | None = None


def session_name(task_id: str, attempt: int = 1) -> str:
    """The name of a task's session: safe as the name of a folder, a container and a host."""
    again = "" if attempt == 1 else f"r{attempt}"
    return f"s{task_id.replace('-', '')}{again}"


def claim_session(tx: Tx, name: str, task_id: str, agent: str, runtime: str) -> None:
    row = (name, parse_event_id(task_id), agent, runtime, SessionState.CLAIMED, tx.now)
    tx.execute(_INSERT, row)


def forget_claim(tx: Tx, name: str) -> bool:
    """Forget a session that was claimed and never launched; returns whether there was one."""
    tx.execute(_FORGET_CLAIM, (name,))
    return tx.changed_rows() > 0


def find_session(tx: Tx, task_id: str) -> Session | None:
    """The latest session of a task; None if it has none. A claim does not count as a session."""
    sql = f"""
    {_SELECT} WHERE task = ? AND state != ?
    ORDER BY created_at DESC, length(name) DESC, name DESC LIMIT 1
    """
    row = tx.fetch_one(sql, (parse_event_id(task_id), SessionState.CLAIMED))
    return None if row is None else _session_from_row(row)


def has_open_session(tx: Tx, task_id: str) -> bool:
    """Whether a session of a task is to be launched, runs, or has a result to be judged."""
    sql = f"SELECT 1 FROM session WHERE task = ? AND {_IS_OPEN}"
    return tx.fetch_one(sql, (parse_event_id(task_id),)) is not None


def open_sessions(tx: Tx) -> list[Session]:
    rows = tx.fetch_all(f"{_SELECT} WHERE {_IS_OPEN} ORDER BY created_at, name")
    return [_session_from_row(row) for row in rows]


def list_sessions(tx: Tx, limit: int, task_id: str | None = None) -> list[Session]:
    """The newest sessions, of one task or of all, newest first. A claim is not a session yet."""
    task = None if task_id is None else parse_event_id(task_id)
    conditions, values = join_conditions([("task = ?", optional_value(task))])
    sql = f"{_SELECT} WHERE state != ?{conditions} ORDER BY created_at DESC, name DESC LIMIT ?"
    rows = tx.fetch_all(sql, (SessionState.CLAIMED, *values, limit))
    return [_session_from_row(row) for row in rows]


def note_running(tx: Tx, name: str, handle: SessionHandle) -> None:
    """Note how to find a session again, now that its command runs."""
    tx.execute(_RUN, (msgspec.json.encode(handle), name))


def end_session(tx: Tx, name: str, exit_code: int | None, reason: str) -> bool:
    """Note that the processes of a session are gone. False if that was noted before."""
    tx.execute(_END, (exit_code, reason, tx.now, name))
    return tx.changed_rows() > 0


def recycle_session(tx: Tx, name: str) -> bool:
    """Mark an ended session as `recycled`: only its log is left. False if it was marked before."""
    tx.execute(_RECYCLE, (name,))
    return tx.changed_rows() > 0


def _session_from_row(row: Row) -> Session:
    name, task, agent, runtime, state, handle, exit_code, reason, created_at, ended_at = row
    return Session(
        name=name,
        task_id=format_event_id(task),
        agent=agent,
        runtime=runtime,
        state=SessionState(state),
        handle=None if handle is None else _decode_handle(handle),
        exit_code=exit_code,
        reason=reason,
        created_at=created_at,
        ended_at=ended_at,
    )
