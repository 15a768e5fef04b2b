"""Deletion of expired journal rows and blobs, in small transactions beside the traffic."""

from gatepost.core.batch_commit import commit_until_none
from gatepost.core.gateway_core import Core
from gatepost.delivery import retention
from gatepost.journal import Tx
from gatepost.mailbox import sweep

_UNUSED_BLOB_MS = 3_600_000

# A reply is kept for the lifetime of its message, for its sender may ask for it until then.
_DELETE_DELIVERIES = """
DELETE FROM delivery WHERE event_id IN (
    SELECT event_id FROM delivery WHERE processed_at <= ?1
    AND (expires_at <= ?3 OR reply IS NULL AND reply_ref IS NULL) LIMIT ?2
)
"""
# An idempotency key is kept as long as its delivery, which may outlive the tombstone time.
_DELETE_IDEMPOTENCY_KEYS = """
DELETE FROM idempotency WHERE (agent, key) IN (
    SELECT agent, key FROM idempotency i WHERE at <= ?
    AND NOT EXISTS (SELECT 1 FROM delivery d WHERE d.event_id = i.event_id) LIMIT ?
)
"""
# A blob is in use by mail, by open deliveries, by replies, by tasks, by undelivered messages, and
# by events that are held or offered but not accepted yet.
_DELETE_UNUSED_BLOBS = """
DELETE FROM blob WHERE created_at <= ? AND NOT EXISTS (
    SELECT 1 FROM blob_use u JOIN body b ON b.id = u.mail WHERE u.digest = blob.digest
) AND NOT EXISTS (
    SELECT 1 FROM delivery d WHERE d.digest = blob.digest AND d.processed_at IS NULL
) AND NOT EXISTS (
    SELECT 1 FROM delivery d WHERE d.reply_ref = blob.digest
) AND NOT EXISTS (
    SELECT 1 FROM task_payload t
    WHERE t.request_ref = blob.digest OR t.result_ref = blob.digest
) AND digest NOT IN (
    SELECT digest FROM undelivered WHERE digest IS NOT NULL
    UNION ALL
    SELECT digest FROM mirror WHERE digest IS NOT NULL
    UNION ALL
    SELECT ref FROM (
        SELECT CAST(body AS TEXT) ->> '$.payloadRef.digest' AS ref FROM held
        UNION ALL
        SELECT CAST(body AS TEXT) ->> '$.payloadRef.digest' FROM offered
    ) WHERE ref IS NOT NULL
) RETURNING digest
"""


async def compact_journal(core: Core) -> int:
    """Delete expired bodies, tombstones, idempotency keys and blobs; return how many."""
    total = await commit_until_none(core, lambda tx: _delete_expired_batch(core, tx))
    await core.commit(core.bounds.cut_off_readers)
    for digest in await core.commit(_delete_unused_blobs):
        core.blobs.delete(digest)
        total += 1
    return total


def _delete_expired_batch(core: Core, tx: Tx) -> int:
    journal = core.settings.journal
    bodies_before = tx.now - int(journal.retain_acked_secs * 1000)
    rows_before = tx.now - int(journal.tombstone_secs * 1000)
    deleted = sweep.forget_settled_mail(tx, bodies_before, rows_before, journal.sweep_batch)
    tx.execute(_DELETE_DELIVERIES, (rows_before, journal.sweep_batch, tx.now))
    deleted += tx.changed_rows()
    tx.execute(_DELETE_IDEMPOTENCY_KEYS, (rows_before, journal.sweep_batch))
    deleted += tx.changed_rows()
    return deleted + retention.forget_closed(tx, core.delivery, rows_before, journal.sweep_batch)


async def remove_orphan_blobs(core: Core) -> int:
    """Remove blob files the journal does not know, left by a crash.

    Call it before any upload starts: a blob file exists before its journal row.
    """
    known = {row[0] for row in await core.read(lambda tx: tx.fetch_all("SELECT digest FROM blob"))}
    orphans = {f"sha256:{path.name}" for path in core.state.blobs.iterdir()} - known
    for digest in orphans:
        core.blobs.delete(digest)
    return len(orphans)


def _delete_unused_blobs(tx: Tx) -> list[str]:
    digests = [row[0] for row in tx.fetch_all(_DELETE_UNUSED_BLOBS, (tx.now - _UNUSED_BLOB_MS,))]
    tx.execute_many("DELETE FROM blob_use WHERE digest = ?", [(digest,) for digest in digests])
    return digests
