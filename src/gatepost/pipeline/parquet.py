"""Writes Parquet files for Delta tables on executors, and describes them for the commit.

Needs pyarrow and msgspec, but neither Spark nor `deltalake`.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
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

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_SPECIAL_CHARACTERS = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_GROUP_ROWS = 128 * 1024
# Texts that hardly repeat.
_UNIQUE_TEXTS = {"corr_id"}
# Longer texts do not help a reader to skip a file.
_LONGEST_STATISTIC = 64


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
    kept = [name for name in columns if name not in partitions]
    writer: _PartitionWriter | None = None
    for batch in batches:
        for values, run in _partition_runs(batch, partitions):
            if writer is not None and writer.values != values:
                yield writer.close()
                writer = None
            writer = writer or _PartitionWriter(root, values)
            writer.add_batch(run.select(kept))
    if writer is not None:
        yield writer.close()


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
    """A partition value as Delta spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def _hive_folder(value: str | None) -> str:
    """A value as Hive spells it in a path, which is how Spark reads it back."""
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
        self._filesystem, base = resolve_filesystem(root)
        self._full_path = f"{base.rstrip('/')}/{self._path}"
        self._filesystem.create_dir(self._full_path.rpartition("/")[0], recursive=True)
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
        self._writer.close()
        size = self._filesystem.get_file_info(self._full_path).size
        (metadata,) = self._metadata
        return WrittenFile(
            self._path, size, metadata.num_rows, self.values, delta_statistics(metadata)
        )

    def _flush_rows(self) -> None:
        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending)
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._full_path,
                table.schema,
                filesystem=self._filesystem,
                compression="zstd",
                # Numbers and ids hardly repeat: a dictionary for them costs more than all else.
                use_dictionary=_repeating_columns(table.schema),
                metadata_collector=self._metadata,
            )
        self._writer.write_table(table)
        self._pending, self._pending_rows = [], 0


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


def read_file(uri: str, columns: Sequence[str], encoded: Sequence[str] = ()) -> pa.Table:
    """Read these columns of a file that `write_files` wrote; `encoded` texts stay dictionaries."""
    filesystem, path = resolve_filesystem(uri)
    with pq.ParquetFile(path, filesystem=filesystem, read_dictionary=list(encoded)) as file:
        return file.read(columns=list(columns), use_threads=False)


def read_whole_file(
    uri: str, names: Sequence[str], partitions: Sequence[str]
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
                    value = None if text == _NULL_FOLDER else int(text)
                    arrays.append(pa.array([value] * batch.num_rows, pa.int64()))
                elif name in present:
                    arrays.append(batch[name])
                else:
                    arrays.append(pa.nulls(batch.num_rows))
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def merge_files(root: str, paths: Sequence[str], values: dict[str, str | None]) -> WrittenFile:
    """Write the rows of several files of one partition to one file."""
    filesystem, base = resolve_filesystem(root)
    wheres = [f"{base.rstrip('/')}/{path}" for path in paths]
    schema = pa.unify_schemas([pq.read_schema(where, filesystem=filesystem) for where in wheres])
    writer = _PartitionWriter(root, values)
    for where in wheres:
        with pq.ParquetFile(where, filesystem=filesystem) as file:
            for batch in file.iter_batches(_GROUP_ROWS, use_threads=False):
                writer.add_batch(_pad_columns(batch, schema))
    return writer.close()


def _pad_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add nulls for columns that an older file lacks."""
    present = set(batch.schema.names)
    arrays = [
        batch[field.name] if field.name in present else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def resolve_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI or a plain path, and the path in it; one for each folder."""
    folder, _, name = normalize_uri(uri).rpartition("/")
    filesystem, path = _open_folder(folder)
    return filesystem, f"{path}/{name}"


@lru_cache(maxsize=64)
def _open_folder(folder: str) -> tuple[fs.FileSystem, str]:
    return open_filesystem(folder)


def delta_statistics(metadata: pq.FileMetaData) -> str:
    """Row count, nulls of flat columns, and the extremes of whole numbers, dates and short texts.

    A reader takes a column without a count of nulls for one that has none.
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
            low, high = min(each.min for each in known), max(each.max for each in known)
            if _is_useful(low) and _is_useful(high):
                least[name], most[name] = _json_value(low), _json_value(high)
    extremes = {"minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps({"numRecords": metadata.num_rows} | extremes)


def _is_useful(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_STATISTIC
    return type(value) in {int, date}


def _json_value(value: Any) -> Any:
    return value.isoformat() if isinstance(value, date) else value
