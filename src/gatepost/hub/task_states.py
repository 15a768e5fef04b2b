"""The states of a task, and the only transitions between them.

A task is `pending` until an executor takes it. A task that no executor can take is refused, which
is a failure; so is one whose session cannot be launched. An `accepted` task has an executor and an
ETA. It is `running` once its session or its agent really works on it, which is usually the same
step. From then on its executor reports updates, until it completes, fails or is cancelled. A task
whose executor was lost is pending again, if its capability permits another attempt.

The states completed, failed and cancelled are terminal: no input leads out of them, and a trigger
in the journal refuses any such update.
"""

from enum import StrEnum


class TaskState(StrEnum):
    PENDING = "pending"
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


_S, _I = TaskState, TaskInput

TRANSITIONS: dict[tuple[TaskState, TaskInput], TaskState] = {
    (_S.PENDING, _I.ACCEPT): _S.ACCEPTED,
    (_S.PENDING, _I.REFUSE): _S.FAILED,
    (_S.PENDING, _I.CANCEL): _S.CANCELLED,
    (_S.ACCEPTED, _I.START): _S.RUNNING,
    (_S.ACCEPTED, _I.RETRY): _S.PENDING,
    (_S.ACCEPTED, _I.FAIL): _S.FAILED,
    (_S.ACCEPTED, _I.CANCEL): _S.CANCELLED,
    (_S.RUNNING, _I.UPDATE): _S.RUNNING,
    (_S.RUNNING, _I.RETRY): _S.PENDING,
    (_S.RUNNING, _I.COMPLETE): _S.COMPLETED,
    (_S.RUNNING, _I.FAIL): _S.FAILED,
    (_S.RUNNING, _I.CANCEL): _S.CANCELLED,
}

TERMINAL_STATES = (TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED)
# The hub's API knows no state between pending and running.
SHOWN_STATUS = {state: state.value for state in TaskState} | {_S.ACCEPTED: _S.PENDING.value}


def guard_of(input: TaskInput) -> str:
    """The SQL condition on the state that permits an input."""
    sources = [source for (source, taken) in TRANSITIONS if taken is input]
    return "state IN ({})".format(", ".join(f"'{source}'" for source in sources))


def target_of(input: TaskInput) -> TaskState:
    """The state that an input leads to: the same one from each of its sources."""
    (target,) = {to for (_, taken), to in TRANSITIONS.items() if taken is input}
    return target
