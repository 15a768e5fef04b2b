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

from gatepost.journal import transition_sql as table


class MailState(IntEnum):
    """The state as stored. States from ACKED up are terminal."""

    PENDING = 0
    IN_FLIGHT = 1
    NACKED = 2
    ACKED = 3
    DEAD_LETTER = 4
    EXPIRED = 5

    @property
    def wire_name(self) -> str:
        return self.name.lower()


class MailInput(StrEnum):
    DEQUEUE = "dequeue"
    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    RETRY = "retry"
    EXHAUST = "exhaust"
    EXPIRE = "expire"
    PURGE = "purge"


TRANSITIONS: dict[tuple[MailState, MailInput], MailState] = {
    (MailState.PENDING, MailInput.DEQUEUE): MailState.IN_FLIGHT,
    (MailState.IN_FLIGHT, MailInput.ACK): MailState.ACKED,
    (MailState.IN_FLIGHT, MailInput.NACK): MailState.NACKED,
    (MailState.IN_FLIGHT, MailInput.RELEASE): MailState.PENDING,
    (MailState.NACKED, MailInput.RETRY): MailState.PENDING,
    (MailState.NACKED, MailInput.EXHAUST): MailState.DEAD_LETTER,
    (MailState.PENDING, MailInput.EXPIRE): MailState.EXPIRED,
    (MailState.NACKED, MailInput.EXPIRE): MailState.EXPIRED,
    (MailState.PENDING, MailInput.PURGE): MailState.DEAD_LETTER,
    (MailState.NACKED, MailInput.PURGE): MailState.DEAD_LETTER,
}

TERMINAL_STATES = (MailState.ACKED, MailState.DEAD_LETTER, MailState.EXPIRED)


def transition_sql(event: MailInput) -> tuple[str, str]:
    """Return the transitions of `event` as SQL: the SET expression and its guarding WHERE.

    Every statement that changes a state is built from this, so no other transition can happen.
    """
    sources, target = table.sources_of(TRANSITIONS, event), table.target_of(TRANSITIONS, event)
    return f"state = {target:d}", table.is_in_states(sources)
