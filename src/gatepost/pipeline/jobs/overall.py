"""Makes the findings of the last days over all nodes: incidents, reviews and ETA advice.

One executor suffices: there are few cases while all is well, and an hour has few paces however many
tasks they sum up.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import Struct

from gatepost.pipeline.jobs.spreading import written
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import File, place_of
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
    """The period that findings cover, and the files of each table they are made of."""

    since: int
    as_of: int
    activity: list[str]
    cases: list[str]
    paces: list[str]


def overall(
    spark: "SparkSession", known: Known, folders: Mapping[Table, str], objectives: Objectives
) -> dict[Table, list[File]]:
    """Write these tables, each into its folder."""
    tables = list(folders)

    def make_tables(known: Known) -> list[tuple[Table, pa.Table]]:
        made = _made(known, objectives)
        return [(table, made[table]) for table in tables]

    return written(spark, [known], make_tables, folders)


def _made(known: Known, objectives: Objectives) -> dict[Table, pa.Table]:
    cases, paces = Columns(_read(CASES, known.cases)), Columns(_read(PACES, known.paces))
    activity = Columns(_read(ACTIVITY, known.activity, pc.field("last_at") >= known.since))
    return {
        ETA: advice.eta(paces),
        REVIEWS: advice.reviews(cases, paces, known.as_of, objectives),
        INCIDENTS: incidents.incidents(cases, activity, known.as_of, objectives),
    }


def _read(table: Table, files: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
    """Read all of these files, without the partition column, which only their path holds."""
    names = [name for name in table.names if name != table.partition]
    schema = pa.schema([schema_of(table).field(name) for name in names])
    if not files:
        return schema.empty_table()
    located = [place_of(uri) for uri in files]
    paths = [path for _, path in located]
    dataset = ds.dataset(paths, schema=schema, format="parquet", filesystem=located[0][0])
    # In one chunk, because taking a few rows of a chunked table searches all its chunks.
    return dataset.to_table(filter=where).combine_chunks()
