"""Tasks in the journal. All changes of state go through `change_task`, which the table guards."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Any, Literal

import apsw
import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from gatepost.delivery.forward import ORIGINAL_SQL
from gatepost.errors import IdempotencyConflict, InvalidId, UnknownTask, WrongState
from gatepost.events import SKILL_DISTRIBUTION, TaskInfo, format_event_id, parse_event_id
from gatepost.events.reserved_names import qualify_sender
from gatepost.journal import transition_sql
from gatepost.journal.conditions import join_conditions, optional_value
from gatepost.journal.outbox_reads import UNREAD_SQL
from gatepost.journal.transaction import Tx
from gatepost.tasks.task_states import (
    AMENDMENTS,
    SHOWN_STATUS,
    TERMINAL_STATES,
    TRANSITIONS,
    TaskInput,
    TaskState,
    guard_of,
)

# Where a task is executed, as this gateway sees it: in a session, by a self-hosted agent that is
# connected here, or behind another gateway.
Executor = Literal["session", "agent", "remote"]

_DISTRIBUTION = f'"taskType":"{SKILL_DISTRIBUTION}"'.encode()

# The codes of ends that were not reported by an executor.
EXECUTOR_LOST = "executor_lost"
CANCELLED = "cancelled"
CONTRACT_MISMATCH = "contract_mismatch"
TERMINAL_ERROR = "terminal_error"
# Marks a failure that a gateway reports without news from the executor.
PRESUMED = "presumed"

_COLUMNS = (
    "id, agent, requester, requester_node, executor, executor_node, state, description, info,"
    " progress, note, eta_at, error_code, error, created_at, accepted_at, started_at, updated_at,"
    " ended_at, attempt, unknown_until, is_presumed, amended_at"
)
_INSERT = f"""
INSERT INTO task ({_COLUMNS}) VALUES ({", ".join("?" * 23)})
"""
_INSERT_PAYLOAD = """
INSERT INTO task_payload (id, request, request_ref, request_mark) VALUES (?, ?, ?, ?)
"""
_SELECT = f"SELECT {_COLUMNS} FROM task"
_SELECT_RESULT_FOR = """
SELECT 1 FROM task_payload p JOIN task t ON t.id = p.id
WHERE p.result_ref = ? AND t.requester_node = ? LIMIT 1
"""
# Whether a task refers to the blob `{digest}`.
USES_BLOB_SQL = """EXISTS (
    SELECT 1 FROM task_payload t WHERE t.request_ref = {digest} OR t.result_ref = {digest}
)"""
_SELECT_PAYLOAD = """
SELECT request, request_ref, request_mark, result, result_ref, mark FROM task_payload WHERE id = ?
"""
# The original request of an event that forwarded it, or that is a further attempt.
_SELECT_ORIGINAL = f"""
{ORIGINAL_SQL.format(event="?1")}
UNION ALL
SELECT task FROM task_attempt WHERE event_id = ?1
LIMIT 1
"""
# An agent that moves to and fro has its mail forwarded as often.
MAX_FORWARDS = 32
_SET_RESULT = "UPDATE task_payload SET result = ?, result_ref = ?, mark = ? WHERE id = ?"
_IS_TERMINAL = transition_sql.is_in_states(TERMINAL_STATES)
# A task that has ended may still have a session that is being ended, or a report of its end that
# the gateway which requested it has not read. That gateway may also have to ask for the end.
_PRUNE = f"""
SELECT id FROM task
WHERE ended_at < iif(requester_node IS NULL, ?1, min(?1, ?2)) AND {_IS_TERMINAL} AND NOT EXISTS (
    SELECT 1 FROM session s WHERE s.task = task.id AND s.state <> 'recycled'
) AND NOT EXISTS (
    {UNREAD_SQL.format(ref="task.id", node="task.requester_node")}
) ORDER BY ended_at LIMIT ?3
"""
_FORGET_TASK = (
    "DELETE FROM task_payload WHERE id = ?",
    "DELETE FROM task_token WHERE task = ?",
    "DELETE FROM session WHERE task = ?",
    "DELETE FROM task_attempt WHERE task = ?",
    "DELETE FROM task WHERE id = ?",
)
# Who requested a task: see `Task.source`. The index `task_waiting` has this expression.
_SOURCE = "coalesce(requester_node, 'agent:' || requester)"
_WAITS = f"executor = 'session' AND state = '{TaskState.PENDING}'"
_COUNT_WAITING = f"SELECT count(*) FROM task WHERE {_WAITS}"
# One seek of the index for each source.
_SELECT_SOURCES = f"""
WITH RECURSIVE found (source) AS (
    SELECT min({_SOURCE}) FROM task WHERE {_WAITS}
    UNION ALL
    SELECT (SELECT min({_SOURCE}) FROM task WHERE {_WAITS} AND {_SOURCE} > found.source)
    FROM found WHERE found.source IS NOT NULL
)
SELECT source FROM found WHERE source IS NOT NULL
"""
_COUNT_SESSIONS = f"""
SELECT {_SOURCE}, count(*) FROM session s JOIN task ON task.id = s.task
WHERE s.ended_at IS NULL GROUP BY 1
"""
_SELECT_UNCLAIMED = f"""
{_SELECT} WHERE {_WAITS} AND {_SOURCE} = ?
AND NOT EXISTS (SELECT 1 FROM session s WHERE s.task = task.id AND s.state <> 'recycled')
ORDER BY id LIMIT ?
"""
_SELECT_OPEN_OF = """
SELECT id FROM task WHERE executor IN ('session', 'agent') AND ended_at IS NULL
AND requester_node = ? LIMIT ?
"""
_STATES = {state.value: state for state in TaskState}
_TARGETS = {input: transition_sql.target_of(TRANSITIONS, input) for input in TaskInput}
# The time that an input records in addition to `updated_at`.
_MOMENTS = {TaskInput.ACCEPT: "accepted_at", TaskInput.START: "started_at"}
# What an amendment sets, unless it gives a value.
_AMENDED = {"is_presumed": 0, "error_code": None, "error": None}
_BEGINS = frozenset({TaskInput.ACCEPT, TaskInput.START})


class Task(Struct):
    """One task, without its request and result. Times are epoch milliseconds.

    `requester_node` and `executor_node` are None for this gateway. `info` is the public part of
    the task's events, in JSON. A task that is unknown waits for its executor's word until
    `unknown_until`. `is_presumed`: this gateway presumed the end, and the executor's word would
    amend it; `amended_at` is when one did.
    """

    id: str
    agent: str
    requester: str
    requester_node: str | None = None
    executor: Executor = "session"
    executor_node: str | None = None
    state: TaskState = TaskState.PENDING
    description: str = ""
    info: bytes = b"{}"
    progress: float | None = None
    note: str | None = None
    eta_at: int | None = None
    error_code: str | None = None
    error: str | None = None
    created_at: int = 0
    accepted_at: int | None = None
    started_at: int | None = None
    updated_at: int = 0
    ended_at: int | None = None
    attempt: int = 1
    unknown_until: int | None = None
    is_presumed: bool = False
    amended_at: int | None = None

    @property
    def source(self) -> str:
        """Who requested it: the id of another gateway, or `agent:ID` for an agent of this one."""
        return self.requester_node or f"agent:{self.requester}"

    @property
    def status(self) -> str:
        return SHOWN_STATUS[self.state]

    @property
    def requester_name(self) -> str:
        """The requester as people and policies here see it."""
        node = self.requester_node
        return self.requester if node is None else qualify_sender(self.requester, node)

    @property
    def is_distribution(self) -> bool:
        """Whether it distributes a skill. Nearly none does, and every task that ends is asked."""
        return _DISTRIBUTION in self.info

    @property
    def request_info(self) -> TaskInfo:
        """The public part of another request event for it, which keeps the requester's id."""
        info = msgspec.json.decode(self.info, type=TaskInfo)
        return replace(info, root_id=info.root_id or self.id)

    @property
    def has_ended(self) -> bool:
        return self.state in TERMINAL_STATES


