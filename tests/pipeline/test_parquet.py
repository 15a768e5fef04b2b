"""What executors write: a file per run of equal partition values, and its facts."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gatepost.pipeline.parquet import WrittenFile, write_files


def written(root: Path, batches: list[dict[str, Any]], partitions: list[str]) -> list[WrittenFile]:
    arrow = [pa.RecordBatch.from_pydict(batch) for batch in batches]
    columns = arrow[0].schema.names
    files = write_files(iter(arrow), str(root), columns, partitions)
    return [WrittenFile.decode(file.encode()) for file in files]


def test_a_run_goes_on_over_batches(tmp_path: Path) -> None:
    batches = [{"p": ["a", "a"], "n": [1, 2]}, {"p": ["a", "b"], "n": [3, 4]}]
    files = written(tmp_path, batches, ["p"])
    assert [(f.partition, f.rows) for f in files] == [({"p": "a"}, 3), ({"p": "b"}, 1)]
    stored = pq.ParquetFile(tmp_path / files[0].path)
    assert stored.schema_arrow.names == ["n"]
    assert files[0].size == (tmp_path / files[0].path).stat().st_size


def test_small_batches_share_a_row_group(tmp_path: Path) -> None:
    (file,) = written(tmp_path, [{"n": [i]} for i in range(50)], [])
    assert pq.ParquetFile(tmp_path / file.path).num_row_groups == 1


def test_statistics_are_exact_or_absent(tmp_path: Path) -> None:
    batch = {
        "n": [3, 1, None],
        "text": ["b", None, "a"],
        "long": ["x" * 100, "y", "z"],
        "real": [float("nan"), 1.0, None],
        "never": pa.nulls(3, pa.int64()),
    }
    (file,) = written(tmp_path, [batch], [])
    assert json.loads(file.stats) == {
        "numRecords": 3,
        "minValues": {"n": 1, "text": "a"},
        "maxValues": {"n": 3, "text": "b"},
        "nullCount": {"n": 1, "text": 1, "long": 0, "real": 1, "never": 3},
    }


def test_no_rows_are_no_file(tmp_path: Path) -> None:
    empty = pa.RecordBatch.from_pydict({"n": pa.array([], pa.int64())})
    assert list(write_files(iter([empty]), str(tmp_path), ["n"], [])) == []
    assert list(tmp_path.iterdir()) == []
