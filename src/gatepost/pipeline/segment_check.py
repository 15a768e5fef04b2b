"""Checks the content of a segment, which its node may have forged and signed.

A segment with a fault is set aside as a whole. An event whose ids are far from its time is taken
in, but what it says about a delivery is not (`kernels.columns.is_near_id`): another node may have
drawn that id, and must not be able to have the segments of all its receivers set aside.
"""

import hashlib
from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.archive.segment_table import READ_ERRORS, require_columns
from gatepost.errors import ArchiveError
from gatepost.pipeline.archive_reader import encoded_schema, open_encoded, project_batch
from gatepost.pipeline.kernels.columns import is_near_id, to_numbers
from gatepost.pipeline.kernels.facts import TEXT_COLUMNS
from gatepost.pipeline.read_plan import ROW_GROUP, SegmentFile

# All columns except the large bodies, which no table uses.
_COLUMNS: Final = tuple(name for name in EVENT_SCHEMA.names if name != "body")
_ENCODED: Final = (*TEXT_COLUMNS, "incarnation")
_SCHEMA: Final = encoded_schema(_COLUMNS, _ENCODED)
_LARGEST_BLOB: Final = 2**40
_LARGEST_NUMBER: Final = 2**53 - 1
_IDS: Final = ("event_id", "ref_id")


class SegmentCheck(Struct, frozen=True):
    """`fault` is the reason why a segment cannot be taken in; None if it can.

    `far_ids` counts its events with an id that was drawn too far from the time of the event, or
    that is not an id.
    """

    fault: str | None = None
    far_ids: int = 0


def check_content(content: pa.Buffer, segment: SegmentFile, id_age: int) -> SegmentCheck:
    """Check the file of a segment; ids are at most `id_age` ms older than their event."""
    if content.size != segment.bytes or hashlib.sha256(content).digest() != segment.sha256:
        return SegmentCheck("the file is not the one that was archived")
    try:
        file = _open_content(content)
    except READ_ERRORS as error:
        return SegmentCheck(f"the file is no Parquet: {_first_line(error)}")
    with file:
        try:
            fault = _find_wrong_schema(file, segment)
            return SegmentCheck(fault) if fault else _check_rows(file, segment, id_age)
        except READ_ERRORS as error:
            return SegmentCheck(f"the file cannot be decoded: {_first_line(error)}")


def _open_content(content: pa.Buffer) -> pq.ParquetFile:
    def open_file(**options: Collection[str]) -> pq.ParquetFile:
        return pq.ParquetFile(pa.BufferReader(content), **options)

    return open_encoded(open_file, _ENCODED)


def _find_wrong_schema(file: pq.ParquetFile, segment: SegmentFile) -> str | None:
    rows = file.metadata.num_rows
    if rows != segment.rows:
        return f"the file has {rows} events, the manifest lists {segment.rows}"
    try:
        require_columns(file, "its columns are not those of events")
    except ArchiveError as error:
        return error.message
    return None


def _check_rows(file: pq.ParquetFile, segment: SegmentFile, id_age: int) -> SegmentCheck:
    first, far = segment.first, 0
    present = set(file.schema_arrow.names)
    wanted = [name for name in _COLUMNS if name in present]
    for batch in file.iter_batches(ROW_GROUP, columns=wanted, use_threads=False):
        rows = project_batch(batch, _SCHEMA, segment)
        rows.validate(full=True)
        if fault := _find_impossible_value(rows, segment, first):
            return SegmentCheck(fault)
        first += rows.num_rows
        far += _count_far_ids(pa.Table.from_batches([rows]), id_age)
    return SegmentCheck(far_ids=far)


def _find_impossible_value(rows: pa.RecordBatch, segment: SegmentFile, first: int) -> str | None:
    """The first column with values that no gateway writes: they would spoil the sums of others."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if column.null_count and not EVENT_SCHEMA.field(name).nullable:
            return f"the column {name} has rows without a value"
        if not _is_within(column, *_limits(name, segment)):
            return f"the column {name} has impossible values"
    if not np.array_equal(rows["seq"], np.arange(first, first + rows.num_rows)):
        return "its events have other numbers than the manifest lists"
    if rows["incarnation"].unique().to_pylist() not in ([segment.incarnation], []):
        return "its events are of another incarnation than the manifest lists"
    return None


def _is_within(column: pa.Array, least: int, most: int) -> bool:
    if not pa.types.is_integer(column.type) and not pa.types.is_floating(column.type):
        return True
    found = pc.min_max(column).as_py()
    return found["min"] is None or least <= found["min"] <= found["max"] <= most


def _limits(name: str, segment: SegmentFile) -> tuple[int, int]:
    if name == "created_at":
        return segment.min_created_at, segment.max_created_at
    largest = {"blob_size": _LARGEST_BLOB, "progress": 1}
    return 0, largest.get(name, _LARGEST_NUMBER)


def _count_far_ids(rows: pa.Table, id_age: int) -> int:
    """The number of rows with an id that `is_near_id` does not take."""
    at = to_numbers(rows["created_at"])
    far = np.zeros(rows.num_rows, bool)
    for name in _IDS:
        given = np.asarray(rows[name].is_valid())
        far |= given & ~is_near_id(rows[name], at, id_age)
    return int(far.sum())


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
