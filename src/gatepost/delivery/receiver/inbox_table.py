"""The inbox in the journal: one row for each tracked event that was taken from another outbox."""

from collections import Counter
from typing import NamedTuple

from gatepost.delivery.receiver.inbox_pairs import PairKey
from gatepost.delivery.receiver.inbox_states import (
    TRANSITIONS,
    UNDECIDED,
    InboxInput,
    InboxState,
    transition_sql,
)
from gatepost.events import Envelope, parse_event_id
from gatepost.journal.transaction import Row, Tx

_LOOK_UP_AT_ONCE = 200

_SELECT_STATE = "SELECT state FROM inbox WHERE source = ? AND event_id = ?"
_SELECT_ROW = """
SELECT state, sender, mailbox, corr_id, pair_seq, reason, origin_node FROM inbox
WHERE source = ? AND event_id = ?
"""
_UNDECIDED = ", ".join(f"'{state}'" for state in UNDECIDED)
_SELECT_UNDECIDED = f"""
SELECT source, event_id, mailbox, corr_id FROM inbox WHERE state IN ({_UNDECIDED})
"""


def _record_sql(input: InboxInput) -> str:
    target, sources = transition_sql(input)
    return f"""
INSERT INTO inbox (source, event_id, state, mailbox, sender, origin_node, corr_id, pair_seq, at,
    reason)
VALUES (?, ?, {target}, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (source, event_id) DO UPDATE SET state = excluded.state,
    mailbox = excluded.mailbox, sender = excluded.sender, origin_node = excluded.origin_node,
    corr_id = excluded.corr_id,
    pair_seq = excluded.pair_seq, at = excluded.at, reason = excluded.reason
WHERE state IN ({sources})
"""


def _change_state_sql(input: InboxInput) -> str:
    target, sources = transition_sql(input)
    return f"""
UPDATE inbox SET state = {target} WHERE source = ? AND event_id = ? AND state IN ({sources})
"""


# An input that an unseen event can take writes the whole row; so does a confirmation, from which
# the row's age counts. Any other input only changes the state.
_FIRST_INPUTS = {input for state, input in TRANSITIONS if state is InboxState.UNSEEN}
_RECORD = {input: _record_sql(input) for input in (*_FIRST_INPUTS, InboxInput.CONFIRM)}
_MOVE = {input: _change_state_sql(input) for input in InboxInput if input not in _RECORD}


class InboxRow(NamedTuple):
    state: InboxState
    sender: str
    mailbox: str
    corr_id: str
    pair_seq: int
    reason: str | None
    origin_node: str

    def pair_key(self, source: str) -> PairKey:
        return PairKey(source, self.sender, self.mailbox, self.origin_node)


class InboxTable:
    """The rows of one source, in one transaction."""

    def __init__(self, tx: Tx, source: str) -> None:
        self._tx = tx
        self._source = source
        self._unseen: set[bytes] = set()

    def look_up(self, envelopes: list[Envelope]) -> None:
        """Find out, for many events at once, which were never seen before."""
        ids = [parse_event_id(envelope.event_id) for envelope in envelopes]
        for start in range(0, len(ids), _LOOK_UP_AT_ONCE):
            some = ids[start : start + _LOOK_UP_AT_ONCE]
            marks = ", ".join("?" * len(some))
            query = f"SELECT event_id FROM inbox WHERE source = ? AND event_id IN ({marks})"
            seen = {row[0] for row in self._tx.fetch_all(query, (self._source, *some))}
            self._unseen |= set(some) - seen
        if len(set(ids)) < len(ids):
            # One that comes twice in a batch is not new the second time.
            self._unseen -= {id for id, times in Counter(ids).items() if times > 1}

    def state_of(self, event_id: bytes) -> InboxState:
        if event_id in self._unseen:
            return InboxState.UNSEEN
        row = self._tx.fetch_one(_SELECT_STATE, (self._source, event_id))
        return InboxState.UNSEEN if row is None else InboxState(row[0])

    def find_row(self, event_id: bytes) -> InboxRow | None:
        row = self._tx.fetch_one(_SELECT_ROW, (self._source, event_id))
        return None if row is None else InboxRow(InboxState(row[0]), *row[1:])

    def record_event(
        self, envelope: Envelope, input: InboxInput, reason: str | None = None
    ) -> None:
        """Write down the state an input brings an event to."""
        self._tx.execute(_RECORD[input], self._row_values(envelope, reason))

    def record_accepted(self, envelopes: list[Envelope]) -> None:
        rows = [self._row_values(envelope, None) for envelope in envelopes]
        self._tx.execute_many(_RECORD[InboxInput.ACCEPT], rows)

    def change_state(self, event_id: bytes, input: InboxInput) -> None:
        """Change the state of an event that has a row."""
        self._tx.execute(_MOVE[input], (self._source, event_id))

    def _row_values(self, envelope: Envelope, reason: str | None) -> Row:
        return (
            self._source,
            parse_event_id(envelope.event_id),
            envelope.to_agent_id or "",
            envelope.source_agent_id,
            origin_of(envelope),
            envelope.corr_id or envelope.event_id,
            envelope.pair_seq,
            self._tx.now,
            reason,
        )


def origin_of(envelope: Envelope) -> str:
    """The node for which an event was forwarded; empty if it is the event's own source."""
    origin = envelope.origin_node_id
    return "" if origin is None or origin == envelope.source_node_id else origin


def select_undecided(tx: Tx) -> list[Row]:
    """(source, event id, mailbox, corr id) of every event that is held or offered."""
    return tx.fetch_all(_SELECT_UNDECIDED)
