"""The incidents in the journal: those raised here, and those that the pipeline posted."""

import msgspec

from gatepost.journal.transaction import Row, Tx
from gatepost.wire.report_views import IncidentView

# Incidents are kept longer than the rows that they are about.
_KEEP_MS = 30 * 86_400_000
_KEEP_OF_CLASS = 10_000
# Incidents that are settled in one transaction.
_SWEEP_SIZE = 500

_COLUMNS = """
id, class, subject, detail, raised_at, source, corr_ids, status, settled_at, settled_by, ended_at,
count
"""
_RAISE = """
INSERT OR IGNORE INTO incident (id, class, subject, detail, raised_at, source)
VALUES (?, ?, ?, ?, ?, ?)
"""
_AMEND = """
INSERT INTO incident (id, class, subject, detail, raised_at, source) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET detail = excluded.detail WHERE status = 'open'
"""
# The latest post says how far an incident has got; its status is the operator's.
_POST = """
INSERT INTO incident (id, class, subject, detail, raised_at, source, corr_ids, ended_at, count)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET ended_at = excluded.ended_at, detail = excluded.detail,
    count = coalesce(excluded.count, count), corr_ids = excluded.corr_ids
"""
_CLOSE = """
UPDATE incident SET status = ?, settled_at = ?, settled_by = ? WHERE id = ? AND status = 'open'
"""
_SELECT = f"SELECT {_COLUMNS} FROM incident WHERE id = ?"
_SELECT_POSTED = f"""
SELECT {_COLUMNS} FROM incident WHERE source = ? AND status = 'open'
ORDER BY raised_at DESC LIMIT 500
"""
_SELECT_OPEN = f"""
SELECT {_COLUMNS} FROM incident
WHERE status = 'open' AND (?1 IS NULL OR class = ?1) AND raised_at < ?2
ORDER BY raised_at LIMIT {_SWEEP_SIZE}
"""
_SELECT_NEWEST = f"""
SELECT {_COLUMNS} FROM incident
WHERE raised_at >= ? AND (?2 IS NULL OR class = ?2) ORDER BY raised_at DESC, id LIMIT ?
"""
_COUNT_BY_CLASS = """
SELECT class, count(*) FROM incident WHERE raised_at >= ? AND status = 'open' AND ended_at IS NULL
GROUP BY class ORDER BY class
"""
_COUNT_OPEN = """
SELECT class, count(*) FROM incident WHERE status = 'open' GROUP BY class ORDER BY class LIMIT ?
"""
_FORGET_OLD = """
DELETE FROM incident WHERE id IN (SELECT id FROM incident WHERE raised_at <= ? LIMIT ?)
"""
_COUNT_ALL = "SELECT class, count(*) FROM incident GROUP BY class HAVING count(*) > ?"
_FORGET_OLDEST = """
DELETE FROM incident
WHERE id IN (SELECT id FROM incident WHERE class = ? ORDER BY raised_at LIMIT ?)
"""


def raise_incident(tx: Tx, row: Row) -> bool:
    """Record (id, class, subject, detail, time, source); False if the id is known already."""
    tx.execute(_RAISE, row)
    return bool(tx.changed_rows())


def amend_incident(tx: Tx, row: Row) -> None:
    """Record an incident, or replace the detail of the one that is open."""
    tx.execute(_AMEND, row)


def post_incident(tx: Tx, incident: IncidentView) -> None:
    """Record an incident, or how far one that was posted before has got."""
    head = (incident.id, incident.class_, incident.subject, incident.detail, incident.raised_at)
    corr_ids = msgspec.json.encode(incident.corr_ids).decode()
    tx.execute(_POST, (*head, incident.source, corr_ids, incident.ended_at, incident.count))


def close_incident(tx: Tx, id: str, status: str, at: int | None, by: str | None) -> None:
    tx.execute(_CLOSE, (status, at, by, id))


def find_incident(tx: Tx, id: str) -> IncidentView | None:
    row = tx.fetch_one(_SELECT, (id,))
    return None if row is None else _incident_from_row(row)


def list_newest(tx: Tx, since: int, class_: str | None, limit: int) -> list[IncidentView]:
    """Incidents that were raised at `since` or later, of one class or of all."""
    return [_incident_from_row(row) for row in tx.fetch_all(_SELECT_NEWEST, (since, class_, limit))]


def list_posted(tx: Tx, source: str) -> list[IncidentView]:
    """The open incidents from `source`, newest first."""
    return [_incident_from_row(row) for row in tx.fetch_all(_SELECT_POSTED, (source,))]


def list_oldest_open(tx: Tx, class_: str | None, before: int) -> list[IncidentView]:
    """The next open incidents to settle, of one class or of all."""
    return [_incident_from_row(row) for row in tx.fetch_all(_SELECT_OPEN, (class_, before))]


def count_incidents(tx: Tx, since: int = 0) -> dict[str, int]:
    """Return class → number of open incidents, not over, that were raised at `since` or later."""
    return {row[0]: row[1] for row in tx.fetch_all(_COUNT_BY_CLASS, (since,))}


def open_incidents(tx: Tx, limit: int) -> tuple[tuple[str, int], ...]:
    """(class, count) of the incidents that were not settled, of the first classes."""
    return tuple((row[0], row[1]) for row in tx.fetch_all(_COUNT_OPEN, (limit,)))


def forget_incidents(tx: Tx, batch: int) -> int:
    """Forget incidents that are too old, and the oldest of a class with too many of them."""
    tx.execute(_FORGET_OLD, (tx.now - _KEEP_MS, batch))
    gone = tx.changed_rows()
    for kind, count in tx.fetch_all(_COUNT_ALL, (_KEEP_OF_CLASS,)):
        tx.execute(_FORGET_OLDEST, (kind, min(batch, count - _KEEP_OF_CLASS)))
        gone += tx.changed_rows()
    return gone


def _incident_from_row(row: Row) -> IncidentView:
    values = list(row)
    values[6] = msgspec.json.decode(values[6])
    return IncidentView(*values)
