"""Which events of the inbox may be forgotten, and which have expired undecided."""

from gatepost.delivery.forward import IS_FORWARD_OPEN_SQL
from gatepost.journal.outbox_reads import UNREAD_SQL
from gatepost.journal.transaction import Row, Tx
from gatepost.mailbox.lookup import IS_UNSETTLED_SQL

_HEX = "lower(hex(event_id))"
_PARTS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
_MSG_ID = " || '-' || ".join(f"substr({_HEX}, {start}, {size})" for start, size in _PARTS)
# A taken event is remembered as long as it may come again: until its mail is settled, and until
# its sender has read the receipts for it.
_FORGET_TAKEN = f"""
DELETE FROM inbox WHERE (source, event_id) IN (
    SELECT source, event_id FROM inbox WHERE at <= ? AND state NOT IN ('held', 'offered')
    AND NOT {IS_UNSETTLED_SQL.format(mailbox="inbox.mailbox", msg_id=_MSG_ID)}
    AND NOT {IS_FORWARD_OPEN_SQL.format(source="inbox.source", event="inbox.event_id")}
    AND NOT EXISTS ({UNREAD_SQL.format(ref="inbox.event_id", node="inbox.source")})
    LIMIT ?
)
"""
# Their sender will not decide about these events.
_SELECT_EXPIRED = """
SELECT i.source, i.event_id FROM inbox i
LEFT JOIN held h ON h.source = i.source AND h.sender = i.sender AND h.mailbox = i.mailbox
    AND h.event_id = i.event_id
LEFT JOIN offered o ON o.source = i.source AND o.event_id = i.event_id
WHERE i.at <= ?1 AND i.state IN ('held', 'offered')
AND CAST(coalesce(h.body, o.body) AS TEXT) ->> '$.expiresAt' <= ?2 LIMIT ?3
"""


def forget_taken(tx: Tx, before: int, batch: int) -> int:
    """Forget events that were taken before that time and are closed; returns how many."""
    tx.execute(_FORGET_TAKEN, (before, batch))
    return tx.changed_rows()


def select_expired(tx: Tx, before: int, batch: int) -> list[Row]:
    """(source, event id) of held or offered events that have expired."""
    return tx.fetch_all(_SELECT_EXPIRED, (before, tx.now, batch))