class TaskPayload(Struct, frozen=True):
    """Request and result of a task: inline JSON, or the digest of a blob, and their marks."""

    request: bytes | None = None
    request_ref: str | None = None
    request_mark: bytes | None = None
    result: bytes | None = None
    result_ref: str | None = None
    mark: bytes | None = None


class TaskFilter(Struct, frozen=True, kw_only=True):
    """`session` is the task of a session and its agent: it sees that, and the agent's requests."""

    state: TaskState | None = None
    agent: str | None = None
    session: tuple[str, str] | None = None
    after: str | None = None


def own_task_id(text: str) -> str:
    """The id under which this gateway has a task of another hub: always the same for its id.

    Ids of this gateway are UUIDs of version 7, and stay as they are.
    """
    with suppress(InvalidId):
        return format_event_id(parse_event_id(text))
    digits = sha256(text.lower().encode()).hexdigest()
    return format_event_id(bytes.fromhex(f"{'0' * 12}7{digits[:3]}8{digits[3:18]}"))


def failure_class_of(code: str) -> str:
    """The public class of a failure; its code is for the requester alone."""
    return code if code in (CANCELLED, CONTRACT_MISMATCH) else TERMINAL_ERROR


def add_task(tx: Tx, task: Task, payload: TaskPayload) -> None:
    """Record a new task. Its id must be new."""
    add_tasks(tx, [(task, payload)])


