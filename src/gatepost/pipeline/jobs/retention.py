"""Drops old days from the tables. The archive keeps everything, so a backfill restores them.

An event about an hour that was dropped, such as a receipt that comes weeks later, makes a row of
`deliveries` without its message (state `orphan`), until the next time that hour is dropped.
"""

from gatepost.pipeline.delta_tables import require_table, table_exists
from gatepost.pipeline.jobs.batch_ledger import BatchLedger
from gatepost.pipeline.jobs.table_update import TableFolder
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import HOUR_MS, HOURS_A_DAY, day_of

DAY_MS = 24 * HOUR_MS


def oldest_kept(tables: str, days: int) -> int | None:
    """The moment `days` days before the end of the archive; None if there are no events.

    The latest event does not tell it: its clock may be wrong.
    """
    last = BatchLedger(tables).last_batch()
    return last.as_of - days * DAY_MS if last is not None and last.as_of else None


def drop_old_days(tables: str, before: int) -> dict[str, int]:
    """Drop whole days that ended before this moment; returns table → number of files removed."""
    folder, removed = TableFolder(tables), {}
    for table in schemas.TABLES.values():
        path = folder.table_path(table)
        if table_exists(path) and (condition := _older_than(table, before // DAY_MS)):
            removed[table.name] = require_table(path).delete(condition)["num_removed_files"]
    return removed


def _older_than(table: schemas.TableSpec, day: int) -> str | None:
    """The SQL condition for older rows; None for tables that every batch makes anew."""
    if table.partition == "hour":
        return f"hour < {day * HOURS_A_DAY}"
    if table.partition == "day":
        return f"day < '{day_of(day)}'"
    if table is schemas.ACTIVITY:
        return f"window_start < '{day_of(day)}T00:00:00Z'"
    return None
