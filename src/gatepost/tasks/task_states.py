"""The states of a task, and the only transitions between them.

A task is `pending` until an executor takes it. A task that no executor can take is refused, which
is a failure; so is one whose session cannot be launched. An `accepted` task has an executor and an
ETA. It is `running` once its session or its agent really works on it, which is usually the same
step. From then on its executor reports updates, until it completes, fails or is cancelled. A task
whose executor was lost is pending again, if its capability permits another attempt.

A request that its sender gave up may have been taken all the same. Its task is `unknown` at the
requester's gateway until the executor's gateway says what became of it.

The states completed, failed and cancelled are terminal: no input leads out of them, and a trigger
in the journal refuses any such update. There is one exception. A requester's gateway that waited
long enough presumes that a task has failed (`Task.is_presumed`). The executor's word, if it comes
after all, amends that end, once.
"""

from enum import StrEnum

from gatepost.journal import transition_sql


class TaskState(StrEnum):
    PENDING = "pending"
    UNKNOWN = "unknown"
    ACCEPTED = "accepted"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskInput(StrEnum):
    ACCEPT = "accept"
    REFUSE = "refuse"
    START = "start"
    UPDATE = "update"
    RETRY = "retry"
    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    DOUBT = "doubt"
    AMEND_COMPLETED = "amend_completed"
    AMEND_FAILED = "amend_failed"
    AMEND_CANCELLED = "amend_cancelled"


_S, _I = TaskState, TaskInput

TRANSITIONS: dict[tuple[TaskState, TaskInput], TaskState] = {
    (_S.PENDING, _I.ACCEPT): _S.ACCEPTED,
    (_S.PENDING, _I.REFUSE): _S.FAILED,
    (_S.PENDING, _I.CANCEL): _S.CANCELLED,
    (_S.PENDING, _I.DOUBT): _S.UNKNOWN,
    (_S.UNKNOWN, _I.ACCEPT): _S.ACCEPTED,
    (_S.UNKNOWN, _I.REFUSE): _S.FAILED,
    (_S.UNKNOWN, _I.CANCEL): _S.CANCELLED,
    (_S.ACCEPTED, _I.START): _S.RUNNING,
    (_S.ACCEPTED, _I.RETRY): _S.PENDING,
    (_S.ACCEPTED, _I.FAIL): _S.FAILED,
    (_S.ACCEPTED, _I.CANCEL): _S.CANCELLED,
    (_S.RUNNING, _I.UPDATE): _S.RUNNING,
    (_S.RUNNING, _I.RETRY): _S.PENDING,
    (_S.RUNNING, _I.COMPLETE): _S.COMPLETED,
    (_S.RUNNING, _I.FAIL): _S.FAILED,
    (_S.RUNNING, _I.CANCEL): _S.CANCELLED,
    # Only if the end was presumed.
    (_S.FAILED, _I.AMEND_COMPLETED): _S.COMPLETED,
    (_S.FAILED, _I.AMEND_FAILED): _S.FAILED,
    (_S.FAILED, _I.AMEND_CANCELLED): _S.CANCELLED,
}

# The states of a task that no executor is known to have taken.
UNTAKEN_STATES = (TaskState.PENDING, TaskState.UNKNOWN)
AMENDMENTS = (TaskInput.AMEND_COMPLETED, TaskInput.AMEND_FAILED, TaskInput.AMEND_CANCELLED)
TERMINAL_STATES = (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED)
# The hub's API knows no state between pending and running, and none for doubt.
SHOWN_STATUS = {state: state.value for state in TaskState} | {
    _S.ACCEPTED: _S.PENDING.value,
    _S.UNKNOWN: _S.PENDING.value,
}


def guard_of(input: TaskInput) -> str:
    """The SQL condition on the state that permits an input."""
    sources = transition_sql.sources_of(TRANSITIONS, input)
    guard = transition_sql.is_in_states(sources)
    return f"{guard} AND is_presumed" if input in AMENDMENTS else guard
