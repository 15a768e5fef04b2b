"""The ledger of all messages in the tables: the outcome of every message that was sent."""

from gatepost.ledger import Ledger, add_ledgers
from gatepost.pipeline.delta_tables import StoredFile, list_files, table_exists
from gatepost.pipeline.jobs.executors import combine_on_executor
from gatepost.pipeline.jobs.shares import pack_shares
from gatepost.pipeline.jobs.table_update import TableFolder
from gatepost.pipeline.kernels.message_ledger import LEDGER_COLUMNS, count_ledger
from gatepost.pipeline.table_files import read_columns
from gatepost.pipeline.tables.schemas import DELIVERIES
from gatepost.pipeline.transport import Transport

# About how many deliveries one executor counts.
_SHARE_ROWS = 1_000_000


def read_ledger(transport: Transport, tables: str) -> Ledger | None:
    """Count the deliveries of all nodes; None if their table does not exist yet."""
    path = TableFolder(tables).table_path(DELIVERIES)
    if not table_exists(path):
        return None

    def count_share(share: list[StoredFile]) -> Ledger:
        return add_ledgers(
            count_ledger(read_columns(DELIVERIES, file.uri, LEDGER_COLUMNS)) for file in share
        )

    shares = pack_shares(list_files(path, "hour"), _SHARE_ROWS)
    return combine_on_executor(transport, shares, count_share, add_ledgers) or Ledger()