def add_tasks(tx: Tx, new: Iterable[tuple[Task, TaskPayload]]) -> None:
    """Record new tasks. IdempotencyConflict if the id of one is not new."""
    rows, payloads = [], []
    for task, payload in new:
        id = parse_event_id(task.id)
        rows.append((id, *astuple(task)[1:]))
        payloads.append((id, payload.request, payload.request_ref, payload.request_mark))
    try:
        tx.execute_many(_INSERT, rows)
    except apsw.ConstraintError:
        raise IdempotencyConflict("the id of a task was used before") from None
    tx.execute_many(_INSERT_PAYLOAD, payloads)


def find_task(tx: Tx, id: str) -> Task | None:
    rows = tx.fetch_all(f"{_SELECT} WHERE id = ?", (parse_event_id(id),))
    return _task_from_row(rows[0], id) if rows else None


def find_requested_task(tx: Tx, request: str) -> Task | None:
    """The task of a request event, also if that is another attempt, or was handed on from here."""
    task = find_task(tx, request)
    for _ in range(MAX_FORWARDS):
        if task is not None:
            break
        row = tx.fetch_one(_SELECT_ORIGINAL, (parse_event_id(request),))
        if row is None:
            break
        request = format_event_id(row[0])
        task = find_task(tx, request)
    return task


def has_task(tx: Tx, id: bytes) -> bool:
    return tx.fetch_one("SELECT 1 FROM task WHERE id = ?", (id,)) is not None


def is_result_for(tx: Tx, digest: str, node: str) -> bool:
    """Whether a blob is the result of a task that was requested from another gateway."""
    return tx.fetch_one(_SELECT_RESULT_FOR, (digest, node)) is not None


def load_task(tx: Tx, id: str) -> Task:
    task = find_task(tx, id)
    if task is None:
        raise UnknownTask(f"this gateway knows no task {id}; `gatepost task list` shows them")
    return task


def load_payload(tx: Tx, id: str) -> TaskPayload:
    row = tx.fetch_one(_SELECT_PAYLOAD, (parse_event_id(id),))
    return TaskPayload() if row is None else TaskPayload(*row)


def list_tasks(tx: Tx, wanted: TaskFilter, limit: int) -> list[Task]:
    """The newest tasks that match, newest first; `after` is the last one of the page before."""
    after = None if wanted.after is None else parse_event_id(wanted.after)
    own: list[object] | None = None
    if wanted.session is not None:
        own = [parse_event_id(wanted.session[0]), wanted.session[1]]
    conditions, values = join_conditions(
        [
            ("state = ?", optional_value(wanted.state)),
            ("agent = ?", optional_value(wanted.agent)),
            ("(id = ? OR (requester = ? AND requester_node IS NULL))", own),
            ("id < ?", optional_value(after)),
        ]
    )
    sql = f"{_SELECT} WHERE 1{conditions} ORDER BY id DESC LIMIT ?"
    return [_task_from_row(row) for row in tx.fetch_all(sql, (*values, limit))]


def find_late_tasks(tx: Tx, now: int, limit: int) -> list[Task]:
    """Open tasks whose ETA is over, the latest first."""
    sql = f"{_SELECT} WHERE ended_at IS NULL AND eta_at < ? ORDER BY eta_at LIMIT ?"
    return [_task_from_row(row) for row in tx.fetch_all(sql, (now, limit))]


def unclaimed_tasks(tx: Tx, source: str, limit: int) -> list[Task]:
    """The tasks of a source that wait for a session and are not claimed for one, oldest first."""
    return [_task_from_row(row) for row in tx.fetch_all(_SELECT_UNCLAIMED, (source, limit))]


def list_waiting_sources(tx: Tx) -> list[str]:
    """The sources of the tasks that wait for a session."""
    return [row[0] for row in tx.fetch_all(_SELECT_SOURCES)]


def count_sessions_by_source(tx: Tx) -> dict[str, int]:
    """Source → its sessions that run or are claimed."""
    return dict(tx.fetch_all(_COUNT_SESSIONS))


def count_waiting_tasks(tx: Tx, source: str | None = None) -> int:
    """How many tasks are pending for a session, of one source or of all."""
    if source is None:
        ((count,),) = tx.fetch_all(_COUNT_WAITING)
    else:
        ((count,),) = tx.fetch_all(f"{_COUNT_WAITING} AND {_SOURCE} = ?", (source,))
    return int(count)


