"""Reads the archive: manifests into segments, segments into Arrow batches.

A file that no manifest lists does not exist. Needs pyarrow and msgspec, but not Spark.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import replace
from pyarrow import fs

from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.archive.segment_table import READ_ERRORS, project_column
from gatepost.archive.storage_uri import normalize_uri
from gatepost.errors import ArchiveError
from gatepost.pipeline.read_plan import ROW_GROUP, FileVersion, SegmentFile, Slice, make_segment

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
"""Whether a file is compared with its digest before it is read."""


_BATCH_ROWS = 64 * 1024
_TIME: Final = ("created_at",)
_OF_PATH: Final = ("node", "date")
_REQUIRED: Final = frozenset(field.name for field in EVENT_SCHEMA if not field.nullable)
_ENCODED_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_SEGMENT_PATH = re.compile(r"date=(\d{4}-\d\d-\d\d)/[\w.-]+\.parquet")


class ArchiveReader:
    """Reads all nodes' segments as listed in their manifests."""

    def __init__(self, root: str) -> None:
        self._store = store = ArchiveStore.open(root)
        self._filesystem, self._base = store.filesystem, store.root
        # The absolute root with its scheme, for executors.
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

    def read_content(self, segment: SegmentFile) -> pa.Buffer:
        """The content of a listed file; ArchiveError with the reason if it is missing."""
        if self._store.is_special_file(segment.path):
            raise ArchiveError("it is not a file")
        try:
            with self._filesystem.open_input_file(self._file_path(segment)) as file:
                return file.read_buffer()
        except FileNotFoundError:
            raise ArchiveError("the file is missing") from None
        except OSError as error:
            raise ArchiveError(f"the file cannot be read: {error}") from None

    def row_times(self, segment: SegmentFile) -> Sequence[int]:
        """For each row the latest `created_at` of it and the rows before it."""
        piece = Slice(segment, segment.first, segment.last)
        times = [batch["created_at"].to_numpy() for batch in self.read_batches(piece, _TIME)]
        latest: Any = np.maximum.accumulate(np.concatenate(times))
        return cast("Sequence[int]", latest)

    def read_batches(
        self, piece: Slice, columns: Collection[str], verify: Verify = "none"
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a slice with `node` and `date` attached."""
        schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
        source = self._open_input(piece.segment, verify)
        with _wrap_read_errors(piece.segment), pq.ParquetFile(source, pre_buffer=True) as file:
            for batch in _slice_batches(file, piece, columns):
                yield project_batch(batch, schema, piece.segment)

    def read_tables(
        self, piece: Slice, columns: Collection[str], texts: Collection[str]
    ) -> Iterator[pa.Table]:
        """The rows of a slice, about a row group at a time; `texts` are dictionary-encoded."""
        encoded = [name for name in texts if name in columns]
        schema = encoded_schema(columns, [*encoded, "node"])
        with _wrap_read_errors(piece.segment), self._open_parquet(piece.segment, encoded) as file:
            for batch in _slice_batches(file, piece, columns, ROW_GROUP):
                yield pa.Table.from_batches([project_batch(batch, schema, piece.segment)])

    def _open_parquet(self, segment: SegmentFile, encoded: Sequence[str]) -> pq.ParquetFile:
        where = self._file_path(segment)
        return open_encoded(partial(pq.ParquetFile, where, filesystem=self._filesystem), encoded)

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
        if hashlib.sha256(content).digest() != segment.sha256:
            raise ArchiveError(f"{segment.path} is not the file its manifest lists: wrong SHA-256")
        return pa.BufferReader(content)

    def _file_path(self, segment: SegmentFile) -> str:
        return f"{self._base}/{segment.path}"


@contextmanager
def _wrap_read_errors(segment: SegmentFile) -> Iterator[None]:
    """Re-raise read errors as `ArchiveError` that names the segment."""
    try:
        yield
    except READ_ERRORS as error:
        raise ArchiveError(f"{segment.path} cannot be read: {error}") from None


class NodeListing(Struct, frozen=True):
    """The manifest of a node, its segments, and whether the key it names has signed it.

    The manifest is kept without its own list of segments: a room may have millions of them.
    `problem` is the reason for a missing manifest.
    """

    node: str
    manifest: "ArchiveManifest | None" = None
    segments: list[SegmentFile] = []
    is_signed: bool = False
    problem: str | None = None
    is_present: bool = True


def _read_listing(where: str, content: bytes) -> NodeListing:
    # A late import, because workers only read segments and may lack the signing libraries.
    from gatepost.archive.manifest import decode_manifest, is_manifest_signed

    node = where.split("/")[-2].removeprefix("node=")
    try:
        manifest = decode_manifest(content, where)
        if manifest.node != node:
            raise ArchiveError(f"{where} belongs to node {manifest.node}, not into this folder")
        incarnations: dict[str, str] = {}
        segments = [_to_segment(where, node, listed, incarnations) for listed in manifest.segments]
    except ArchiveError as error:
        return NodeListing(node, problem=error.message)
    return NodeListing(node, replace(manifest, segments=()), segments, is_manifest_signed(manifest))


def _to_segment(
    where: str, node: str, listed: "Listed", incarnations: dict[str, str]
) -> SegmentFile:
    # A manifest must not point outside its node's folder.
    match = _SEGMENT_PATH.fullmatch(listed.path)
    day = _parse_day(match[1]) if match else None
    if day is None or listed.rows != listed.last - listed.first + 1:
        raise ArchiveError(f"{where} lists an impossible segment: {listed.path!r}")
    # All segments of an incarnation share one text.
    incarnation = incarnations.setdefault(listed.incarnation, listed.incarnation)
    return make_segment(
        node,
        day,
        incarnation,
        (listed.first, listed.last),
        (listed.min_created_at, listed.max_created_at),
        FileVersion(bytes.fromhex(listed.sha256), listed.bytes, listed.archived_at),
        listed.path,
    )


@lru_cache(maxsize=1024)
def _parse_day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _slice_batches(
    file: pq.ParquetFile, piece: Slice, columns: Collection[str], at_once: int = _BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Exactly the rows of a slice, read from their row groups."""
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    groups: list[int] = []
    skip = position = 0
    for index, size in enumerate(sizes):
        if position < piece.skipped + piece.rows and position + size > piece.skipped:
            skip = skip if groups else piece.skipped - position
            groups.append(index)
        position += size
    left = piece.rows
    names = set(file.schema_arrow.names)
    wanted = [name for name in columns if name in names]
    for batch in file.iter_batches(at_once, row_groups=groups, columns=wanted, use_threads=False):
        cut = batch.slice(skip, left)
        skip = max(0, skip - batch.num_rows)
        left -= cut.num_rows
        if cut.num_rows:
            yield cut


def encoded_schema(columns: Iterable[str], encoded: Collection[str]) -> pa.Schema:
    """The schema of these columns, with the texts of `encoded` as dictionaries."""
    fields = map(ROW_SCHEMA.field, columns)
    return pa.schema(
        field.with_type(_ENCODED_TEXT) if field.name in encoded else field for field in fields
    )


def open_encoded(
    open_file: Callable[..., pq.ParquetFile], encoded: Sequence[str]
) -> pq.ParquetFile:
    """Open a file so that these columns are read as dictionaries, if it has them."""
    try:
        return open_file(read_dictionary=encoded)
    except KeyError:
        # An older file lacks some of the columns.
        with open_file() as file:
            present = set(file.schema_arrow.names)
        return open_file(read_dictionary=[name for name in encoded if name in present])


def project_batch(batch: pa.RecordBatch, schema: pa.Schema, segment: SegmentFile) -> pa.RecordBatch:
    """The columns of this schema, in its order and with its types."""
    arrays = [_project_field(batch, field, segment) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _project_field(batch: pa.RecordBatch, field: pa.Field, segment: SegmentFile) -> pa.Array:
    """One column. Node and date come from the path, not from the file."""
    if field.name in _OF_PATH:
        value = pa.array([getattr(segment, field.name)], ROW_SCHEMA.field(field.name).type)
        if not pa.types.is_dictionary(field.type):
            return pa.repeat(value[0], batch.num_rows)
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(batch.num_rows, np.int32)), value)
    if batch.schema.get_field_index(field.name) >= 0:
        return project_column(batch[field.name], field.type)
    if field.name in _REQUIRED:
        raise ArchiveError(f"{segment.path} cannot be read: it lacks the column {field.name}")
    return pa.nulls(batch.num_rows, field.type)
