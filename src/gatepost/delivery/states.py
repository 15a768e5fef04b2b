"""The states of a delivery, as its sender sees it, and the only moves between them.

A message is `emitted` into the outbox. Its owner's receipt makes it `accepted`; without one in time
it is `retry_pending`, and emitted again, or routed to somebody else, or given up. What was accepted
ends as `processed`, or as `replied` if an answer came first; if neither comes in time that is an
`incident`, from which it can still recover, but which is never retried. A `dead_letter` is what the
sender gave up; whatever its last owner says later is noted beside it and changes nothing. In a
journal that was restored every open delivery is in `doubt`: it is asked about, never sent again.
"""

from enum import StrEnum

from gatepost.errors import WrongState


class State(StrEnum):
    EMITTED = "emitted"
    RETRY_PENDING = "retry_pending"
    ACCEPTED = "accepted"
    INCIDENT = "incident"
    PROCESSED = "processed"
    REPLIED = "replied"
    DEAD_LETTER = "dead_letter"


class Input(StrEnum):
    ACCEPT = "accept"
    TIMEOUT = "timeout"
    RETRY = "retry"
    REROUTE = "reroute"
    BREACH = "breach"
    PROCESS = "process"
    REPLY = "reply"
    GIVE_UP = "give_up"
    DOUBT = "doubt"


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.EMITTED, Input.ACCEPT): State.ACCEPTED,
    (State.EMITTED, Input.TIMEOUT): State.RETRY_PENDING,
    (State.EMITTED, Input.REROUTE): State.EMITTED,
    (State.EMITTED, Input.PROCESS): State.PROCESSED,
    (State.EMITTED, Input.REPLY): State.REPLIED,
    (State.EMITTED, Input.GIVE_UP): State.DEAD_LETTER,
    (State.RETRY_PENDING, Input.TIMEOUT): State.RETRY_PENDING,
    (State.RETRY_PENDING, Input.RETRY): State.EMITTED,
    (State.RETRY_PENDING, Input.REROUTE): State.EMITTED,
    (State.RETRY_PENDING, Input.ACCEPT): State.ACCEPTED,
    (State.RETRY_PENDING, Input.PROCESS): State.PROCESSED,
    (State.RETRY_PENDING, Input.REPLY): State.REPLIED,
    (State.RETRY_PENDING, Input.GIVE_UP): State.DEAD_LETTER,
    (State.ACCEPTED, Input.PROCESS): State.PROCESSED,
    (State.ACCEPTED, Input.REPLY): State.REPLIED,
    (State.ACCEPTED, Input.BREACH): State.INCIDENT,
    (State.ACCEPTED, Input.GIVE_UP): State.DEAD_LETTER,
    (State.INCIDENT, Input.PROCESS): State.PROCESSED,
    (State.INCIDENT, Input.REPLY): State.REPLIED,
    (State.INCIDENT, Input.BREACH): State.INCIDENT,
    (State.INCIDENT, Input.GIVE_UP): State.DEAD_LETTER,
    (State.EMITTED, Input.DOUBT): State.INCIDENT,
    (State.RETRY_PENDING, Input.DOUBT): State.INCIDENT,
    (State.ACCEPTED, Input.DOUBT): State.INCIDENT,
    (State.INCIDENT, Input.DOUBT): State.INCIDENT,
}

TERMINAL = (State.PROCESSED, State.REPLIED, State.DEAD_LETTER)
UNACCEPTED = (State.EMITTED, State.RETRY_PENDING)


def step(state: State, event: Input) -> State:
    """The state after `event`, or WrongState."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise WrongState(f"a delivery that is {state.value} cannot take {event.value}") from None


def move(event: Input) -> tuple[str, str]:
    """The table's row for `event` as SQL: what to SET, and the WHERE that guards it.

    Every statement that changes a state is built from this, so storage knows no other moves.
    """
    sources = [source for (source, what) in TRANSITIONS if what is event]
    (target,) = {TRANSITIONS[source, event] for source in sources}
    guard = ", ".join(f"'{source}'" for source in sources)
    return f"state = '{target}'", f"state IN ({guard})"
