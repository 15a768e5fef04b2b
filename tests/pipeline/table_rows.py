"""Writes Delta tables of rows that a test makes up, or of any DataFrame."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from pyspark.sql import DataFrame

from gatepost.pipeline.delta_tables import CommitResult, WriteOptions, begin_write, write_frame
from gatepost.pipeline.table_files import write_rows
from gatepost.pipeline.tables.arrow_schemas import rows_to_table
from gatepost.pipeline.tables.schemas import TableSpec


def write_known_rows(root: Path, table: TableSpec, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of a table, with times as epoch milliseconds; what they lack is null."""
    path = str(root / table.name)
    writing = begin_write(path, table.schema, partition_by=table.partitions)
    known = [{name: row.get(name) for name in table.kernel_names} for row in rows]
    writing.commit(list(write_rows(table, rows_to_table(table, known), writing.path)))


def write_table(df: DataFrame, path: str, **how: Unpack[WriteOptions]) -> CommitResult:
    """Write all rows of `df` in one commit, creating the table if there is none."""
    writing = begin_write(path, json.loads(df.schema.json()), **how)
    return writing.earlier_commit or writing.commit(write_frame(df, writing))
