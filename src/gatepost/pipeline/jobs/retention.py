"""Drops old hours from the tables. The archive keeps everything, so a backfill restores them.

An event about an hour that was dropped, such as a receipt that comes weeks later, makes a row of
`deliveries` without its message (state `orphan`), until the next time that hour is dropped.
"""

from gatepost.pipeline.jobs.apply import Tables
from gatepost.pipeline.sink import largest, table_exists
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import HOUR_MS

DAY_MS = 24 * HOUR_MS


def oldest(tables: str, days: int) -> int | None:
    """The moment `days` days before the latest event; None if there are no events."""
    path = Tables(tables).path(schemas.ACTIVITY)
    latest = largest(path, "last_at") if table_exists(path) else None
    return None if latest is None else latest - days * DAY_MS


def forget(tables: str, before: int) -> dict[str, int]:
    """Drop whole hours that ended before this moment; returns table → number of files removed."""
    from deltalake import DeltaTable

    folder, removed = Tables(tables), {}
    for table in schemas.TABLES.values():
        path = folder.path(table)
        if table_exists(path) and (condition := _older(table, before // HOUR_MS)):
            removed[table.name] = DeltaTable(path).delete(condition)["num_removed_files"]
    return removed


def _older(table: schemas.Table, hour: int) -> str | None:
    """The SQL condition for older rows; None for tables that every batch makes anew."""
    if table.partition == "hour":
        return f"hour < {hour}"
    if table is schemas.ACTIVITY:
        return f"window_start < {hour * HOUR_MS}"
    return None
