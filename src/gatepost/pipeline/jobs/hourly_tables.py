"""Makes the tables that are made of deliveries an hour at a time, on executors.

An executor reads the files of an hour and makes all its tables, so nothing has to be exchanged. An
hour with very many deliveries is cut by sending node: each row of these tables is about one sender,
or adds up with the rows of other senders.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from gatepost.pipeline.delta_tables import StoredFile
from gatepost.pipeline.jobs.executors import write_on_executors
from gatepost.pipeline.jobs.shares import pack_shares
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import WrittenFile, read_file
from gatepost.pipeline.tables import cases, slo, tasks
from gatepost.pipeline.tables.hour_deliveries import HOUR_COLUMNS, HOUR_TEXT_COLUMNS, HourDeliveries
from gatepost.pipeline.tables.schemas import CASES, PACES, SLO, TASKS, TRAFFIC, TableSpec
from gatepost.pipeline.transport import Transport

# About how many deliveries are processed at once, and how many by one executor.
_AT_ONCE = 1_000_000
_SHARE_ROWS = 500_000

_TABLE_BUILDERS: dict[TableSpec, Callable[[HourDeliveries, Objectives], pa.Table]] = {
    SLO: slo.compute_slo,
    TRAFFIC: lambda hour, _: slo.compute_traffic(hour),
    TASKS: lambda hour, _: tasks.select_tasks(hour),
    PACES: lambda hour, _: tasks.compute_paces(hour),
    CASES: cases.select_cases,
}
HOURLY_TABLES: Final = tuple(_TABLE_BUILDERS)


class HourPiece(Struct, frozen=True):
    """The deliveries of an hour whose sending nodes hash to `part` of `parts`."""

    hour: int
    files: list[str]
    rows: int
    part: int
    parts: int


def write_hourly_tables(
    transport: Transport,
    deliveries: Sequence[StoredFile],
    folders: Mapping[TableSpec, str],
    objectives: Objectives,
) -> dict[TableSpec, list[WrittenFile]]:
    """Write these tables for the hours of these files of deliveries, each into its folder."""
    tables = list(folders)

    def make_tables(share: list[HourPiece]) -> Iterator[tuple[TableSpec, pa.Table]]:
        for piece in share:
            hour = HourDeliveries(piece.hour, read_piece(piece, HOUR_COLUMNS))
            for table in tables:
                yield table, _TABLE_BUILDERS[table](hour, objectives)

    return write_on_executors(transport, plan_shares(transport, deliveries), make_tables, folders)


def plan_shares(transport: Transport, deliveries: Sequence[StoredFile]) -> list[list[HourPiece]]:
    """The hours of these files of deliveries in pieces, shared among all executors."""
    enough = min(_SHARE_ROWS, sum(file.rows for file in deliveries) // transport.slots)
    return pack_shares(_cut_pieces(deliveries), enough)


def _cut_pieces(deliveries: Sequence[StoredFile]) -> Iterator[HourPiece]:
    by_hour: dict[int, list[StoredFile]] = {}
    for file in deliveries:
        by_hour.setdefault(file.value, []).append(file)
    for hour, files in sorted(by_hour.items()):
        rows = sum(file.rows for file in files)
        parts = -(-rows // _AT_ONCE)
        for part in range(parts):
            yield HourPiece(hour, [file.uri for file in files], rows // parts, part, parts)


def read_piece(piece: HourPiece, columns: Sequence[str]) -> pa.Table:
    """Read these columns of a piece; `node` must be one of them."""
    tables = (read_file(uri, columns, HOUR_TEXT_COLUMNS) for uri in piece.files)
    return pa.concat_tables([_filter_part(table, piece) for table in tables])


def _filter_part(deliveries: pa.Table, piece: HourPiece) -> pa.Table:
    if piece.parts == 1:
        return deliveries
    nodes = deliveries["node"].unify_dictionaries().combine_chunks()
    names = nodes.dictionary.to_pylist()
    mine = np.array([zlib.crc32(name.encode()) % piece.parts == piece.part for name in names])
    return deliveries.filter(pa.array(mine[nodes.indices.to_numpy()]))
