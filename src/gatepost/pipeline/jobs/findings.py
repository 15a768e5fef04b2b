"""Makes the findings of the last days over all nodes: incidents, reviews and ETA advice.

One executor suffices: there are few cases while all is well, and an hour has few paces however many
tasks they sum up.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from msgspec import Struct

from gatepost.pipeline.jobs.executors import write_on_executors
from gatepost.pipeline.kernels import advice, incidents
from gatepost.pipeline.kernels.groups import CodedColumns
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import WrittenFile, resolve_filesystem
from gatepost.pipeline.read_plan import SetAside
from gatepost.pipeline.tables.arrow_schemas import arrow_schema
from gatepost.pipeline.tables.schemas import (
    ACTIVITY,
    CASES,
    ETA,
    INCIDENTS,
    PACES,
    REVIEWS,
    TableSpec,
)
from gatepost.pipeline.transport import Transport


class FindingsInput(Struct, frozen=True):
    """The period that findings cover, and the files of each table they are made of."""

    since: int
    as_of: int
    activity: list[str]
    cases: list[str]
    paces: list[str]
    # What was set aside of the archive.
    aside: tuple[SetAside, ...] = ()


def write_findings(
    transport: Transport,
    known: FindingsInput,
    folders: Mapping[TableSpec, str],
    objectives: Objectives,
) -> dict[TableSpec, list[WrittenFile]]:
    """Write these tables, each into its folder."""
    tables = list(folders)

    def make_tables(known: FindingsInput) -> list[tuple[TableSpec, pa.Table]]:
        made = _build_findings(known, objectives)
        return [(table, made[table]) for table in tables]

    return write_on_executors(transport, [known], make_tables, folders)


def _build_findings(known: FindingsInput, objectives: Objectives) -> dict[TableSpec, pa.Table]:
    cases, paces = (
        CodedColumns(_read_files(CASES, known.cases)),
        CodedColumns(_read_files(PACES, known.paces)),
    )
    activity = CodedColumns(
        _read_files(ACTIVITY, known.activity, pc.field("last_at") >= known.since)
    )
    return {
        ETA: advice.compute_eta_advice(paces),
        REVIEWS: advice.find_reviews(cases, paces, known.as_of, objectives),
        INCIDENTS: pa.concat_tables(
            [
                incidents.find_incidents(cases, activity, known.as_of, objectives),
                incidents.describe_aside(known.aside),
            ]
        ),
    }


def _read_files(
    table: TableSpec, files: Sequence[str], where: pc.Expression | None = None
) -> pa.Table:
    """Read all of these files, without the partition column, which only their path holds."""
    names = [name for name in table.names if name != table.partition]
    schema = pa.schema([arrow_schema(table).field(name) for name in names])
    if not files:
        return schema.empty_table()
    located = [resolve_filesystem(uri) for uri in files]
    paths = [path for _, path in located]
    dataset = ds.dataset(paths, schema=schema, format="parquet", filesystem=located[0][0])
    # In one chunk, because taking a few rows of a chunked table searches all its chunks.
    return dataset.to_table(filter=where).combine_chunks()
