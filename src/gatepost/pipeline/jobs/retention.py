"""Old hours leave the tables. The archive keeps everything; a backfill brings them back.

What is still told about an hour that is gone, such as a receipt that comes weeks later, makes a row
of `deliveries` without its message there (`orphan`), until the next time.
"""

from gatepost.pipeline.jobs.apply import Tables
from gatepost.pipeline.sink import largest, table_exists
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import HOUR_MS

DAY_MS = 24 * HOUR_MS


def oldest(tables: str, days: int) -> int | None:
    """The first moment of the last `days` days before the latest event; None before any."""
    path = Tables(tables).path(schemas.ACTIVITY)
    latest = largest(path, "last_at") if table_exists(path) else None
    return None if latest is None else latest - days * DAY_MS


def forget(tables: str, before: int) -> dict[str, int]:
    """Drop whole hours that ended before this moment; says how many files went, by table."""
    from deltalake import DeltaTable

    known, gone = Tables(tables), {}
    for table in schemas.TABLES.values():
        path = known.path(table)
        if table_exists(path) and (condition := _older(table, before // HOUR_MS)):
            gone[table.name] = DeltaTable(path).delete(condition)["num_removed_files"]
    return gone


def _older(table: schemas.Table, hour: int) -> str | None:
    """Which rows are older than this hour; None for tables made anew with every batch."""
    if table.partition == "hour":
        return f"hour < {hour}"
    if table is schemas.ACTIVITY:
        return f"window_start < {hour * HOUR_MS}"
    return None
