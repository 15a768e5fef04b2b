"""Computes the tables that depend on deliveries, hour by hour, on executors.

Each file of deliveries is read once. An executor that reads all files of an hour makes all its
tables, so nothing has to be exchanged. The files of an hour with very many deliveries are read by
several executors. Tasks, paces and cases are made where a file is read, and traffic is summed up
there. Service levels need all deliveries of a node in a window, so these come together by node and
window: one sender with millions of deliveries an hour does not land on one executor.

The tables are partitioned by day, and whole days are replaced: the rows of the other hours of a day
are copied from its former files.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from gatepost.pipeline.delta_tables import StoredFile
from gatepost.pipeline.jobs.shares import even_share_rows, pack_shares
from gatepost.pipeline.kernels import cases, slo, tasks
from gatepost.pipeline.kernels.blocks import decode_block, encode_block
from gatepost.pipeline.kernels.columns import Numbers
from gatepost.pipeline.kernels.hour_deliveries import (
    HOUR_COLUMNS,
    HOUR_TEXT_COLUMNS,
    SLO_COLUMNS,
    HourDeliveries,
)
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import WrittenFile
from gatepost.pipeline.table_files import TableFiles, copy_rows, read_columns, write_rows
from gatepost.pipeline.tables.schemas import (
    CASES,
    DELIVERIES,
    PACES,
    SLO,
    TASKS,
    TRAFFIC,
    TableSpec,
)
from gatepost.pipeline.transport import RESULT_PART, Block, FoldStep, PartBlock, Transport

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

_FILE, _LEVELS, _SUMS = "file", "levels", "sums"


class HourPiece(Struct, frozen=True):
    """Files of one hour. If other pieces hold the rest of it, its `parts` are exchanged.

    These are numbered from `part` on.
    """

    hour: int
    files: list[str]
    rows: int
    part: int = 0
    parts: int = 0


class KeptRows(Struct, frozen=True):
    """Files of one day of a table; rows outside these hours are kept."""

    table: str
    files: list[str]
    without: list[int]
    rows: int


def write_hourly_tables(
    transport: Transport,
    deliveries: Sequence[StoredFile],
    folders: Mapping[TableSpec, str],
    objectives: Objectives,
    kept: Sequence[KeptRows] = (),
) -> dict[TableSpec, list[WrittenFile]]:
    """Write these tables for the hours of these files of deliveries, each into its folder.

    The rows that are `kept` are written along, as far as their tables are.
    """
    kernel = _HourKernel(dict(folders), objectives)
    pieces = list(_cut_pieces(deliveries))
    last = max((piece.part + piece.parts for piece in pieces), default=0)
    folds = [FoldStep(last, kernel.fold_blocks)] if last else []
    shares: list[list[HourPiece] | list[KeptRows]] = [
        *pack_shares(pieces, _share_rows(transport, deliveries)),
        *pack_shares(
            [each for each in kept if each.table in kernel.tables],
            even_share_rows(sum(each.rows for each in kept), _AT_ONCE, transport.slots),
        ),
    ]
    made: dict[TableSpec, list[WrittenFile]] = {table: [] for table in folders}
    by_name = {table.name: table for table in folders}
    for block in transport.run(shares, kernel.read_share, *folds):
        _, named = decode_block(block)
        for row in named.to_pylist():
            made[by_name[row["table"]]].append(WrittenFile.decode(row["file"]))
    return made


def plan_shares(transport: Transport, deliveries: Sequence[StoredFile]) -> list[list[HourPiece]]:
    """The files in shares for work that adds up, whatever the order of deliveries."""
    pieces = [HourPiece(file.value, [file.uri], file.rows) for file in deliveries]
    return pack_shares(pieces, _share_rows(transport, deliveries))


def _share_rows(transport: Transport, deliveries: Sequence[StoredFile]) -> int:
    rows = sum(file.rows for file in deliveries)
    return even_share_rows(rows, _SHARE_ROWS, transport.slots)


def _cut_pieces(deliveries: Sequence[StoredFile]) -> Iterator[HourPiece]:
    """One piece for each hour, or for each file of an hour with very many deliveries."""
    by_hour: dict[int, list[StoredFile]] = {}
    for file in deliveries:
        by_hour.setdefault(file.value, []).append(file)
    next_part = 0
    for hour, files in sorted(by_hour.items()):
        rows = sum(file.rows for file in files)
        parts = -(-rows // _AT_ONCE)
        if parts <= 1:
            yield HourPiece(hour, [file.uri for file in files], rows)
            continue
        yield from (HourPiece(hour, [f.uri], f.rows, next_part, parts) for f in files)
        next_part += parts


def read_piece(piece: HourPiece, columns: Sequence[str]) -> pa.Table:
    """Read these columns of a piece."""
    read = (read_columns(DELIVERIES, uri, columns, HOUR_TEXT_COLUMNS) for uri in piece.files)
    return pa.concat_tables(read)


class _HourKernel:
    """Reads pieces of hours, and makes their tables."""

    def __init__(self, folders: dict[TableSpec, str], objectives: Objectives) -> None:
        self._folders = folders
        self._objectives = objectives
        self.tables = {table.name: table for table in folders}

    def read_share(self, share: list[HourPiece] | list[KeptRows]) -> Iterator[PartBlock]:
        """Write the tables of these hours, or what is kept of others, to few files for each day."""
        files = {table: TableFiles(table, folder) for table, folder in self._folders.items()}
        for piece in share:
            if isinstance(piece, KeptRows):
                yield from self._copy_rows(piece)
                continue
            hour = HourDeliveries(piece.hour, read_piece(piece, HOUR_COLUMNS))
            if piece.parts:
                yield from self._read_part_of_hour(piece, hour)
                continue
            for table, writer in files.items():
                rows = _TABLE_BUILDERS[table](hour, self._objectives)
                yield from _file_blocks(table, writer.add_rows(rows))
        for table, writer in files.items():
            yield from _file_blocks(table, writer.close())

    def _copy_rows(self, kept: KeptRows) -> Iterator[PartBlock]:
        table = self.tables[kept.table]
        others = ~pc.field("hour").isin(kept.without)
        copied = copy_rows(table, kept.files, others, self._folders[table])
        yield from _file_blocks(table, copied)

    def _read_part_of_hour(self, piece: HourPiece, hour: HourDeliveries) -> Iterator[PartBlock]:
        for table in self._folders:
            if table is SLO:
                yield from self._split_levels(piece, hour)
            elif table is TRAFFIC:
                yield piece.part, encode_block(_SUMS, slo.sum_traffic(hour))
            else:
                yield from self._write(
                    table, _TABLE_BUILDERS[table](hour, self._objectives), piece.part
                )

    def _split_levels(self, piece: HourPiece, hour: HourDeliveries) -> Iterator[PartBlock]:
        """The deliveries by node and window."""
        window = slo.slo_window(hour.sent_at, piece.hour, self._objectives)
        key = _hash_nodes(hour) + window // self._objectives.window_ms
        rows = hour.deliveries.select(SLO_COLUMNS).append_column(
            "hour", pa.array(np.full(len(hour), piece.hour, np.int64))
        )
        for part in range(piece.parts):
            chosen = rows.filter(pa.array(key % piece.parts == part))
            if chosen.num_rows:
                yield piece.part + part, encode_block(_LEVELS, chosen)

    def fold_blocks(self, blocks: Iterator[Block]) -> Iterator[PartBlock]:
        """Make service levels and traffic of all blocks of a part; files pass through."""
        levels: list[pa.Table] = []
        sums: list[pa.Table] = []
        for block in blocks:
            name, table = decode_block(block)
            if name == _FILE:
                yield RESULT_PART, bytes(block)
            else:
                (levels if name == _LEVELS else sums).append(table)
        if levels:
            rows = pa.concat_tables(levels)
            hour = HourDeliveries(rows["hour"][0].as_py(), rows)
            yield from self._write(SLO, slo.compute_slo(hour, self._objectives))
        if sums:
            yield from self._write(TRAFFIC, slo.finish_traffic(sums))

    def _write(
        self, table: TableSpec, rows: pa.Table, part: int = RESULT_PART
    ) -> Iterator[PartBlock]:
        return _file_blocks(table, write_rows(table, rows, self._folders[table]), part)


def _file_blocks(
    table: TableSpec, files: Iterable[WrittenFile], part: int = RESULT_PART
) -> Iterator[PartBlock]:
    for file in files:
        described = {"table": [table.name], "file": [file.encode()]}
        yield part, encode_block(_FILE, pa.table(described))


def _hash_nodes(hour: HourDeliveries) -> Numbers:
    """A number for each row that depends on its sending node alone."""
    nodes = hour.table["node"].cast(pa.string()).dictionary_encode().combine_chunks()
    known: Iterable[str] = nodes.dictionary.to_pylist()
    hashes = np.array([zlib.crc32(name.encode()) for name in known], np.int64)
    found: Numbers = hashes[nodes.indices.to_numpy()]
    return found
