"""Deletes events from the outbox that no reader needs any longer."""

from collections.abc import Callable

from gatepost.journal.outbox_reads import oldest_seq
from gatepost.journal.transaction import Tx

PruneBound = Callable[[Tx], int | None]


def prune_outbox(tx: Tx, through: int, *, read: PruneBound, closed: PruneBound, limit: int) -> int:
    """Delete outbox rows that are no longer needed; return the number. Call it until it is 0.

    The rows must be archived (up to `through`), read by every active subscriber (`read`), and not
    part of an open delivery (`closed`). Commit groups are deleted whole, with their heads. The
    latest head stays, because the chain continues from it.
    """
    bounds = [bound for bound in (read(tx), closed(tx)) if bound is not None]
    oldest = oldest_seq(tx)
    if oldest is None:
        return 0
    last = _last_prunable_seq(tx, oldest, min([through, *bounds]), limit)
    if last is None:
        return 0
    tx.execute("DELETE FROM outbox WHERE seq <= ?", (last,))
    deleted = tx.changed_rows()
    tx.execute(
        "DELETE FROM head WHERE last_seq <= ? AND last_seq < (SELECT max(last_seq) FROM head)",
        (last,),
    )
    return deleted


def _last_prunable_seq(tx: Tx, first: int, through: int, limit: int) -> int | None:
    """The end of the last group to delete now: about `limit` rows, but at least one group."""
    query = "SELECT {} FROM head WHERE last_seq >= ? AND last_seq <= ?"
    some = tx.fetch_one(query.format("max(last_seq)"), (first, min(through, first + limit - 1)))
    if some and some[0] is not None:
        return int(some[0])
    one = tx.fetch_one(query.format("min(last_seq)"), (first, through))
    return int(one[0]) if one and one[0] is not None else None
