"""Records: events without a position in an outbox yet, as rows of one numpy type."""

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatepost.pipeline.synth.mesh import START, FieldValue, IdWords, IntArray

# In optional fields that hold an index, 0 means none and n + 1 stands for index n.
RECORD_TYPE: Final = np.dtype(
    [
        ("key", np.int64),  # time << 4 | step; records are sorted by it
        ("node", np.int16),
        ("template", np.int16),
        ("source", np.int16),
        ("to_node", np.int16),
        ("to_agent", np.int16),
        ("attempt", np.int16),
        ("payload", np.int16),
        ("blob", np.int16),
        ("capability", np.int16),
        ("mark", np.int16),  # the planted violation it belongs to; 0 is none
        ("pair_seq", np.int64),
        ("expires", np.int64),  # ms since START; 0 is never
        ("number", np.int64),  # attempts, through, ETA in seconds or progress in thousandths
        ("other", np.int64),  # the pair number a dead letter closes, or the ETA in epoch ms
        ("id", np.uint64, 2),
        ("ref", np.uint64, 2),
        ("corr", np.uint64, 2),
        ("causation", np.uint64, 2),
    ]
)
Records = NDArray[np.void]

STEP_BITS: Final = 4


class EventTemplate(NamedTuple):
    """The values that all events of one sort share."""

    kind: str
    route: str | None = None
    offer: bool = False
    status: str | None = None
    outcome: str | None = None
    reason: str | None = None
    signal: str | None = None
    failure: str | None = None


class SynthEvent(IntEnum):
    """The sorts of event in a synthetic archive; each is an index into TEMPLATES."""

    MESSAGE = 0
    MESSAGE_LOCAL = 1
    MESSAGE_OFFER = 2
    MESSAGE_RETRY = 3
    MESSAGE_FALLBACK = 4
    MESSAGE_MOVED = 5
    MESSAGE_UNROUTED = 6
    REPLY = 7
    REPLY_LOCAL = 8
    TASK = 9
    TASK_LOCAL = 10
    TASK_UNROUTED = 11
    TASK_ACCEPT = 12
    TASK_UPDATE = 13
    TASK_COMPLETE = 14
    TASK_FAILED = 15
    TASK_MISMATCH = 16
    TASK_CANCEL = 17
    TASK_CANCEL_LOCAL = 18
    ACCEPTED = 19
    ACCEPTED_TASK = 20
    REFUSED = 21
    PROCESSED = 22
    PROCESSED_DEAD = 23
    PROCESSED_EXPIRED = 24
    DEAD_EXPIRED = 25
    DEAD_REFUSED = 26
    DEAD_UNROUTED = 27
    CONFIRM = 28
    WITHDRAW = 29
    SETTLED = 30
    NOTICE = 31


TEMPLATES: Final = (
    EventTemplate("message", "owner"),
    EventTemplate("message", "local"),
    EventTemplate("message", "owner", offer=True),
    EventTemplate("message", "retry"),
    EventTemplate("message", "fallback", offer=True),
    EventTemplate("message", "moved", offer=True),
    EventTemplate("message"),
    EventTemplate("reply", "owner"),
    EventTemplate("reply", "local"),
    EventTemplate("task_create", "owner"),
    EventTemplate("task_create", "local"),
    EventTemplate("task_create"),
    EventTemplate("task_accept"),
    EventTemplate("task_update"),
    EventTemplate("task_complete"),
    EventTemplate("task_failed", failure="terminal_error"),
    EventTemplate("task_failed", failure="contract_mismatch"),
    EventTemplate("task_cancel", "owner"),
    EventTemplate("task_cancel", "local"),
    EventTemplate("ack", status="accepted"),
    EventTemplate("ack", status="accepted"),
    EventTemplate("ack", status="refused", reason="not_hosted"),
    EventTemplate("ack", status="processed", outcome="ok"),
    EventTemplate("ack", status="processed", outcome="dead_letter", reason="failed 4 times"),
    EventTemplate("ack", status="processed", outcome="expired"),
    EventTemplate("dead_letter", reason="expired"),
    EventTemplate("dead_letter", reason="refused"),
    EventTemplate("dead_letter", reason="no_route"),
    EventTemplate("signal", signal="confirm"),
    EventTemplate("signal", signal="withdraw"),
    EventTemplate("signal", signal="pair_closed"),
    EventTemplate("signal", signal="notice"),
)

KINDS: Final = tuple(sorted({template.kind for template in TEMPLATES}))
KIND_INDEX: Final = np.array([KINDS.index(template.kind) for template in TEMPLATES], dtype=np.int64)


def new_ids(rng: np.random.Generator, times: IntArray) -> IdWords:
    """Draw a UUIDv7 for each time, as two 64-bit words, the higher one first."""
    words = rng.integers(0, 2**64, (len(times), 2), dtype=np.uint64)
    milliseconds = (times + START).astype(np.uint64)
    words[:, 0] = milliseconds << np.uint64(16) | np.uint64(0x7000) | words[:, 0] & np.uint64(0xFFF)
    words[:, 1] = words[:, 1] & np.uint64(2**62 - 1) | np.uint64(2**63)
    return words


def make_records(
    times: IntArray,
    step: int,
    template: FieldValue,
    **fields: FieldValue,
) -> Records:
    """Make one record for each time; `step` orders records of the same millisecond."""
    made = np.zeros(len(times), RECORD_TYPE)
    made["key"] = times << STEP_BITS | step
    made["template"] = template
    made["attempt"] = 1
    for name, values in fields.items():
        made[name] = values
    return made


def record_times(rows: Records) -> IntArray:
    return np.asarray(rows["key"] >> STEP_BITS, dtype=np.int64)
