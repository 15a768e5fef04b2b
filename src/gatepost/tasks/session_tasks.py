"""Tasks that sessions execute: claimed, launched, noted and ended, one transaction at a time.

A task is claimed before there is a place for its session, so that nothing has to be written between
the end of one session and the launch of the next. A claimed task is still pending, and has a token
that was not handed out yet. It is accepted and started in one step, once its session runs.
"""

from functools import partial

import msgspec
from msgspec import Struct

from gatepost.errors import ContractMismatch, GatepostError, LaunchFailed, UnknownAgent
from gatepost.events import TaskInfo, format_event_id
from gatepost.journal.transaction import Tx
from gatepost.tasks import sessions, task_table
from gatepost.tasks.agent_definition import AgentDefinition
from gatepost.tasks.executed_tasks import ExecutedTasks
from gatepost.tasks.session_runtime import SessionExit, SessionHandle
from gatepost.tasks.sessions import session_name
from gatepost.tasks.task_changes import HubParts
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_sweeps import end_each
from gatepost.tasks.task_table import Task, TaskPayload
from gatepost.tasks.task_tokens import (
    IssuedTaskToken,
    TaskToken,
    issue_task_token,
    require_live_token,
    revoke_task_tokens,
    start_task_tokens,
)

_SELECT_STRAY = """
SELECT id FROM task WHERE executor = 'session' AND ended_at IS NULL
AND state IN ('accepted', 'running')
AND NOT EXISTS (SELECT 1 FROM session s WHERE s.task = task.id AND s.state <> 'recycled') LIMIT ?
"""
_REVOKE_STRAY = """
UPDATE task_token SET revoked_at = ? WHERE revoked_at IS NULL
AND NOT EXISTS (SELECT 1 FROM session s WHERE s.task = task_token.task AND s.ended_at IS NULL)
AND NOT EXISTS (
    SELECT 1 FROM task t
    WHERE t.id = task_token.task AND t.executor = 'agent' AND t.ended_at IS NULL
)
"""


class ClaimedTask(Struct, frozen=True):
    """A task that a session is to be launched for, and the token for that session."""

    task: Task
    payload: TaskPayload
    token: IssuedTaskToken
    definition: AgentDefinition
    eta_secs: int | None = None

    @property
    def session_name(self) -> str:
        return session_name(self.task.id, self.task.attempt)


