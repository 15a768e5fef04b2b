"""What is unusual, of the last days and all nodes, into incidents, reviews and ETA advice.

One executor does it: there are few cases where all is well, and sums of an hour are few in any
case, however many tasks they are the sums of.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
from msgspec import Struct

from gatepost.pipeline.jobs.spreading import spread
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import File, place_of, write_files
from gatepost.pipeline.tables import advice, incidents
from gatepost.pipeline.tables.arrow import schema_of
from gatepost.pipeline.tables.groups import Columns
from gatepost.pipeline.tables.schemas import (
    ACTIVITY,
    CASES,
    ETA,
    INCIDENTS,
    PACES,
    REVIEWS,
    Table,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Known(Struct, frozen=True):
    """The latest moment anything is known of, and the files of what is known."""

    as_of: int
    activity: list[str]
    cases: list[str]
    paces: list[str]


def overall(
    spark: "SparkSession", known: Known, folders: Mapping[Table, str], objectives: Objectives
) -> dict[Table, list[File]]:
    """Write these tables, each into its folder."""

    def make(known: Known) -> Iterator[tuple[str, bytes]]:
        made = _made(known, objectives)
        for table, folder in folders.items():
            for file in write_files(made[table].to_batches(), folder, table.names, ()):
                yield table.name, file.encode()

    found: dict[Table, list[File]] = {table: [] for table in folders}
    by_name = {table.name: files for table, files in found.items()}
    for name, file in spread(spark, [known], make):
        by_name[name].append(File.decode(file))
    return found


def _made(known: Known, objectives: Objectives) -> dict[Table, pa.Table]:
    cases, paces = _read(CASES, known.cases), _read(PACES, known.paces)
    activity = _read(ACTIVITY, known.activity)
    return {
        ETA: advice.eta(paces),
        REVIEWS: advice.reviews(cases, paces, known.as_of, objectives),
        INCIDENTS: incidents.incidents(cases, activity, known.as_of, objectives),
    }


def _read(table: Table, files: Sequence[str]) -> Columns:
    """All of these files, but for what their folder says."""
    names = [name for name in table.names if name != table.partition]
    schema = pa.schema([schema_of(table).field(name) for name in names])
    if not files:
        return Columns(schema.empty_table())
    places = [place_of(uri) for uri in files]
    paths = [path for _, path in places]
    dataset = ds.dataset(paths, schema=schema, format="parquet", filesystem=places[0][0])
    return Columns(dataset.to_table())
