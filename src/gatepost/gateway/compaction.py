"""Forgetting, in small steps beside the traffic."""

from gatepost.delivery import retention
from gatepost.gateway.core import Core
from gatepost.journal import Tx
from gatepost.mailbox import sweep

_UNUSED_BLOB_MS = 3_600_000

_DELIVERIES = """
DELETE FROM delivery WHERE event_id IN (
    SELECT event_id FROM delivery WHERE processed_at <= ? LIMIT ?
)
"""
# A key is needed as long as its message, which may live longer than most.
_KEYS = """
DELETE FROM idempotency WHERE (agent, key) IN (
    SELECT agent, key FROM idempotency i WHERE at <= ?
    AND NOT EXISTS (SELECT 1 FROM delivery d WHERE d.event_id = i.event_id) LIMIT ?
)
"""
# A blob is needed by mail, by what may have to be sent again, and by what is not accepted yet.
_BLOBS = """
DELETE FROM blob WHERE created_at <= ? AND NOT EXISTS (
    SELECT 1 FROM blob_use u JOIN body b ON b.id = u.mail WHERE u.digest = blob.digest
) AND NOT EXISTS (
    SELECT 1 FROM delivery d WHERE d.digest = blob.digest AND d.processed_at IS NULL
) AND digest NOT IN (
    SELECT digest FROM undelivered WHERE digest IS NOT NULL
    UNION ALL
    SELECT ref FROM (
        SELECT CAST(body AS TEXT) ->> '$.payloadRef.digest' AS ref FROM held
        UNION ALL
        SELECT CAST(body AS TEXT) ->> '$.payloadRef.digest' FROM offered
    ) WHERE ref IS NOT NULL
) RETURNING digest
"""


async def compact(core: Core) -> int:
    """Forget what is old enough: bodies, tombstones, keys, blobs. Returns how much."""
    total = 0
    while gone := await core.commit(lambda tx: _forget(core, tx)):
        total += gone
    await core.commit(core.bounds.cut_off_readers)
    for digest in await core.commit(_unused_blobs):
        core.blobs.delete(digest)
        total += 1
    return total


def _forget(core: Core, tx: Tx) -> int:
    journal = core.settings.journal
    bodies_before = tx.now - int(journal.retain_acked_secs * 1000)
    rows_before = tx.now - int(journal.tombstone_secs * 1000)
    gone = sweep.forget(tx, bodies_before, rows_before, journal.sweep_batch)
    for sql in (_DELIVERIES, _KEYS):
        tx.run(sql, (rows_before, journal.sweep_batch))
        gone += tx.changes()
    return gone + retention.forget_closed(tx, core.delivery, rows_before, journal.sweep_batch)


async def remove_orphans(core: Core) -> int:
    """Remove blobs that a crash kept from ever being known. Only before anything is uploaded."""
    known = {row[0] for row in await core.read(lambda tx: tx.rows("SELECT digest FROM blob"))}
    orphans = {f"sha256:{path.name}" for path in core.state.blobs.iterdir()} - known
    for digest in orphans:
        core.blobs.delete(digest)
    return len(orphans)


def _unused_blobs(tx: Tx) -> list[str]:
    digests = [row[0] for row in tx.rows(_BLOBS, (tx.now - _UNUSED_BLOB_MS,))]
    tx.many("DELETE FROM blob_use WHERE digest = ?", [(digest,) for digest in digests])
    return digests
