"""The archive's files: manifests into segments, segments into Arrow batches.

A file that no manifest lists does not exist. This needs pyarrow and msgspec and no Spark.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from gatepost.archive.schema import EVENTS
from gatepost.archive.store import Store
from gatepost.errors import ArchiveError
from gatepost.pipeline.planning import ROW_GROUP, Segment, Slice

if TYPE_CHECKING:
    from gatepost.archive.manifest import Segment as Listed

# A path says which node and which day; in Spark these are columns like any other.
# Spark's readers promise no column is never null, so neither does this schema.
SCHEMA: Final = pa.schema(
    [
        *(field.with_nullable(True) for field in EVENTS),
        pa.field("node", pa.string()),
        pa.field("date", pa.date32()),
    ]
)

Verify = Literal["none", "sha256"]

_BATCH_ROWS = 64 * 1024
_PATH = re.compile(r"date=(\d{4}-\d\d-\d\d)/[\w.-]+\.parquet")


class Archive:
    """The folder of all nodes' segments, as their manifests describe it."""

    def __init__(self, root: str) -> None:
        store = Store.open(root)
        self._fs, self._base = store.filesystem, store.root
        # What Spark is told: absolute, and with its scheme if it has one.
        self.uri = root.rstrip("/") if "://" in root else store.root
        self._seen: dict[str, tuple[object, list[Segment]]] = {}

    def segments(self) -> list[Segment]:
        """Everything that is listed now; a manifest that did not change is not read again."""
        folders = self._fs.get_file_info(fs.FileSelector(self._base, allow_not_found=True))
        paths = [f"{f.path}/_manifest.json" for f in folders if f.base_name.startswith("node=")]
        self._seen = {
            info.path: self._manifest(info)
            for info in self._fs.get_file_info(paths)
            if info.type == fs.FileType.File
        }
        return [segment for _, segments in self._seen.values() for segment in segments]

    def times(self, segment: Segment) -> Sequence[int]:
        """When each row was created, by the latest of it and the rows before it."""
        table = pq.read_table(self._where(segment), columns=["created_at"], filesystem=self._fs)
        times: Any = np.maximum.accumulate(table["created_at"].to_numpy())
        return cast("Sequence[int]", times)

    def batches(
        self, piece: Slice, columns: Collection[str], verify: Verify = "none"
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a slice with `node` and `date` attached."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        with pq.ParquetFile(self._input(piece.segment, verify), pre_buffer=True) as file:
            there = set(file.schema_arrow.names)
            for batch in _rows(file, piece, [name for name in columns if name in there]):
                yield _complete(batch, schema, piece.segment)

    def tables(
        self, piece: Slice, columns: Collection[str], texts: Collection[str]
    ) -> Iterator[pa.Table]:
        """The rows of a slice, a row group or so at a time; these texts stay encoded."""
        encoded = [name for name in texts if name in columns]
        with _readable(piece.segment), self._file(piece.segment, encoded) as file:
            there = set(file.schema_arrow.names)
            present = [name for name in columns if name in there]
            for batch in _rows(file, piece, present, ROW_GROUP):
                yield _with_missing(pa.Table.from_batches([batch]), columns, piece.segment)

    def _file(self, segment: Segment, encoded: Sequence[str]) -> pq.ParquetFile:
        where = self._where(segment)
        try:
            return pq.ParquetFile(where, filesystem=self._fs, read_dictionary=encoded)
        except KeyError:
            # An older one that lacks some of them.
            there = set(pq.read_schema(where, filesystem=self._fs).names)
            known = [name for name in encoded if name in there]
            return pq.ParquetFile(where, filesystem=self._fs, read_dictionary=known)

    def files(self, segments: Iterable[Segment]) -> list[str]:
        return [f"{self.uri}/{segment.path}" for segment in segments]

    def _manifest(self, info: fs.FileInfo) -> tuple[object, list[Segment]]:
        version = (info.mtime_ns, info.size)
        known = self._seen.get(info.path)
        if known and known[0] == version:
            return known
        with self._fs.open_input_file(info.path) as file:
            return version, _listed(info.path, file.read())

    def _input(self, segment: Segment, verify: Verify) -> pa.NativeFile:
        if verify == "none":
            return self._fs.open_input_file(self._where(segment))
        with self._fs.open_input_file(self._where(segment)) as file:
            content = file.read_buffer()
        if hashlib.sha256(content).hexdigest() != segment.sha256:
            raise ArchiveError(f"{segment.path} is not the file its manifest lists: wrong SHA-256")
        return pa.BufferReader(content)

    def _where(self, segment: Segment) -> str:
        return f"{self._base}/{segment.path}"


@contextmanager
def _readable(segment: Segment) -> Iterator[None]:
    """Whoever reads a thousand files wants to know which one is broken."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"{segment.path} cannot be read: {error}") from None


def _listed(where: str, content: bytes) -> list[Segment]:
    # Here and not above: workers read segments, and need not have what signing needs.
    from gatepost.archive.manifest import decode

    manifest = decode(content, where)
    if where.split("/")[-2] != f"node={manifest.node}":
        raise ArchiveError(f"{where} belongs to node {manifest.node}, not into this folder")
    return [_segment(where, manifest.node, listed) for listed in manifest.segments]


def _segment(where: str, node: str, listed: "Listed") -> Segment:
    # A manifest must not lead a reader out of its node's folder.
    match = _PATH.fullmatch(listed.path)
    if not match or listed.rows != listed.last - listed.first + 1:
        raise ArchiveError(f"{where} lists an impossible segment: {listed.path!r}")
    return Segment(
        node,
        date.fromisoformat(match[1]),
        f"node={node}/{listed.path}",
        listed.incarnation,
        listed.first,
        listed.last,
        listed.bytes,
        listed.sha256,
        listed.min_created_at,
        listed.max_created_at,
        listed.sealed_at,
    )


def _rows(
    file: pq.ParquetFile, piece: Slice, columns: list[str], at_once: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The slice's rows and not one more, from the row groups that hold them."""
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    groups: list[int] = []
    skip = position = 0
    for index, size in enumerate(sizes):
        if position < piece.skipped + piece.rows and position + size > piece.skipped:
            skip = skip if groups else piece.skipped - position
            groups.append(index)
        position += size
    left = piece.rows
    for batch in file.iter_batches(at_once, row_groups=groups, columns=columns, use_threads=False):
        cut = batch.slice(skip, left)
        skip = max(0, skip - batch.num_rows)
        left -= cut.num_rows
        if cut.num_rows:
            yield cut


def _with_missing(table: pa.Table, columns: Collection[str], segment: Segment) -> pa.Table:
    """The table with its node, and nulls for what an older archive lacks."""
    for name in (name for name in columns if name not in table.column_names):
        kind = SCHEMA.field(name).type
        if name == "node":
            zeros = pa.array(np.zeros(table.num_rows, np.int32))
            column = pa.DictionaryArray.from_arrays(zeros, pa.array([segment.node]))
        elif pa.types.is_string(kind):
            column = pa.nulls(table.num_rows, pa.dictionary(pa.int32(), kind))
        else:
            column = pa.nulls(table.num_rows, kind)
        table = table.append_column(name, column)
    return table


def _complete(batch: pa.RecordBatch, schema: pa.Schema, segment: Segment) -> pa.RecordBatch:
    """The batch with the columns of its path, and nulls for what an older archive lacks."""
    of_path = {"node": segment.node, "date": segment.date}
    present = set(batch.schema.names)
    arrays = [
        batch[field.name].cast(field.type)
        if field.name in present
        else pa.repeat(pa.scalar(of_path.get(field.name), field.type), batch.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
