"""Columns of a segment are projected to those of the archive, or the file is refused."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.archive.segment_table import find_wrong_columns, read_segment_table
from gatepost.errors import ArchiveError

COLUMNS = ["seq", "to_node", "progress", "ref_id", "offer"]
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [1, 2],
    pa.int32(): [3, 4],
    pa.string(): ["b", "c"],
    pa.binary(): [b"\x01" * 16, b"\x02" * 16],
    pa.bool_(): [True, False],
    pa.float64(): [0.5, 1.0],
}
RIGHT = pa.table(
    [pa.array(VALUES[field.type], field.type) for field in EVENT_SCHEMA], schema=EVENT_SCHEMA
)


def _file(table: pa.Table) -> BytesIO:
    file = BytesIO()
    pq.write_table(table, file)
    return file


def _retyped(name: str, kind: pa.DataType) -> pa.Table:
    column = RIGHT[name].dictionary_encode() if pa.types.is_dictionary(kind) else RIGHT[name]
    return RIGHT.set_column(RIGHT.schema.get_field_index(name), name, column.cast(kind))


def _nulled(name: str) -> pa.Table:
    kind = EVENT_SCHEMA.field(name).type
    nulls = pa.array([None, *VALUES[kind][1:]], kind)
    return RIGHT.set_column(RIGHT.schema.get_field_index(name), name, nulls)


PROJECTED: dict[str, Callable[[], pa.Table]] = {
    "as written": lambda: RIGHT,
    "in another order": lambda: RIGHT.select(RIGHT.column_names[::-1]),
    "nullable": lambda: RIGHT.cast(
        pa.schema([field.with_nullable(True) for field in EVENT_SCHEMA])
    ),
    "with more columns": lambda: RIGHT.append_column("later", pa.array([1, 2])),
    "large text": lambda: _retyped("to_node", pa.large_string()),
    "text view": lambda: _retyped("to_node", pa.string_view()),
    "dictionary": lambda: _retyped("to_node", pa.dictionary(pa.int8(), pa.string())),
    "large bytes": lambda: _retyped("ref_id", pa.large_binary()),
    "fixed bytes": lambda: _retyped("ref_id", pa.binary(16)),
    "shorter numbers": lambda: _retyped("seq", pa.uint8()),
    "shorter fractions": lambda: _retyped("progress", pa.float32()),
}


@pytest.mark.parametrize("made", PROJECTED)
def test_columns_are_read_with_the_types_of_the_archive(made: str) -> None:
    table = read_segment_table(_file(PROJECTED[made]()), COLUMNS, "s")
    assert table.column_names == COLUMNS
    assert all(table.schema.field(name).type == EVENT_SCHEMA.field(name).type for name in COLUMNS)
    assert table.to_pydict() == RIGHT.select(COLUMNS).to_pydict()


@pytest.mark.parametrize("name", [field.name for field in EVENT_SCHEMA])
def test_a_missing_column_is_null_if_it_is_optional_and_else_a_reason(name: str) -> None:
    without = RIGHT.drop_columns([name])
    if EVENT_SCHEMA.field(name).nullable:
        assert read_segment_table(_file(without), [name], "s")[name].null_count == 2
    else:
        assert find_wrong_columns(without.schema) == f"the file lacks the column {name}"


REFUSED: dict[str, tuple[Callable[[], pa.Table], str]] = {
    "node": (lambda: RIGHT.append_column("node", pa.array(["b", "b"])), "column node"),
    "Node": (lambda: RIGHT.append_column("Node", pa.array(["b", "b"])), "column node"),
    "date": (lambda: RIGHT.append_column("date", pa.array(["b", "b"])), "column date"),
    "twice": (lambda: RIGHT.append_column("kind", RIGHT["kind"]), "several columns kind"),
    "two spellings": (lambda: RIGHT.append_column("KIND", RIGHT["kind"]), "several columns kind"),
    "text for a number": (lambda: _retyped("seq", pa.string()), "seq is string, not int64"),
    "bytes for a text": (lambda: _retyped("to_node", pa.binary()), "to_node is binary"),
    "a moment for a number": (
        lambda: _retyped("created_at", pa.timestamp("us")),
        "created_at is timestamp",
    ),
    "a null in a required column": (lambda: _nulled("seq"), "seq has rows without a value"),
    "a number too large": (
        lambda: RIGHT.set_column(1, "seq", pa.array([2**63, 1], pa.uint64())),
        "not in range",
    ),
}


@pytest.mark.parametrize("made", REFUSED)
def test_other_columns_are_refused(made: str) -> None:
    make, reason = REFUSED[made]
    with pytest.raises(ArchiveError, match=f"segment s.*{reason}"):
        read_segment_table(_file(make()), COLUMNS, "s")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 64 + b"PAR1"])
def test_a_file_that_is_no_segment_is_refused(content: bytes) -> None:
    with pytest.raises(ArchiveError, match="segment s cannot be read"):
        read_segment_table(BytesIO(content), COLUMNS, "s")
