"""Deletion of expired journal rows and blobs, in small transactions beside the traffic."""

from gatepost.core.batch_commit import commit_until_none
from gatepost.core.gateway_core import Core
from gatepost.core.mirror_queue import MIRRORED_BLOBS_SQL
from gatepost.delivery import retention
from gatepost.delivery.blob_records import all_digests, delete_unused_blobs
from gatepost.delivery.inbox.held_events import BLOBS_OF_EVENTS_SQL
from gatepost.journal import Tx
from gatepost.mailbox import sweep
from gatepost.tasks.task_table import USES_BLOB_SQL

_UNUSED_BLOB_MS = 3_600_000

# A blob is also in use by tasks, by copies for a legacy document, and by events that are held or
# offered but not accepted yet.
_USES = (USES_BLOB_SQL,)
_USED_DIGESTS = (MIRRORED_BLOBS_SQL, BLOBS_OF_EVENTS_SQL)


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
    return deleted + retention.forget_closed(tx, core.delivery, rows_before, journal.sweep_batch)


async def remove_orphan_blobs(core: Core) -> int:
    """Remove blob files the journal does not know, left by a crash.

    Call it before any upload starts: a blob file exists before its journal row.
    """
    known = set(await core.read(all_digests))
    orphans = {f"sha256:{path.name}" for path in core.state.blobs.iterdir()} - known
    for digest in orphans:
        core.blobs.delete(digest)
    return len(orphans)


def _delete_unused_blobs(tx: Tx) -> list[str]:
    return delete_unused_blobs(tx, tx.now - _UNUSED_BLOB_MS, _USES, _USED_DIGESTS)
