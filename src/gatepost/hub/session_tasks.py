"""Tasks that sessions execute: claimed, launched, noted and ended, one transaction at a time.

A task is claimed before there is a place for its session, so that nothing has to be written between
the end of one session and the launch of the next. A claimed task is still pending, and has a token
that nobody knows yet. It is accepted and started in one step, once its session runs.
"""

import msgspec
from msgspec import Struct

from gatepost.capabilities.publication import DISTRIBUTION
from gatepost.errors import ContractMismatch, GatepostError, LaunchFailed, UnknownAgent
from gatepost.events import TaskInfo
from gatepost.hub import sessions, tasks
from gatepost.hub.agent_definition import AgentDefinition
from gatepost.hub.executed_tasks import ExecutedTasks
from gatepost.hub.runtimes.runtime import SessionExit, SessionHandle
from gatepost.hub.sessions import session_name
from gatepost.hub.skill_distribution import read_distribution
from gatepost.hub.task_changes import HubParts
from gatepost.hub.task_states import TaskState
from gatepost.hub.task_tokens import (
    IssuedTaskToken,
    extend_task_tokens,
    issue_task_token,
    revoke_task_tokens,
)
from gatepost.hub.tasks import Task, TaskPayload
from gatepost.journal.transaction import Tx


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
    """All of it but `is_current` runs in the writer's thread."""

    def __init__(self, parts: HubParts, executed: ExecutedTasks) -> None:
        self._parts = parts
        self._executed = executed

    @property
    def _token_ttl(self) -> int:
        return int(self._parts.settings.token_ttl_secs * 1000)

    # -- claims

    def claim_tasks(self, tx: Tx, capacity: int) -> list[ClaimedTask]:
        """Claim the oldest tasks that wait for a session, each with a token for its session."""
        claimed: list[ClaimedTask] = []
        for task in tasks.unclaimed_tasks(tx, capacity):
            info = msgspec.json.decode(task.info, type=TaskInfo)
            definition = self._parts.registry.agents.get(task.agent)
            if info.task_type == DISTRIBUTION:
                request = tasks.load_payload(tx, task.id).request
                self._executed.install_skill(tx, task, read_distribution(request or b""))
            elif definition is None:
                self._executed.refuse_task(
                    tx, task, UnknownAgent.code, "its definition was removed"
                )
            else:
                entry = self._parts.router.capabilities.get(info.capability_id or "")
                eta = definition.eta_seconds or (entry.default_eta_secs if entry else None)
                claimed.append(self._claim_task(tx, task, definition, eta))
        return claimed

    def _claim_task(
        self, tx: Tx, task: Task, definition: AgentDefinition, eta: int | None
    ) -> ClaimedTask:
        clock, capabilities = self._parts.core.node.clock, definition.capabilities
        token = issue_task_token(tx, clock, task.agent, task.id, capabilities, self._token_ttl)
        claimed = ClaimedTask(task, tasks.load_payload(tx, task.id), token, definition, eta)
        runtime = definition.runtime_name
        sessions.claim_session(tx, claimed.session_name, task.id, task.agent, runtime)
        return claimed

    def is_current(self, claimed: ClaimedTask, now: int) -> bool:
        """Whether a session can be launched as it was claimed.

        The definition of its agent may be another one by now, and its token may have grown old.
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
        was_open = sessions.end_session(tx, name, None, error.message)
        task = tasks.load_task(tx, task_id)
        if was_open and not task.has_ended:
            is_mismatch = isinstance(error, ContractMismatch)
            code = error.code if is_mismatch else LaunchFailed.code
            self._executed.refuse_task(tx, task, code, error.message)

    def note_started(self, tx: Tx, claimed: ClaimedTask, handle: SessionHandle) -> bool:
        """Note that a session runs; returns whether its task has ended in the meantime."""
        sessions.note_running(tx, claimed.session_name, handle)
        has_begun = self._begin_task(tx, claimed.task.id, claimed.eta_secs)
        return not has_begun and tasks.load_task(tx, claimed.task.id).has_ended

    def _begin_task(self, tx: Tx, id: str, eta: int | None) -> bool:
        eta_at = None if eta is None else tx.now + eta * 1000
        if self._executed.try_begin(tx, id, None, eta_at) is None:
            return False
        extend_task_tokens(tx, id, self._token_ttl)
        return True

    def note_ended(
        self,
        tx: Tx,
        task_id: str,
        name: str,
        ended: SessionExit,
        result: TaskPayload | GatepostError | None,
        detail: str,
    ) -> None:
        """A session ended: so does its task, if it has not reported its own end."""
        if not self._end_session(tx, task_id, name, ended.code, ended.reason):
            return
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

    def lose_session(self, tx: Tx, task_id: str, name: str, why: str) -> None:
        """A session may have been launched, and cannot be found again."""
        if self._end_session(tx, task_id, name, None, "lost"):
            self._executed.lose_executor(tx, task_id, why)

    def _end_session(
        self, tx: Tx, task_id: str, name: str, exit_code: int | None, reason: str
    ) -> bool:
        """End a session, once; returns whether its task goes on and has to end with it.

        A task whose start could not be noted begins now.
        """
        if not sessions.end_session(tx, name, exit_code, reason):
            return False
        task = tasks.load_task(tx, task_id)
        if task.state is TaskState.PENDING:
            self._begin_task(tx, task_id, None)
        return not task.has_ended
