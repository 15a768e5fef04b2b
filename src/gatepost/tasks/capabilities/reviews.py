"""The reviews in the journal: misfires for a person to review, and the decisions about them.

`misfires.py` opens reviews for misfires seen by this gateway; the pipeline posts others.
"""

from collections.abc import Sequence

import msgspec

from gatepost.journal.transaction import Row, Tx
from gatepost.wire.report_views import ReviewView

_COLUMNS = """
id, capability_id, delegation_skill_version, executor_skill_version, failure_class, count,
corr_ids, event_ids, raised_at, status, settled_at, settled_by, note
"""
_SELECT_NEWEST = f"""
SELECT {_COLUMNS} FROM review WHERE ?1 IS NULL OR status = ?1 ORDER BY raised_at DESC, id LIMIT ?
"""
_SELECT = f"SELECT {_COLUMNS} FROM review WHERE id = ?"
_POST = f"""
INSERT INTO review ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', NULL, NULL, '')
ON CONFLICT (id) DO UPDATE SET count = max(count, excluded.count), corr_ids = excluded.corr_ids,
    event_ids = excluded.event_ids WHERE status = 'open'
"""
_CLOSE = """
UPDATE review SET status = ?, settled_at = ?, settled_by = ?, note = ?
WHERE id = ? AND status = 'open'
"""


def post_reviews(tx: Tx, reviews: Sequence[ReviewView]) -> None:
    """Record reviews; of one that is open already, count and samples change."""
    tx.execute_many(_POST, [_row_of(each) for each in reviews])


def close_review(
    tx: Tx, id: str, status: str, at: int | None, by: str | None, note: str = ""
) -> None:
    tx.execute(_CLOSE, (status, at, by, note, id))


def find_review(tx: Tx, id: str) -> ReviewView | None:
    row = tx.fetch_one(_SELECT, (id,))
    return None if row is None else _review_from_row(row)


def list_reviews(tx: Tx, status: str | None, limit: int) -> list[ReviewView]:
    """The newest reviews, of one status or of all."""
    return [_review_from_row(row) for row in tx.fetch_all(_SELECT_NEWEST, (status, limit))]


def count_open_reviews(tx: Tx) -> int:
    ((count,),) = tx.fetch_all("SELECT count(*) FROM review WHERE status = 'open'")
    return int(count)


def _row_of(review: ReviewView) -> Row:
    versions = (review.delegation_skill_version, review.executor_skill_version)
    samples = (msgspec.json.encode(ids).decode() for ids in (review.corr_ids, review.event_ids))
    head = (review.id, review.capability_id, *versions, review.failure_class, review.count)
    return (*head, *samples, review.raised_at)


def _review_from_row(row: Row) -> ReviewView:
    values = list(row)
    values[6:8] = map(msgspec.json.decode, values[6:8])
    return ReviewView(*values)