class SessionTasks:
    """Runs in the writer's thread, except for `is_current`."""

    def __init__(self, parts: HubParts, executed: ExecutedTasks) -> None:
        self._parts = parts
        self._executed = executed

    @property
    def _token_ttl(self) -> int:
        return int(self._parts.settings.token_ttl_secs * 1000)

    # -- claims

    def claim_tasks(self, tx: Tx, capacity: int) -> list[ClaimedTask]:
        """Claim tasks that wait for a session, each with a token for its session."""
        claimed: list[ClaimedTask] = []
        for task in self._parts.queue.next_tasks(tx, capacity):
            info = msgspec.json.decode(task.info, type=TaskInfo)
            definition = self._parts.registry.agents.get(task.agent)
            if definition is None:
                self._executed.refuse_task(
                    tx, task, UnknownAgent.code, "its definition was removed"
                )
            else:
                eta = self._parts.find_eta(task.agent, info)
                claimed.append(self._claim_task(tx, task, definition, eta))
        return claimed

    def _claim_task(
        self, tx: Tx, task: Task, definition: AgentDefinition, eta: int | None
    ) -> ClaimedTask:
        clock, capabilities = self._parts.core.node.clock, definition.capabilities
        token = issue_task_token(tx, clock, task.agent, task.id, capabilities, self._token_ttl)
        claimed = ClaimedTask(task, task_table.load_payload(tx, task.id), token, definition, eta)
        runtime = definition.runtime_name
        sessions.claim_session(tx, claimed.session_name, task.id, task.agent, runtime)
        return claimed

    def is_current(self, claimed: ClaimedTask, now: int) -> bool:
        """Whether a session can be launched as it was claimed.

        Since the claim, the definition of its agent may have changed, and its token may have aged.
        """
        definition = self._parts.registry.agents.get(claimed.task.agent)
        return claimed.definition == definition and 2 * (now - claimed.token.token.issued) < (
            self._token_ttl
        )

    def release_claim(self, tx: Tx, task_id: str, name: str) -> None:
        """Give up a claim whose session was never launched: its task waits as before."""
        if sessions.forget_claim(tx, name):
            revoke_task_tokens(tx, task_id)

    # -- sessions

    def fail_launch(self, tx: Tx, task_id: str, name: str, error: GatepostError) -> None:
        self.record_end(tx, task_id, name, SessionExit("lost", detail=error.message))
        task = task_table.load_task(tx, task_id)
        if sessions.recycle_session(tx, name) and not task.has_ended:
            is_mismatch = isinstance(error, ContractMismatch)
            code = error.code if is_mismatch else LaunchFailed.code
            self._executed.refuse_task(tx, task, code, error.message)

    def note_started(self, tx: Tx, claimed: ClaimedTask, handle: SessionHandle) -> bool:
        """Note that a session runs; returns whether its task has ended meanwhile."""
        sessions.note_running(tx, claimed.session_name, handle)
        has_begun = self._begin_task(tx, claimed.task.id, claimed.eta_secs)
        return not has_begun and task_table.load_task(tx, claimed.task.id).has_ended

    def admit_report(self, tx: Tx, token: TaskToken) -> None:
        """Begin the task of a session that reports, even if its start was not recorded yet."""
        require_live_token(tx, token)
        task = task_table.load_task(tx, token.task_id)
        if task.state is TaskState.PENDING:
            info = msgspec.json.decode(task.info, type=TaskInfo)
            self._begin_task(tx, task.id, self._parts.find_eta(task.agent, info))

    def _begin_task(self, tx: Tx, id: str, eta: int | None) -> bool:
        eta_at = None if eta is None else tx.now + eta * 1000
        if self._executed.try_begin(tx, id, None, eta_at) is None:
            return False
        start_task_tokens(tx, id, self._token_ttl)
        return True

    def record_end(self, tx: Tx, task_id: str, name: str, ended: SessionExit) -> None:
        """Record that a session is gone, which revokes its token. Its result is not read here."""
        if sessions.end_session(tx, name, ended.code, ended.reason):
            revoke_task_tokens(tx, task_id)

    def settle_task(
        self,
        tx: Tx,
        task_id: str,
        name: str,
        ended: SessionExit,
        result: TaskPayload | GatepostError | None,
        detail: str,
    ) -> None:
        """End the task of a judged session, unless the session reported the end itself.

        A task whose start could not be noted begins now.
        """
        self.record_end(tx, task_id, name, ended)
        if not sessions.recycle_session(tx, name):
            return
        task = task_table.find_task(tx, task_id)
        if task is None or task.has_ended:
            return
        if task.state is TaskState.PENDING:
            self._begin_task(tx, task_id, None)
        executed = self._executed
        if isinstance(result, TaskPayload):
            executed.complete_task(tx, task_id, result)
        elif isinstance(result, GatepostError):
            executed.fail_task(tx, task_id, result.code, result.message)
        elif ended.is_success:
            executed.fail_task(tx, task_id, "no_result", "its session ended without a result")
        elif ended.reason == "time_limit":
            executed.fail_task(tx, task_id, "time_limit", detail)
        elif ended.is_lost:
            executed.lose_executor(tx, task_id, detail)
        else:
            executed.fail_task(tx, task_id, "session_failed", detail)

    def stop_task(self, tx: Tx, task_id: str, name: str, why: str) -> None:
        """End a task whose session has ended, and whose end cannot be settled or reported."""
        self.record_end(tx, task_id, name, SessionExit("lost"))
        sessions.recycle_session(tx, name)
        task = task_table.find_task(tx, task_id)
        if task is not None and not task.has_ended:
            self._executed.stop_task(tx, task_id, why)

    # -- the sweep

    def revoke_stray_tokens(self, tx: Tx) -> None:
        """Revoke valid tokens without a session, which earlier errors may have left."""
        tx.execute(_REVOKE_STRAY, (tx.now,))

    def end_stray_tasks(self, tx: Tx, limit: int = 100) -> list[str]:
        """End tasks without a session, which earlier errors may have left; returns the tasks."""
        why = "no session works on it any more"
        found = [format_event_id(id) for (id,) in tx.fetch_all(_SELECT_STRAY, (limit,))]
        lose = partial(self._executed.lose_executor, error=why)
        return end_each(tx, found, lose, *self._executed.ways_to_fail(why))
