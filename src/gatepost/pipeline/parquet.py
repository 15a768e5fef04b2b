"""Writes Parquet files for Delta tables on executors, and describes them for the commit.

Needs pyarrow and msgspec, but neither Spark nor `deltalake`.
"""

import contextlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache
from itertools import pairwise
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyarrow import fs

from gatepost.archive.storage_uri import normalize_uri, open_filesystem
from gatepost.pipeline.job_errors import name_full_disk

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_SPECIAL_CHARACTERS = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_GROUP_ROWS = 128 * 1024
# Texts that hardly repeat.
_UNIQUE_TEXTS = {"corr_id"}
# Longer texts do not help a reader to skip a file.
_LONGEST_STATISTIC = 64
_FIRST_TIME, _LAST_TIME = np.datetime64("0001-01-01", "us"), np.datetime64("9999-12-31", "us")


class WrittenFile(Struct, frozen=True):
    """One written file; `stats` is Delta's JSON of row count, smallest and largest values."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    stats: str

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return msgspec.msgpack.decode(data, type=cls)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


def write_files(
    batches: Iterable[pa.RecordBatch], root: str, columns: Sequence[str], partitions: Sequence[str]
) -> Iterator[WrittenFile]:
    """Write the rows below `root`, one file for each run of equal partition values."""
    files = PartitionedFiles(root, columns, partitions)
    try:
        for batch in batches:
            yield from files.add_batch(batch)
        yield from files.close()
    except BaseException:
        files.abort()
        raise


class PartitionedFiles:
    """Writes rows below `root`, one file for each run of equal partition values."""

    def __init__(self, root: str, columns: Sequence[str], partitions: Sequence[str]) -> None:
        self._root = root
        self._kept = [name for name in columns if name not in partitions]
        self._partitions = partitions
        self._writer: _PartitionWriter | None = None

    def add_batch(self, batch: pa.RecordBatch) -> Iterator[WrittenFile]:
        """Write the rows; yields the files of the partitions that ended before them."""
        for values, run in _partition_runs(batch, self._partitions):
            if self._writer is not None and self._writer.values != values:
                yield from self.close()
            self._writer = self._writer or _PartitionWriter(self._root, values)
            self._writer.add_batch(run.select(self._kept))

    def close(self) -> Iterator[WrittenFile]:
        """End the current file, if there is one."""
        if self._writer is not None:
            yield self._writer.close()
        self._writer = None

    def abort(self) -> None:
        """Abandon the current file, which cannot be finished."""
        if self._writer is not None:
            self._writer.abort()


def _partition_runs(
    batch: pa.RecordBatch, partitions: Sequence[str]
) -> Iterator[tuple[dict[str, str | None], pa.RecordBatch]]:
    if not batch.num_rows:
        return
    cuts = np.zeros(batch.num_rows, bool)
    for name in partitions:
        codes = batch[name].dictionary_encode(null_encoding="encode").indices.to_numpy()
        cuts[1:] |= codes[1:] != codes[:-1]
    starts = [0, *np.flatnonzero(cuts).tolist(), batch.num_rows]
    for start, stop in pairwise(starts):
        values = {name: partition_text(batch[name][start].as_py()) for name in partitions}
        yield values, batch.slice(start, stop - start)


def partition_text(value: Any) -> str | None:
    """A partition value in Delta's notation."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _hive_folder(value: str | None) -> str:
    """A value in Hive's notation for paths, which Spark reads back."""
    return (
        _SPECIAL_CHARACTERS.sub(lambda match: f"%{ord(match[0]):02X}", value)
        if value
        else _NULL_FOLDER
    )


