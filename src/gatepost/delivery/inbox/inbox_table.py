"""The inbox in the journal: one row for each tracked event that was taken from another outbox."""

from collections import Counter
from typing import NamedTuple

from gatepost.delivery.event_mail import origin_of
from gatepost.delivery.inbox.inbox_pairs import PairKey
from gatepost.delivery.inbox.inbox_states import (
    TRANSITIONS,
    UNDECIDED,
    InboxInput,
    InboxState,
    transition_sql,
)
from gatepost.events import Envelope, parse_event_id
from gatepost.journal.transaction import Row, Tx

_LOOK_UP_AT_ONCE = 200

# Whether the event `{event}` of `{source}` was taken and is remembered.
IS_TAKEN_SQL = "EXISTS (SELECT 1 FROM inbox i WHERE i.source = {source} AND i.event_id = {event})"

_SELECT_STATE = "SELECT state FROM inbox WHERE source = ? AND event_id = ?"
_SELECT_ROW = """
SELECT state, sender, mailbox, corr_id, pair_seq, reason, origin_node FROM inbox
WHERE source = ? AND event_id = ?
"""
_SELECT_HELD_SINCE = """
SELECT at FROM inbox WHERE source = ? AND event_id = ? AND state = 'held'
"""
_SELECT_LOWEST_OFFERED = """
SELECT min(pair_seq) FROM inbox WHERE source = ? AND sender = ? AND mailbox = ? AND origin_node = ?
    AND state = 'offered' AND pair_seq > ?
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


def find_unseen(tx: Tx, source: str, envelopes: list[Envelope]) -> set[bytes]:
    """The events that were never seen before, in one query for many."""
    ids = [parse_event_id(envelope.event_id) for envelope in envelopes]
    unseen: set[bytes] = set()
    for start in range(0, len(ids), _LOOK_UP_AT_ONCE):
        some = ids[start : start + _LOOK_UP_AT_ONCE]
        marks = ", ".join("?" * len(some))
        query = f"SELECT event_id FROM inbox WHERE source = ? AND event_id IN ({marks})"
        seen = {row[0] for row in tx.fetch_all(query, (source, *some))}
        unseen |= set(some) - seen
    if len(set(ids)) < len(ids):
        # An event that is twice in a batch is not new the second time.
        unseen -= {id for id, times in Counter(ids).items() if times > 1}
    return unseen


def state_of(tx: Tx, source: str, event_id: bytes) -> InboxState:
    row = tx.fetch_one(_SELECT_STATE, (source, event_id))
    return InboxState.UNSEEN if row is None else InboxState(row[0])


def find_row(tx: Tx, source: str, event_id: bytes) -> InboxRow | None:
    row = tx.fetch_one(_SELECT_ROW, (source, event_id))
    return None if row is None else InboxRow(InboxState(row[0]), *row[1:])


def held_since(tx: Tx, source: str, event_id: bytes) -> int | None:
    """Since when an event is held; None if it is not."""
    row = tx.fetch_one(_SELECT_HELD_SINCE, (source, event_id))
    return None if row is None else int(row[0])


def lowest_offered(tx: Tx, key: PairKey, above: int) -> int | None:
    """The lowest number of a pair above another whose offer is accepted and undecided."""
    ((number,),) = tx.fetch_all(_SELECT_LOWEST_OFFERED, (*key, above))
    return None if number is None else int(number)


def record_event(
    tx: Tx, source: str, envelope: Envelope, input: InboxInput, reason: str | None = None
) -> None:
    """Write the state to which an input brings an event."""
    tx.execute(_RECORD[input], _row_values(tx, source, envelope, reason))


def record_events(tx: Tx, source: str, envelopes: list[Envelope], input: InboxInput) -> None:
    """Write the state to which an input brings events."""
    rows = [_row_values(tx, source, envelope, None) for envelope in envelopes]
    tx.execute_many(_RECORD[input], rows)


def change_state(tx: Tx, source: str, event_id: bytes, input: InboxInput) -> None:
    """Change the state of an event that has a row."""
    tx.execute(_MOVE[input], (source, event_id))


def _row_values(tx: Tx, source: str, envelope: Envelope, reason: str | None) -> Row:
    return (
        source,
        parse_event_id(envelope.event_id),
        envelope.to_agent_id or "",
        envelope.source_agent_id,
        origin_of(envelope),
        envelope.corr_id or envelope.event_id,
        envelope.pair_seq,
        tx.now,
        reason,
    )


def select_undecided(tx: Tx) -> list[Row]:
    """(source, event id, mailbox, corr id) of every event that is held or offered."""
    return tx.fetch_all(_SELECT_UNDECIDED)
