"""The states of a message in a mailbox, and the only moves between them.

A message waits as `pending`. A dequeue leases it (`in_flight`). Its consumer acks it (`acked`) or
nacks it (`nacked`), and a lease that runs out is a nack. A nacked message is retried once its
backoff is over, or, its retries spent, becomes a `dead_letter`. A lease can also be given back,
which costs no attempt. What nobody took in time is `expired`; time never strikes a live lease.
A purge does not drop mail: it turns it into dead letters.

Acked, dead_letter and expired are terminal: no input leads out of them, and a trigger in the
journal refuses any update that tries.
"""

from enum import IntEnum, StrEnum

from gatepost.errors import WrongState


class State(IntEnum):
    """As stored. Terminal states are those from ACKED up."""

    PENDING = 0
    IN_FLIGHT = 1
    NACKED = 2
    ACKED = 3
    DEAD_LETTER = 4
    EXPIRED = 5

    @property
    def wire(self) -> str:
        return self.name.lower()


class Input(StrEnum):
    DEQUEUE = "dequeue"
    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    RETRY = "retry"
    EXHAUST = "exhaust"
    EXPIRE = "expire"
    PURGE = "purge"


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.PENDING, Input.DEQUEUE): State.IN_FLIGHT,
    (State.IN_FLIGHT, Input.ACK): State.ACKED,
    (State.IN_FLIGHT, Input.NACK): State.NACKED,
    (State.IN_FLIGHT, Input.RELEASE): State.PENDING,
    (State.NACKED, Input.RETRY): State.PENDING,
    (State.NACKED, Input.EXHAUST): State.DEAD_LETTER,
    (State.PENDING, Input.EXPIRE): State.EXPIRED,
    (State.NACKED, Input.EXPIRE): State.EXPIRED,
    (State.PENDING, Input.PURGE): State.DEAD_LETTER,
    (State.NACKED, Input.PURGE): State.DEAD_LETTER,
}

WAITING = (State.PENDING, State.NACKED)
TERMINAL = (State.ACKED, State.DEAD_LETTER, State.EXPIRED)


def step(state: State, event: Input) -> State:
    """The state after `event`, or WrongState."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise WrongState(f"a message that is {state.wire} cannot take {event.value}") from None


def move(event: Input) -> tuple[str, str]:
    """The table's row for `event` as SQL: what to SET, and the WHERE that guards it.

    Every statement that changes a state is built from this, so storage knows no other moves.
    """
    sources = [source for (source, what) in TRANSITIONS if what is event]
    targets = {TRANSITIONS[source, event] for source in sources}
    (target,) = targets
    return f"state = {target:d}", f"state IN ({', '.join(f'{s:d}' for s in sources)})"
