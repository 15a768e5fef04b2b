"""Makes the tables that are made of deliveries an hour at a time, on executors.

An executor reads the files of an hour and makes all its tables, so nothing has to be exchanged. An
hour with very many deliveries is cut by sending node: each row of these tables is about one sender,
or adds up with the rows of other senders.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from gatepost.pipeline.jobs.spreading import packed, written
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import File, read_file
from gatepost.pipeline.sink import Held
from gatepost.pipeline.tables import cases, slo, tasks
from gatepost.pipeline.tables.hours import COLUMNS, TEXTS, Hour
from gatepost.pipeline.tables.schemas import CASES, PACES, SLO, TASKS, TRAFFIC, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# About how many deliveries are processed at once, and how many by one executor.
_AT_ONCE = 1_000_000
_A_SHARE = 500_000

_MADE: dict[Table, Callable[[Hour, Objectives], pa.Table]] = {
    SLO: slo.slo,
    TRAFFIC: lambda hour, _: slo.traffic(hour),
    TASKS: lambda hour, _: tasks.tasks(hour),
    PACES: lambda hour, _: tasks.paces(hour),
    CASES: cases.cases,
}
TABLES: Final = tuple(_MADE)


class Piece(Struct, frozen=True):
    """The deliveries of an hour whose sending nodes hash to `part` of `parts`."""

    hour: int
    files: list[str]
    rows: int
    part: int
    parts: int


def hourly(
    spark: "SparkSession",
    deliveries: Sequence[Held],
    folders: Mapping[Table, str],
    objectives: Objectives,
) -> dict[Table, list[File]]:
    """Write these tables for the hours of these files of deliveries, each into its folder."""
    tables = list(folders)

    def make_tables(share: list[Piece]) -> Iterator[tuple[Table, pa.Table]]:
        for piece in share:
            hour = Hour(piece.hour, read(piece, COLUMNS))
            for table in tables:
                yield table, _MADE[table](hour, objectives)

    return written(spark, shares(spark, deliveries), make_tables, folders)


def shares(spark: "SparkSession", deliveries: Sequence[Held]) -> list[list[Piece]]:
    """The hours of these files of deliveries in pieces, shared among all executors."""
    cores = spark.sparkContext.defaultParallelism
    enough = min(_A_SHARE, sum(file.rows for file in deliveries) // cores)
    return packed(_pieces(deliveries), enough)


def _pieces(deliveries: Sequence[Held]) -> Iterator[Piece]:
    by_hour: dict[int, list[Held]] = {}
    for file in deliveries:
        by_hour.setdefault(file.value, []).append(file)
    for hour, files in sorted(by_hour.items()):
        rows = sum(file.rows for file in files)
        parts = -(-rows // _AT_ONCE)
        for part in range(parts):
            yield Piece(hour, [file.uri for file in files], rows // parts, part, parts)


def read(piece: Piece, columns: Sequence[str]) -> pa.Table:
    """Read these columns of a piece; `node` must be one of them."""
    tables = (read_file(uri, columns, TEXTS) for uri in piece.files)
    return pa.concat_tables([_of_part(table, piece) for table in tables])


def _of_part(deliveries: pa.Table, piece: Piece) -> pa.Table:
    if piece.parts == 1:
        return deliveries
    nodes = deliveries["node"].unify_dictionaries().combine_chunks()
    names = nodes.dictionary.to_pylist()
    mine = np.array([zlib.crc32(name.encode()) % piece.parts == piece.part for name in names])
    return deliveries.filter(pa.array(mine[nodes.indices.to_numpy()]))
