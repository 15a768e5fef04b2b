"""The kinds of event, which of them are tracked, and which travel in the clear."""

from enum import StrEnum


class EventKind(StrEnum):
    """The kinds this version knows; an event of any other kind is stored and relayed."""

    MESSAGE = "message"
    ACK = "ack"
    REPLY = "reply"
    TASK_CREATE = "task_create"
    TASK_ACCEPT = "task_accept"
    TASK_UPDATE = "task_update"
    TASK_COMPLETE = "task_complete"
    TASK_FAILED = "task_failed"
    TASK_CANCEL = "task_cancel"
    SIGNAL = "signal"
    DEAD_LETTER = "dead_letter"


KNOWN_KINDS: frozenset[str] = frozenset(EventKind)

# A tracked event opens a delivery and waits for receipts. Receipts are never acked themselves.
TRACKED_KINDS: frozenset[str] = frozenset(
    {EventKind.MESSAGE, EventKind.REPLY, EventKind.TASK_CREATE, EventKind.TASK_CANCEL}
)

# The reports of an executor to the gateway that requested the task. They are never acked.
REPORT_KINDS: frozenset[str] = frozenset(
    {
        EventKind.TASK_ACCEPT,
        EventKind.TASK_UPDATE,
        EventKind.TASK_COMPLETE,
        EventKind.TASK_FAILED,
    }
)

# Receipts, dead letters and signals tell every reader of the outbox how a delivery is going.
# All other payloads are encrypted.
CLEAR_KINDS: frozenset[str] = frozenset({EventKind.ACK, EventKind.SIGNAL, EventKind.DEAD_LETTER})

LEGACY_KINDS: dict[str, EventKind] = {
    "task": EventKind.TASK_CREATE,
    "task_result": EventKind.TASK_COMPLETE,
}
