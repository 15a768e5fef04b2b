"""Reads the archive: manifests into segments, segments into Arrow batches.

A file that no manifest lists does not exist. Needs pyarrow and msgspec, but not Spark.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from pyarrow import fs

from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.archive.storage_uri import normalize_uri
from gatepost.errors import ArchiveError
from gatepost.pipeline.read_plan import ROW_GROUP, SegmentFile, Slice

if TYPE_CHECKING:
    from gatepost.archive.manifest import ArchiveManifest
    from gatepost.archive.manifest import ArchiveSegment as Listed

# The path names node and date; in Spark these are ordinary columns.
# All columns are nullable, because Spark's readers do not promise otherwise.
ROW_SCHEMA: Final = pa.schema(
    [
        *(field.with_nullable(True) for field in EVENT_SCHEMA),
        pa.field("node", pa.string()),
        pa.field("date", pa.date32()),
    ]
)

Verify = Literal["none", "sha256"]

_BATCH_ROWS = 64 * 1024
_LARGEST_BLOB: Final = 2**40
_LARGEST_NUMBER: Final = 2**53 - 1
_COLUMN_TYPES = dict(zip(EVENT_SCHEMA.names, EVENT_SCHEMA.types, strict=True))
_SEGMENT_PATH = re.compile(r"date=(\d{4}-\d\d-\d\d)/[\w.-]+\.parquet")


class ArchiveReader:
    """The folder of all nodes' segments, as their manifests describe it."""

    def __init__(self, root: str) -> None:
        self._store = store = ArchiveStore.open(root)
        self._filesystem, self._base = store.filesystem, store.root
        # The root as executors need it: absolute, with its scheme if it has one.
        self.uri = normalize_uri(root)
        self._listings: dict[str, tuple[object, NodeListing]] = {}

    def list_segments(self) -> list[SegmentFile]:
        """All segments listed now; raises ArchiveError if a manifest is not right."""
        listings = self.list_nodes()
        for listing in listings:
            if listing.problem is not None and listing.is_present:
                raise ArchiveError(listing.problem)
        return [segment for listing in listings for segment in listing.segments]

    def list_nodes(self) -> "list[NodeListing]":
        """The manifests of all nodes; one that did not change is not read again."""
        folders = self._filesystem.get_file_info(fs.FileSelector(self._base, allow_not_found=True))
        nodes = [folder for folder in folders if folder.base_name.startswith("node=")]
        paths = [f"{folder.path}/_manifest.json" for folder in nodes]
        self._listings = {
            info.path: self._read_listing(info) for info in self._filesystem.get_file_info(paths)
        }
        return [listing for _, listing in self._listings.values()]

    def count_listed_events(self) -> int:
        """The number of events in all manifests that can be read."""
        return sum(segment.rows for each in self.list_nodes() for segment in each.segments)

    def find_fault(
        self, segment: SegmentFile, columns: Collection[str], texts: Collection[str]
    ) -> str | None:
        """The reason why these columns cannot be taken in; None if the file is right.

        `texts` are columns whose values repeat, which makes them cheap to check.
        """
        if self._store.is_special_file(segment.path):
            return "it is not a file"
        try:
            with self._filesystem.open_input_file(self._file_path(segment)) as file:
                content = file.read_buffer()
        except FileNotFoundError:
            return "the file is missing"
        except OSError as error:
            return f"the file cannot be read: {error}"
        if hashlib.sha256(content).hexdigest() != segment.sha256:
            return "the file is not the one that was archived"
        return _find_wrong_column(content, segment) or _find_wrong_row(
            content, segment, columns, texts
        )

    def row_times(self, segment: SegmentFile) -> Sequence[int]:
        """For each row the latest `created_at` of it and the rows before it."""
        table = pq.read_table(
            self._file_path(segment), columns=["created_at"], filesystem=self._filesystem
        )
        times: Any = np.maximum.accumulate(table["created_at"].to_numpy())
        return cast("Sequence[int]", times)

    def read_batches(
        self, piece: Slice, columns: Collection[str], verify: Verify = "none"
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a slice with `node` and `date` attached."""
        schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
        with pq.ParquetFile(self._open_input(piece.segment, verify), pre_buffer=True) as file:
            present = set(file.schema_arrow.names)
            for batch in _slice_batches(file, piece, [name for name in columns if name in present]):
                yield _complete_batch(batch, schema, piece.segment)

    def read_tables(
        self, piece: Slice, columns: Collection[str], texts: Collection[str]
    ) -> Iterator[pa.Table]:
        """The rows of a slice, about a row group at a time; `texts` stay dictionary-encoded."""
        encoded = [name for name in texts if name in columns]
        with _wrap_read_errors(piece.segment), self._open_parquet(piece.segment, encoded) as file:
            present = set(file.schema_arrow.names)
            wanted = [name for name in columns if name in present]
            missing = [name for name in columns if name not in present]
            for batch in _slice_batches(file, piece, wanted, ROW_GROUP):
                yield _add_columns(pa.Table.from_batches([batch]), missing, piece.segment)

    def _open_parquet(self, segment: SegmentFile, encoded: Sequence[str]) -> pq.ParquetFile:
        where = self._file_path(segment)
        try:
            return pq.ParquetFile(where, filesystem=self._filesystem, read_dictionary=encoded)
        except KeyError:
            # An older file lacks some of the columns.
            present = set(pq.read_schema(where, filesystem=self._filesystem).names)
            known = [name for name in encoded if name in present]
            return pq.ParquetFile(where, filesystem=self._filesystem, read_dictionary=known)

    def file_uris(self, segments: Iterable[SegmentFile]) -> list[str]:
        return [f"{self.uri}/{segment.path}" for segment in segments]

    def _read_listing(self, info: fs.FileInfo) -> "tuple[object, NodeListing]":
        if info.type != fs.FileType.File:
            node = info.path.split("/")[-2].removeprefix("node=")
            return None, NodeListing(node, problem="it has no manifest", is_present=False)
        version = (info.mtime_ns, info.size)
        known = self._listings.get(info.path)
        if known and known[0] == version:
            return known
        with self._filesystem.open_input_file(info.path) as file:
            return version, _read_listing(info.path, file.read())

    def _open_input(self, segment: SegmentFile, verify: Verify) -> pa.NativeFile:
        if verify == "none":
            return self._filesystem.open_input_file(self._file_path(segment))
        with self._filesystem.open_input_file(self._file_path(segment)) as file:
            content = file.read_buffer()
        if hashlib.sha256(content).hexdigest() != segment.sha256:
            raise ArchiveError(f"{segment.path} is not the file its manifest lists: wrong SHA-256")
        return pa.BufferReader(content)

    def _file_path(self, segment: SegmentFile) -> str:
        return f"{self._base}/{segment.path}"


@contextmanager
def _wrap_read_errors(segment: SegmentFile) -> Iterator[None]:
    """Re-raise read errors as `ArchiveError` that names the segment."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"{segment.path} cannot be read: {error}") from None


class NodeListing(Struct, frozen=True):
    """The manifest of a node, its segments, and whether the key it names has signed it.

    `problem` is the reason why there are none.
    """

    node: str
    manifest: "ArchiveManifest | None" = None
    segments: list[SegmentFile] = []
    is_signed: bool = False
    problem: str | None = None
    is_present: bool = True


def _read_listing(where: str, content: bytes) -> NodeListing:
    # A late import: workers read segments only, and need not have the signing libraries.
    from gatepost.archive.manifest import decode_manifest, is_manifest_signed

    node = where.split("/")[-2].removeprefix("node=")
    try:
        manifest = decode_manifest(content, where)
        if manifest.node != node:
            raise ArchiveError(f"{where} belongs to node {manifest.node}, not into this folder")
        segments = [_to_segment(where, node, listed) for listed in manifest.segments]
    except ArchiveError as error:
        return NodeListing(node, problem=error.message)
    return NodeListing(node, manifest, segments, is_manifest_signed(manifest))


def _find_wrong_column(content: pa.Buffer, segment: SegmentFile) -> str | None:
    """The first thing wrong with the columns of a file. Older files may lack some."""
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            rows, schema = file.metadata.num_rows, file.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"the file is no Parquet: {str(error).partition(chr(10))[0]}"
    if rows != segment.rows:
        return f"the file has {rows} events, the manifest lists {segment.rows}"
    for name, kind in zip(schema.names, schema.types, strict=True):
        if _COLUMN_TYPES.get(name, kind) != kind:
            return f"the column {name} is not that of an archive"
    doubled = [name for name, count in Counter(schema.names).items() if count > 1]
    if doubled:
        return f"the file has several columns {doubled[0]}"
    return None


def _find_wrong_row(
    content: pa.Buffer, segment: SegmentFile, columns: Collection[str], texts: Collection[str]
) -> str | None:
    """The first thing wrong with the values of a file, which its node may have made up."""
    with pq.ParquetFile(pa.BufferReader(content)) as plain:
        present = set(plain.schema_arrow.names)
    encoded = [name for name in texts if name in present]
    try:
        with pq.ParquetFile(pa.BufferReader(content), read_dictionary=encoded) as file:
            wanted = [name for name in columns if name in present]
            for batch in file.iter_batches(ROW_GROUP, columns=wanted, use_threads=False):
                batch.validate(full=True)
                if (name := _find_impossible_value(batch, segment)) is not None:
                    return f"the column {name} has impossible values"
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"the file cannot be decoded: {str(error).partition(chr(10))[0]}"
    return None


def _find_impossible_value(batch: pa.RecordBatch, segment: SegmentFile) -> str | None:
    """The first column with values that no gateway writes: they would spoil the sums of others."""
    limits = {
        "created_at": (segment.min_created_at, segment.max_created_at),
        "blob_size": (0, _LARGEST_BLOB),
    }
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count and not EVENT_SCHEMA.field(name).nullable:
            return str(name)
        if pa.types.is_integer(column.type):
            least, most = limits.get(name, (-_LARGEST_NUMBER, _LARGEST_NUMBER))
            found = pc.min_max(column).as_py()
            if found["min"] is not None and not least <= found["min"] <= found["max"] <= most:
                return str(name)
    return None


def _to_segment(where: str, node: str, listed: "Listed") -> SegmentFile:
    # A manifest must not point outside its node's folder.
    match = _SEGMENT_PATH.fullmatch(listed.path)
    day = _parse_day(match[1]) if match else None
    if day is None or listed.rows != listed.last - listed.first + 1:
        raise ArchiveError(f"{where} lists an impossible segment: {listed.path!r}")
    return SegmentFile(
        node,
        day,
        f"node={node}/{listed.path}",
        listed.incarnation,
        listed.first,
        listed.last,
        listed.bytes,
        listed.sha256,
        listed.min_created_at,
        listed.max_created_at,
        listed.archived_at,
    )


def _parse_day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _slice_batches(
    file: pq.ParquetFile, piece: Slice, columns: list[str], at_once: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Exactly the rows of the slice, read from the row groups that hold them."""
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


def _add_columns(table: pa.Table, missing: Iterable[str], segment: SegmentFile) -> pa.Table:
    """Add the node, and nulls for columns that an older archive lacks."""
    for name in missing:
        kind = ROW_SCHEMA.field(name).type
        if name == "node":
            zeros = pa.array(np.zeros(table.num_rows, np.int32))
            column = pa.DictionaryArray.from_arrays(zeros, pa.array([segment.node]))
        elif pa.types.is_string(kind):
            column = pa.nulls(table.num_rows, pa.dictionary(pa.int32(), kind))
        else:
            column = pa.nulls(table.num_rows, kind)
        table = table.append_column(name, column)
    return table


def _complete_batch(
    batch: pa.RecordBatch, schema: pa.Schema, segment: SegmentFile
) -> pa.RecordBatch:
    """Add the columns of the path, and nulls for columns that an older archive lacks."""
    of_path = {"node": segment.node, "date": segment.date}
    present = set(batch.schema.names)
    arrays = [
        batch[field.name].cast(field.type)
        if field.name in present
        else pa.repeat(pa.scalar(of_path.get(field.name), field.type), batch.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
