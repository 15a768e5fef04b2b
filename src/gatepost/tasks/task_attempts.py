"""Further attempts at tasks whose executor was lost, as often as their capability permits.

For a self-hosted agent, an attempt is a new request event on behalf of the task.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from gatepost.delivery.outgoing import EMPTY_PAYLOAD, OutgoingEvent
from gatepost.errors import NoRoute, UnknownAgent
from gatepost.events import EventKind, TaskInfo, parse_event_id
from gatepost.journal.transaction import Tx
from gatepost.tasks import task_table
from gatepost.tasks.task_changes import HubParts
from gatepost.tasks.task_events import TaskEvents, draft_request
from gatepost.tasks.task_routing import CapabilityEntry
from gatepost.tasks.task_states import TaskInput, TaskState
from gatepost.tasks.task_table import Executor, Task
from gatepost.tasks.task_tokens import revoke_task_tokens

_NOTE_ATTEMPT = "INSERT INTO task_attempt (event_id, task, number) VALUES (?, ?, ?)"


class TaskAttempts:
    """Runs in the writer's thread."""

    def __init__(self, parts: HubParts, events: TaskEvents) -> None:
        self._parts = parts
        self._events = events

    def try_again(self, tx: Tx, task: Task, why: str) -> Task | None:
        """Begin another attempt at a task that this gateway executes; None if there is none left.

        An agent that can no longer be reached has none left. The gateway that requested the task
        hears of the attempt.
        """
        found = self._find_executor(tx, task.agent) if self._entry_with_attempts(task) else None
        if found is None:
            return None
        executor, node = found
        revoke_task_tokens(tx, task.id)
        note = f"attempt {task.attempt + 1}: {why}"[:2000]
        values = {"executor": executor, "executor_node": node, "note": note}
        task = self._begin_attempt(tx, task, values)
        content = msgspec.json.encode({"attempt": str(task.attempt), "note": note})
        self._events.report(tx, task, EventKind.TASK_UPDATE, TaskInfo(progress=0.0), content)
        if executor != "session":
            self._send_request(tx, task)
        return task

    def try_elsewhere(self, tx: Tx, task: Task, lost: str | None, why: str) -> Task | None:
        """Begin another attempt at a task of a lost gateway, with another eligible agent."""
        entry = self._entry_with_attempts(task)
        found = None if entry is None else self._find_other_agent(tx, entry, task, lost)
        if found is None:
            return None
        agent, executor, node = found
        task = self._begin_attempt(
            tx,
            task,
            {
                "agent": agent,
                "executor": executor,
                "executor_node": node,
                "accepted_at": None,
                "note": f"attempt {task.attempt + 1}: {why}"[:2000],
            },
        )
        if executor != "session":
            self._send_request(tx, task)
        return task

    def _entry_with_attempts(self, task: Task) -> CapabilityEntry | None:
        """The capability of a task that has begun, if it permits another attempt."""
        if task.state not in (TaskState.ACCEPTED, TaskState.RUNNING):
            return None
        info = msgspec.json.decode(task.info, type=TaskInfo)
        entry = self._parts.router.capabilities.get(info.capability_id or "")
        return entry if entry is not None and task.attempt < entry.max_attempts else None

    def _find_other_agent(
        self, tx: Tx, entry: CapabilityEntry, task: Task, lost: str | None
    ) -> tuple[str, Executor, str | None] | None:
        for agent in entry.eligible:
            if agent != task.agent and self._parts.router.is_active(tx, agent):
                found = self._find_executor(tx, agent)
                if found is not None and (found[1] is None or found[1] != lost):
                    return agent, *found
        return None

    def _find_executor(self, tx: Tx, agent: str) -> tuple[Executor, str | None] | None:
        """The executor of an agent's tasks; None if the agent is gone or cannot be reached."""
        try:
            return self._parts.find_executor(tx, agent)
        except (NoRoute, UnknownAgent):
            return None

    def _begin_attempt(self, tx: Tx, task: Task, values: Mapping[str, object]) -> Task:
        again = {"attempt": task.attempt + 1, "progress": 0.0, "eta_at": None, **values}
        task = task_table.change_task(tx, task.id, TaskInput.RETRY, again)
        self._parts.changes.note_change(tx, task)
        return task

    def _send_request(self, tx: Tx, task: Task) -> None:
        id = self._parts.core.node.event_ids.next_id()
        payload = task_table.load_payload(tx, task.id)
        info = task.request_info
        envelope = draft_request(task, id, info, self._parts.find_policy_version(info))
        out = OutgoingEvent(
            replace(envelope, origin_event_id=task.id),
            payload.request or EMPTY_PAYLOAD,
            payload.request_ref,
            eta_secs=self._parts.find_eta(task.agent, info),
        )
        tx.execute(_NOTE_ATTEMPT, (parse_event_id(id), parse_event_id(task.id), task.attempt))
        self._events.send_requests(tx, [out])
