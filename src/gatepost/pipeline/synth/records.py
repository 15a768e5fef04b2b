"""Events before they have a place in an outbox: rows of one numpy type, and what fills them."""

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatepost.pipeline.synth.world import START, Ints, Value, Words

# Where a value may be missing, 0 says so and n + 1 stands for n.
RECORD: Final = np.dtype(
    [
        ("key", np.int64),  # time << 4 | step: what is sorted by
        ("node", np.int16),
        ("template", np.int16),
        ("source", np.int16),
        ("to_node", np.int16),
        ("to_agent", np.int16),
        ("attempt", np.int16),
        ("payload", np.int16),
        ("blob", np.int16),
        ("capability", np.int16),
        ("mark", np.int16),  # which planted thing it belongs to
        ("pair_seq", np.int64),
        ("expires", np.int64),  # ms since START; 0 is never
        ("number", np.int64),  # attempts, through, ETA in seconds or progress in thousandths
        ("other", np.int64),  # the pair number a dead letter closes, or the ETA since 1970
        ("id", np.uint64, 2),
        ("ref", np.uint64, 2),
        ("corr", np.uint64, 2),
        ("causation", np.uint64, 2),
    ]
)
Records = NDArray[np.void]

STEPS: Final = 4


class Template(NamedTuple):
    """What all events of one sort have in common."""

    kind: str
    route: str | None = None
    offer: bool = False
    status: str | None = None
    outcome: str | None = None
    reason: str | None = None
    signal: str | None = None
    failure: str | None = None


class T(IntEnum):
    """The sorts of event; TEMPLATES says what each is."""

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
    PROCESSED_FAILED = 23
    PROCESSED_DEAD = 24
    PROCESSED_EXPIRED = 25
    DEAD_EXPIRED = 26
    DEAD_REFUSED = 27
    DEAD_UNROUTED = 28
    CONFIRM = 29
    WITHDRAW = 30
    SETTLED = 31
    NOTICE = 32


TEMPLATES: Final = (
    Template("message", "owner"),
    Template("message", "local"),
    Template("message", "owner", offer=True),
    Template("message", "retry"),
    Template("message", "fallback", offer=True),
    Template("message", "moved", offer=True),
    Template("message"),
    Template("reply", "owner"),
    Template("reply", "local"),
    Template("task_create", "owner"),
    Template("task_create", "local"),
    Template("task_create"),
    Template("task_accept"),
    Template("task_update"),
    Template("task_complete"),
    Template("task_failed", failure="terminal_error"),
    Template("task_failed", failure="contract_mismatch"),
    Template("task_cancel", "owner"),
    Template("task_cancel", "local"),
    Template("ack", status="accepted"),
    Template("ack", status="accepted"),
    Template("ack", status="refused", reason="not_hosted"),
    Template("ack", status="processed", outcome="ok"),
    Template("ack", status="processed", outcome="failed", reason="the agent raised an error"),
    Template("ack", status="processed", outcome="dead_letter", reason="failed 4 times"),
    Template("ack", status="processed", outcome="expired"),
    Template("dead_letter", reason="expired"),
    Template("dead_letter", reason="refused"),
    Template("dead_letter", reason="no_route"),
    Template("signal", signal="confirm"),
    Template("signal", signal="withdraw"),
    Template("signal", signal="pair_closed"),
    Template("signal", signal="notice"),
)

KINDS: Final = tuple(sorted({template.kind for template in TEMPLATES}))
KIND_OF: Final = np.array([KINDS.index(template.kind) for template in TEMPLATES], dtype=np.int64)


def new_ids(rng: np.random.Generator, times: Ints) -> Words:
    """UUIDv7s drawn at these moments, as two big-endian words each."""
    words = rng.integers(0, 2**64, (len(times), 2), dtype=np.uint64)
    milliseconds = (times + START).astype(np.uint64)
    words[:, 0] = milliseconds << np.uint64(16) | np.uint64(0x7000) | words[:, 0] & np.uint64(0xFFF)
    words[:, 1] = words[:, 1] & np.uint64(2**62 - 1) | np.uint64(2**63)
    return words


def records(
    times: Ints,
    step: int,
    template: Value,
    **fields: Value,
) -> Records:
    """One event for each time; events of the same millisecond are in the order of their steps."""
    made = np.zeros(len(times), RECORD)
    made["key"] = times << STEPS | step
    made["template"] = template
    made["attempt"] = 1
    for name, values in fields.items():
        made[name] = values
    return made


def times_of(rows: Records) -> Ints:
    return np.asarray(rows["key"] >> STEPS, dtype=np.int64)