def open_tasks_of(tx: Tx, node: str, limit: int) -> list[str]:
    """Tasks that another gateway requested, and that are executed here."""
    return [format_event_id(id) for (id,) in tx.fetch_all(_SELECT_OPEN_OF, (node, limit))]


def count_open_tasks(tx: Tx, executor: Executor) -> int:
    sql = "SELECT count(*) FROM task WHERE executor = ? AND ended_at IS NULL"
    ((count,),) = tx.fetch_all(sql, (executor,))
    return int(count)


def change_task(tx: Tx, id: str, input: TaskInput, values: Mapping[str, Any] = {}) -> Task:
    """Apply an input, and set columns beside the state. WrongState if the table does not permit it.

    `values` maps columns to their new values.
    """
    task = try_inputs(tx, id, (input,), values)
    if task is None:
        task = load_task(tx, id)
        raise WrongState(f"task {id} is {task.state}, so `{input}` is not possible")
    return task


def try_inputs(
    tx: Tx,
    id: str,
    inputs: tuple[TaskInput, ...],
    values: Mapping[str, Any] = {},
    agent: str | None = None,
) -> Task | None:
    """Apply one input after the other in one statement; None if that is not possible.

    With `agent`, the task must be one that this agent executes here.
    """
    target = _TARGETS[inputs[-1]]
    changes = {"state": target.value, "updated_at": tx.now, **values}
    for input in inputs:
        if (moment := _MOMENTS.get(input)) is not None:
            changes.setdefault(moment, tx.now)
    if target in TERMINAL_STATES:
        changes["ended_at"] = tx.now
        if inputs[-1] in AMENDMENTS:
            changes = {**_AMENDED, "amended_at": tx.now, **changes}
    elif inputs[-1] in _BEGINS or (values and inputs[-1] is TaskInput.UPDATE):
        # An update without any value is a sign of life, and no report.
        changes["reported_at"] = tx.now
    sql = _update_sql(inputs, tuple(changes), agent is not None)
    named = () if agent is None else (agent,)
    row = tx.fetch_one(sql, (*changes.values(), parse_event_id(id), *named))
    return None if row is None else _task_from_row(row, id)


def complete_task(
    tx: Tx, id: str, result: TaskPayload, input: TaskInput = TaskInput.COMPLETE
) -> tuple[Task, bool]:
    """Complete a task; a repeat with the same result changes nothing. Returns whether it is new.

    `result.mark` is the fingerprint of the plain result. IdempotencyConflict if the task was
    completed with another one.
    """
    try:
        task = change_task(tx, id, input, {"progress": 1.0})
    except WrongState:
        task = load_task(tx, id)
        if task.state is not TaskState.COMPLETED:
            raise
        if load_payload(tx, id).mark != result.mark:
            raise IdempotencyConflict(f"task {id} was completed with another result") from None
        return task, False
    marks = (result.result, result.result_ref, result.mark, parse_event_id(id))
    tx.execute(_SET_RESULT, marks)
    return task, True


def prune_tasks(tx: Tx, ended_before: int, asked_before: int, limit: int) -> int:
    """Forget tasks that ended long ago, with their requests and results; returns how many.

    Tasks that other gateways requested have to have ended before `asked_before` too: their
    requesters may still ask for the others.
    """
    tx.execute("DELETE FROM early_cancel WHERE at < ?", (ended_before,))
    ids = tx.fetch_all(_PRUNE, (ended_before, asked_before, limit))
    for sql in _FORGET_TASK:
        tx.execute_many(sql, ids)
    return len(ids)


def _task_from_row(row: tuple[Any, ...], known_id: str | None = None) -> Task:
    """The columns are the fields of a task, in their order."""
    id, agent, requester, requester_node, executor, executor_node, state, *rest = row
    *rest, is_presumed, amended_at = rest
    known = (agent, requester, requester_node, executor, executor_node)
    tail = (*rest, bool(is_presumed), amended_at)
    return Task(known_id or format_event_id(id), *known, _STATES[state], *tail)


@lru_cache
def _update_sql(inputs: tuple[TaskInput, ...], columns: tuple[str, ...], is_for_agent: bool) -> str:
    """The guarded UPDATE of inputs that sets these columns."""
    for first, second in pairwise(inputs):
        assert (_TARGETS[first], second) in TRANSITIONS
    assignments = ", ".join(f"{name} = ?" for name in columns)
    guard = guard_of(inputs[0]) + (" AND agent = ? AND executor = 'agent'" if is_for_agent else "")
    return f"UPDATE task SET {assignments} WHERE id = ? AND {guard} RETURNING {_COLUMNS}"
