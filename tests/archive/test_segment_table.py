"""Columns of a segment are what they should be, or the file is refused."""

from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.archive.segment_table import read_segment_table
from gatepost.errors import ArchiveError

COLUMNS = ["seq", "to_node"]


def _file(columns: dict[str, Any]) -> BytesIO:
    file = BytesIO()
    pq.write_table(pa.table(columns), file)
    return file


def test_columns_are_read_with_the_types_of_the_archive() -> None:
    file = _file({"seq": [1, 2], "to_node": ["b", None], "body": [b"", b""]})
    table = read_segment_table(file, COLUMNS, "s")
    assert table.to_pydict() == {"seq": [1, 2], "to_node": ["b", None]}
    assert all(table.schema.field(name).type == EVENT_SCHEMA.field(name).type for name in COLUMNS)


@pytest.mark.parametrize(
    "columns",
    [
        {"seq": [1]},
        {"seq": ["1"], "to_node": ["b"]},
        {"seq": [None, 1], "to_node": ["b", "b"]},
        {"seq": [1], "to_node": [b"b"]},
    ],
)
def test_other_columns_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(ArchiveError, match="segment s"):
        read_segment_table(_file(columns), COLUMNS, "s")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 64 + b"PAR1"])
def test_a_file_that_is_no_segment_is_refused(content: bytes) -> None:
    with pytest.raises(ArchiveError, match="segment s cannot be read"):
        read_segment_table(BytesIO(content), COLUMNS, "s")