class _PartitionWriter:
    """Writes one file. Rows are gathered into row groups large enough to read efficiently."""

    def __init__(self, root: str, values: dict[str, str | None]) -> None:
        self.values = values
        folders = [f"{name}={_hive_folder(value)}" for name, value in values.items()]
        self._path = "/".join([*folders, f"part-{uuid.uuid4()}.parquet"])
        self._root = root
        self._filesystem, base = resolve_filesystem(root)
        self._full_path = f"{base.rstrip('/')}/{self._path}"
        with name_full_disk(root):
            self._filesystem.create_dir(self._full_path.rpartition("/")[0], recursive=True)
        self._sink: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[pq.FileMetaData] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0

    def add_batch(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        if self._pending_rows >= _GROUP_ROWS:
            self._flush_rows()

    def close(self) -> WrittenFile:
        self._flush_rows()
        assert self._writer is not None, "a writer is made for its first row"
        assert self._sink is not None, "a writer has a sink"
        with self._writing():
            self._writer.close()
            self._sink.close()
        size = self._filesystem.get_file_info(self._full_path).size
        (metadata,) = self._metadata
        return WrittenFile(
            self._path, size, metadata.num_rows, self.values, delta_statistics(metadata)
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with name_full_disk(self._root):
                yield
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Abandon a file that cannot be finished; no commit names it."""
        if self._writer is not None:
            # Otherwise it is closed once more when it is collected, and fails once more.
            self._writer.is_open = False
        if self._sink is not None:
            with contextlib.suppress(pa.ArrowException, OSError):
                self._sink.close()

    def _flush_rows(self) -> None:
        if self._pending:
            with self._writing():
                self._write_group(pa.Table.from_batches(self._pending))
            self._pending, self._pending_rows = [], 0

    def _write_group(self, table: pa.Table) -> None:
        if self._writer is None:
            self._sink = self._filesystem.open_output_stream(self._full_path)
            self._writer = pq.ParquetWriter(
                self._sink,
                table.schema,
                compression="zstd",
                # Numbers and ids hardly repeat: a dictionary for them costs more than all else.
                use_dictionary=_repeating_columns(table.schema),
                metadata_collector=self._metadata,
            )
        self._writer.write_table(table)


def _repeating_columns(fields: Iterable[pa.Field], above: str = "") -> list[str]:
    """The text columns whose values repeat, nested ones included, as Parquet names them."""
    found: list[str] = []
    for field in fields:
        name = f"{above}{field.name}"
        if pa.types.is_string(field.type) and name not in _UNIQUE_TEXTS:
            found.append(name)
        elif pa.types.is_struct(field.type):
            found += _repeating_columns(field.type, f"{name}.")
        elif pa.types.is_list(field.type):
            found += _repeating_columns(
                [field.type.value_field.with_name("element")], f"{name}.list."
            )
    return found


def read_whole_file(
    uri: str, names: Sequence[str], partitions: Mapping[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    """The rows of a file with these columns; those of the partition come from its path."""
    filesystem, path = resolve_filesystem(uri)
    folders = dict(part.split("=", 1) for part in path.split("/") if "=" in part)
    with pq.ParquetFile(path, filesystem=filesystem) as file:
        present = set(file.schema_arrow.names)
        for batch in file.iter_batches(_GROUP_ROWS, use_threads=False):
            arrays = []
            for name in names:
                if name in partitions:
                    text = folders[name]
                    value = pa.scalar(None if text == _NULL_FOLDER else text, pa.string())
                    arrays.append(pa.repeat(value.cast(partitions[name]), batch.num_rows))
                elif name in present:
                    arrays.append(batch[name])
                else:
                    arrays.append(pa.nulls(batch.num_rows))
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def resolve_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI or a plain path, and the path in it; one for each folder."""
    folder, _, name = normalize_uri(uri).rpartition("/")
    filesystem, path = _open_folder(folder)
    return filesystem, f"{path}/{name}"


@lru_cache(maxsize=64)
def _open_folder(folder: str) -> tuple[fs.FileSystem, str]:
    return open_filesystem(folder)


def delta_statistics(metadata: pq.FileMetaData) -> str:
    """Row count, nulls of flat columns, and the extremes of numbers, dates, times and short texts.

    Of numbers only whole ones. A reader takes a column without a count of nulls for one that has
    none.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns if groups else 0):
        name = groups[0].column(index).path_in_schema
        counted = [] if "." in name else [group.column(index).statistics for group in groups]
        if not counted or not all(each and each.has_null_count for each in counted):
            continue
        nulls[name] = sum(each.null_count for each in counted)
        known = [each for each in counted if each.has_min_max]
        if known and all(each.has_min_max or not each.num_values for each in counted):
            values = [_extremes_of(each) for each in known]
            low, high = min(low for low, _ in values), max(high for _, high in values)
            if _is_useful(low) and _is_useful(high):
                least[name], most[name] = _json_value(low), _json_value(high)
    extremes = {"minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps({"numRecords": metadata.num_rows} | extremes)


def _extremes_of(statistics: pq.Statistics) -> tuple[Any, Any]:
    if statistics.logical_type.type != "TIMESTAMP":
        return statistics.min, statistics.max
    # Unchecked rows can have times after the year 9999, which Python does not support.
    return np.datetime64(statistics.min_raw, "us"), np.datetime64(statistics.max_raw, "us")


def _is_useful(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_STATISTIC
    if isinstance(value, np.datetime64):
        return bool(_FIRST_TIME <= value <= _LAST_TIME)
    return type(value) in {int, date}


def _json_value(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return f"{value}Z"
    return value.isoformat() if isinstance(value, date) else value
