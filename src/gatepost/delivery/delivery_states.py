"""The states of a delivery at its sender, and the only transitions between them.

A message is `emitted` into the outbox. Its owner's receipt makes it `accepted`; without a receipt
in time it is `retry_pending`, and is then emitted again, routed to another node, or given up. An
accepted message ends as `processed`, or as `replied` if an answer came first. If neither comes in
time that is an `incident`: the delivery can still end normally, but it is never retried. A
`dead_letter` is a message the sender gave up. If its last owner says after all that the turn ended,
or answers it, that amends the end: the sender reads what happened. In a restored journal every open
delivery is in `doubt`: the sender asks its owner about it and never sends it again.
"""

from enum import StrEnum


class DeliveryState(StrEnum):
    EMITTED = "emitted"
    RETRY_PENDING = "retry_pending"
    ACCEPTED = "accepted"
    INCIDENT = "incident"
    PROCESSED = "processed"
    REPLIED = "replied"
    DEAD_LETTER = "dead_letter"


class DeliveryInput(StrEnum):
    ACCEPT = "accept"
    TIMEOUT = "timeout"
    RETRY = "retry"
    REROUTE = "reroute"
    BREACH = "breach"
    PROCESS = "process"
    REPLY = "reply"
    GIVE_UP = "give_up"
    DOUBT = "doubt"
    AMEND = "amend"
    AMEND_REPLY = "amend_reply"


_S, _I = DeliveryState, DeliveryInput

TRANSITIONS: dict[tuple[DeliveryState, DeliveryInput], DeliveryState] = {
    (_S.EMITTED, _I.ACCEPT): _S.ACCEPTED,
    (_S.EMITTED, _I.TIMEOUT): _S.RETRY_PENDING,
    (_S.EMITTED, _I.REROUTE): _S.EMITTED,
    (_S.EMITTED, _I.PROCESS): _S.PROCESSED,
    (_S.EMITTED, _I.REPLY): _S.REPLIED,
    (_S.EMITTED, _I.GIVE_UP): _S.DEAD_LETTER,
    (_S.RETRY_PENDING, _I.TIMEOUT): _S.RETRY_PENDING,
    (_S.RETRY_PENDING, _I.RETRY): _S.EMITTED,
    (_S.RETRY_PENDING, _I.REROUTE): _S.EMITTED,
    (_S.RETRY_PENDING, _I.ACCEPT): _S.ACCEPTED,
    (_S.RETRY_PENDING, _I.PROCESS): _S.PROCESSED,
    (_S.RETRY_PENDING, _I.REPLY): _S.REPLIED,
    (_S.RETRY_PENDING, _I.GIVE_UP): _S.DEAD_LETTER,
    (_S.ACCEPTED, _I.PROCESS): _S.PROCESSED,
    (_S.ACCEPTED, _I.REPLY): _S.REPLIED,
    (_S.ACCEPTED, _I.BREACH): _S.INCIDENT,
    (_S.ACCEPTED, _I.GIVE_UP): _S.DEAD_LETTER,
    (_S.INCIDENT, _I.PROCESS): _S.PROCESSED,
    (_S.INCIDENT, _I.REPLY): _S.REPLIED,
    (_S.INCIDENT, _I.BREACH): _S.INCIDENT,
    (_S.INCIDENT, _I.GIVE_UP): _S.DEAD_LETTER,
    (_S.EMITTED, _I.DOUBT): _S.INCIDENT,
    (_S.RETRY_PENDING, _I.DOUBT): _S.INCIDENT,
    (_S.ACCEPTED, _I.DOUBT): _S.INCIDENT,
    (_S.INCIDENT, _I.DOUBT): _S.INCIDENT,
    (_S.DEAD_LETTER, _I.AMEND): _S.PROCESSED,
    # An owner that forwarded the mail and gave it up may learn of its end later and amend its
    # answer.
    (_S.PROCESSED, _I.AMEND): _S.PROCESSED,
    (_S.DEAD_LETTER, _I.AMEND_REPLY): _S.REPLIED,
    (_S.PROCESSED, _I.AMEND_REPLY): _S.REPLIED,
}

TERMINAL_STATES = (DeliveryState.PROCESSED, DeliveryState.REPLIED, DeliveryState.DEAD_LETTER)
UNACCEPTED = (DeliveryState.EMITTED, DeliveryState.RETRY_PENDING)
IS_UNACCEPTED = "state IN ({})".format(", ".join(f"'{state}'" for state in UNACCEPTED))


def update_delivery(
    input: DeliveryInput, assignments: str, *, where: str = "event_id = ?", returning: str = ""
) -> str:
    """The UPDATE for one input of the table: its target state, guarded by its source states.

    Every statement that changes a delivery's state is built here, so storage knows no other moves.
    """
    sources = [source for (source, taken) in TRANSITIONS if taken is input]
    (target,) = {TRANSITIONS[source, input] for source in sources}
    guard = ", ".join(f"'{source}'" for source in sources)
    sql = f"UPDATE delivery SET state = '{target}', {assignments} WHERE {where}"
    tail = f" RETURNING {returning}" if returning else ""
    return f"{sql} AND state IN ({guard}){tail}"
