"""Small tables, read without Spark."""

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyarrow import fs

from gatepost.pipeline import small_tables
from gatepost.pipeline.delta_tables import require_table


def test_no_thread_of_pyarrow_needs_the_interpreter(tmp_path: Path) -> None:
    """A filesystem in Python would abort the process if a thread drops a buffer at its end."""
    write_deltalake(
        str(tmp_path / "a b"), pa.table({"hour": [1, 2], "n": [3, 4]}), partition_by="hour"
    )
    opened = small_tables.open_dataset(require_table(str(tmp_path / "a b")))
    assert isinstance(opened.filesystem.base_fs, fs.LocalFileSystem)
    assert sorted(opened.to_table().to_pydict()["n"]) == [3, 4]
