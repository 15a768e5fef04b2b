"""Find messages that were sent from here: by agents, conversation, term of the ledger and time."""

from msgspec import Struct

from gatepost.errors import InvalidId
from gatepost.events import format_event_id, parse_event_id
from gatepost.journal.transaction import Row, Tx
from gatepost.ledger import Term, term_of
from gatepost.wire.overview_views import SentMessageView

# Ids are drawn in the order of sending, so that the newest come first without an index.
_SELECT_MESSAGES = """
SELECT event_id, from_agent, to_agent, corr_id, kind, state, outcome, reason, node, attempt,
    emitted_at, accepted_at, processed_at, next_at
FROM delivery WHERE kind <> 'reply' AND origin IS NULL AND event_id < ?
"""
# The term of a message, as `term_of` says it.
_TERM = """CASE WHEN state IN ('emitted', 'retry_pending') THEN 'waiting'
    WHEN state IN ('accepted', 'incident') THEN 'in_motion'
    WHEN state = 'replied' OR outcome IN ('ok', 'kept') THEN 'processed'
    WHEN outcome = 'expired' OR (state = 'dead_letter' AND reason = 'expired') THEN 'expired'
    ELSE 'dead_letters' END"""
_NEWEST_FIRST = " ORDER BY event_id DESC"
_AFTER_ALL = b"\xff" * 16


class SentFilter(Struct, frozen=True):
    """Selects messages that match all that is given. Times are epoch milliseconds."""

    agent: str | None = None
    corr_id: str | None = None
    term: Term | None = None
    node: str | None = None
    since: int | None = None
    until: int | None = None


def find_sent(tx: Tx, wanted: SentFilter, limit: int, before: str = "") -> list[SentMessageView]:
    """Messages that match, newest first, from the one before `before` on."""
    sql, values = _select(wanted, parse_event_id(before) if before else _AFTER_ALL)
    rows = tx.fetch_all(f"{sql} LIMIT ?", (*values, limit))
    return [_view_message(row, term_of(row[5], row[6], row[7])) for row in rows]


def find_sent_message(tx: Tx, ref: str) -> SentMessageView | None:
    """The message with this id, if it was sent from here."""
    try:
        id = parse_event_id(ref)
    except InvalidId:
        return None
    row = tx.fetch_one(f"{_SELECT_MESSAGES} AND event_id = ?", (_AFTER_ALL, id))
    return None if row is None else _view_message(row, term_of(row[5], row[6], row[7]))


def _select(wanted: SentFilter, before: bytes) -> tuple[str, list[bytes | str | int]]:
    sql = _SELECT_MESSAGES
    values: list[bytes | str | int] = [before]
    if wanted.agent is not None:
        sql += " AND ? IN (from_agent, to_agent)"
        values.append(wanted.agent)
    exact = (("corr_id =", wanted.corr_id), ("node =", wanted.node), (f"{_TERM} =", wanted.term))
    for name, value in exact:
        if value is not None:
            sql += f" AND {name} ?"
            values.append(value)
    for name, moment in (("emitted_at >=", wanted.since), ("emitted_at <", wanted.until)):
        if moment is not None:
            sql += f" AND {name} ?"
            values.append(moment)
    return sql + _NEWEST_FIRST, values


def _view_message(row: Row, term: Term) -> SentMessageView:
    id, *known = row
    return SentMessageView(format_event_id(id), term, *known)
