"""The states of a message in a mailbox, and the only transitions between them.

A message waits as `pending`. A dequeue leases it (`in_flight`). Its consumer acks it (`acked`) or
nacks it (`nacked`); a lease that runs out is a nack. A nacked message is retried after its
backoff, or becomes a `dead_letter` when its retries are used up. A lease can also be released,
which costs no attempt. Waiting mail past its TTL is `expired`; leased mail never expires. A purge
does not delete mail: it turns it into dead letters.

The states acked, dead_letter and expired are terminal: no input leads out of them, and a trigger
in the journal refuses any such update.
"""

from enum import IntEnum, StrEnum

from gatepost.errors import WrongState


class State(IntEnum):
    """The state as stored. States from ACKED up are terminal."""

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
    """Return the state after `event`, or raise WrongState."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise WrongState(f"a message in state {state.wire} does not allow {event.value}") from None


def move(event: Input) -> tuple[str, str]:
    """Return the transitions of `event` as SQL: the SET expression and its guarding WHERE.

    Every statement that changes a state is built from this, so no other transition can happen.
    """
    sources = [source for (source, cause) in TRANSITIONS if cause is event]
    targets = {TRANSITIONS[source, event] for source in sources}
    (target,) = targets
    return f"state = {target:d}", f"state IN ({', '.join(f'{s:d}' for s in sources)})"
