"""Spark's view of the archive: `format("gatepost")` in batch and streaming, and plain Parquet.

Reads are planned from the nodes' manifests alone; a file that no manifest lists does not exist.
PySpark's classes are imported when a session registers the source, so this module and the workers
of a cluster need pyarrow and msgspec only.

Options of the source: `path` (the archive's root, a folder or any URI pyarrow can open),
`nodes` (comma-separated), `since` and `until` (dates, both included), `columns`
(comma-separated), `verify` (`none` or `sha256`), `parallelism`; for streams also
`maxRowsPerBatch` and `patience` (seconds).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from gatepost.clock import SystemClock
from gatepost.errors import PipelineError
from gatepost.pipeline import read_plan
from gatepost.pipeline.archive_reader import ROW_SCHEMA, ArchiveReader, Verify
from gatepost.pipeline.read_plan import Offsets, SegmentFile, Selection, Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "gatepost"

_PARTITION_ROWS = 2 * 1024 * 1024


def spark_schema(columns: Collection[str] | None = None) -> "StructType":
    """The Spark schema of events, the same for every way to read them."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = {f.name: StructField(f.name, from_arrow_type(f.type)) for f in ROW_SCHEMA}
    return StructType([fields[name] for name in _check_columns(columns or ROW_SCHEMA.names)])


def _check_columns(columns: Collection[str]) -> list[str]:
    unknown = [name for name in columns if name not in ROW_SCHEMA.names]
    if unknown:
        raise PipelineError(f"events have no column {', '.join(unknown)}")
    return list(columns)


class SourceOptions(Struct, frozen=True):
    """The decoded options of the source."""

    path: str
    selection: Selection
    columns: tuple[str, ...]
    verify: Verify
    parallelism: int
    max_rows: int
    patience: int


def decode_options(options: Mapping[str, str]) -> SourceOptions:
    # Spark passes option names in lower case.
    given = {name.lower(): value for name, value in options.items()}
    if not given.get("path"):
        raise PipelineError("the source needs the archive's root: option `path`")
    verify = given.get("verify", "none")
    if verify not in {"none", "sha256"}:
        raise PipelineError(f"option verify is none or sha256, not {verify!r}")
    return SourceOptions(
        path=given["path"],
        selection=_decode_selection(given),
        columns=tuple(_check_columns(_split_names(given.get("columns")) or ROW_SCHEMA.names)),
        verify="sha256" if verify == "sha256" else "none",
        parallelism=_decode_number(given, "parallelism", 8),
        max_rows=_decode_number(given, "maxrowsperbatch", 1_000_000),
        patience=_decode_number(given, "patience", 60, least=0) * 1000,
    )


def _decode_selection(given: Mapping[str, str]) -> Selection:
    nodes = _split_names(given.get("nodes"))
    return Selection(
        frozenset(nodes) if nodes else None,
        _decode_day(given, "since"),
        _decode_day(given, "until"),
    )


def _split_names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _decode_day(given: Mapping[str, str], name: str) -> date | None:
    try:
        return date.fromisoformat(given[name]) if given.get(name) else None
    except ValueError:
        raise PipelineError(f"option {name} is not a date: {given[name]!r}") from None


def _decode_number(given: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    try:
        number = int(given.get(name, default))
    except ValueError:
        number = least - 1
    if number < least:
        raise PipelineError(f"option {name} is a whole number from {least}, not {given[name]!r}")
    return number


class PushedFilter(Struct, frozen=True):
    """A filter that Spark pushed down: `column op value`, where op is one of = < <= > >= in."""

    column: str
    op: str
    value: Any

    def may_match(self, segment: SegmentFile) -> bool:
        """Whether the segment can hold a row that passes."""
        least, most = _column_range(segment, self.column)
        if least is None:
            return True
        if self.op == "in":
            return any(least <= value <= most for value in self.value)
        return bool(_RANGE_TESTS[self.op](least, most, self.value))

    def to_expression(self) -> pc.Expression:
        return _EXPRESSIONS[self.op](pc.field(self.column), self.value)


PUSHABLE_COLUMNS: Final = ("node", "date", "kind", "seq", "created_at")

_RANGE_TESTS: Final[dict[str, Any]] = {
    "=": lambda least, most, value: least <= value <= most,
    "<": lambda least, _, value: least < value,
    "<=": lambda least, _, value: least <= value,
    ">": lambda _, most, value: most > value,
    ">=": lambda _, most, value: most >= value,
}
_EXPRESSIONS: Final[dict[str, Any]] = {
    "=": lambda column, value: column == value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
    "in": lambda column, value: column.isin(list(value)),
}


def _column_range(segment: SegmentFile, column: str) -> tuple[Any, Any]:
    return {
        "node": (segment.node, segment.node),
        "date": (segment.date, segment.date),
        "seq": (segment.first, segment.last),
        "created_at": (segment.min_created_at, segment.max_created_at),
    }.get(column, (None, None))


class BatchRead:
    """A batch read: plans the shares, and reads one of them."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.predicates: list[PushedFilter] = []

    def plan_shares(self) -> list[list[Slice]]:
        options = self.options
        wanted = [
            Slice(s, s.first, s.last)
            for s in ArchiveReader(options.path).list_segments()
            if options.selection.includes(s) and all(p.may_match(s) for p in self.predicates)
        ]
        return read_plan.pack_slices(wanted, options.parallelism, _PARTITION_ROWS)

    def read_share(self, share: list[Slice]) -> Iterator[pa.RecordBatch]:
        options = self.options
        archive = ArchiveReader(options.path)
        applicable = [p for p in self.predicates if p.column in options.columns]
        for piece in share:
            for batch in archive.read_batches(piece, options.columns, options.verify):
                yield from _filter_batch(batch, applicable)


def _filter_batch(
    batch: pa.RecordBatch, predicates: list[PushedFilter]
) -> Iterator[pa.RecordBatch]:
    if not predicates:
        yield batch
        return
    table = pa.Table.from_batches([batch])
    for predicate in predicates:
        table = table.filter(predicate.to_expression())
    yield from table.to_batches()


class StreamPlan:
    """A streaming read: plans the end of the next batch, and the shares between two offsets."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.archive = ArchiveReader(options.path)
        self._frozen_segments: list[SegmentFile] | None = None
        self._cached_times: dict[str, Sequence[int]] = {}

    def freeze_listing(self) -> None:
        """Keep to the segments listed now; later ones are ignored."""
        self._frozen_segments = self.archive.list_segments()

    def next_offsets(self, start: Offsets, budget: int | None) -> Offsets:
        options = self.options
        segments = self._current_segments()
        lanes = read_plan.pending_lanes(segments, start, options.selection)
        # A read of everything available does not wait for slower nodes.
        waits = budget is not None and self._frozen_segments is None and options.patience > 0
        until = (
            read_plan.archived_frontier(segments, SystemClock().now(), options.patience)
            if waits
            else None
        )
        used: dict[str, Sequence[int]] = {}
        end = read_plan.advance_offsets(
            lanes, start, times=lambda s: self._row_times(s, used), budget=budget, until=until
        )
        # The next batch begins in the segment this one ends in, so keep its times.
        self._cached_times = used
        return end

    def newest_offsets(self) -> Offsets:
        segments = self._current_segments()
        lanes = read_plan.pending_lanes(segments, {}, self.options.selection)
        return read_plan.advance_offsets(lanes, {}, times=self.archive.row_times)

    def plan_shares(self, start: Offsets, end: Offsets) -> list[list[Slice]]:
        options = self.options
        wanted = read_plan.slices_between(self._current_segments(), start, end, options.selection)
        return read_plan.pack_slices(wanted, options.parallelism, _PARTITION_ROWS)

    def _current_segments(self) -> list[SegmentFile]:
        return (
            self.archive.list_segments() if self._frozen_segments is None else self._frozen_segments
        )

    def _row_times(self, segment: SegmentFile, used: dict[str, Sequence[int]]) -> Sequence[int]:
        if segment.path not in used:
            known = self._cached_times.get(segment.path)
            used[segment.path] = self.archive.row_times(segment) if known is None else known
        return used[segment.path]


def register_source(spark: "SparkSession") -> None:
    """Register `format("gatepost")` with this session.

    Jobs do not need it, and Spark starts a Python process of its own for it.
    """
    from gatepost.pipeline.spark_source import GatepostSource

    spark.dataSource.register(GatepostSource)


def read_events(
    spark: "SparkSession",
    root: str,
    *,
    nodes: Collection[str] | None = None,
    since: date | None = None,
    until: date | None = None,
    columns: Collection[str] | None = None,
    verify: Verify = "none",
) -> "DataFrame":
    """All archived events, read the fastest way there is.

    That is Spark's own Parquet reader over the listed files, where Spark can open them. The Arrow
    source is slower, but reads from any storage pyarrow knows, and verifies digests.
    """
    if verify != "none" or not _can_spark_open(root):
        options = _encode_options(nodes=nodes, since=since, until=until, columns=columns)
        register_source(spark)
        return (
            spark.read.format(FORMAT)
            .options(**options, verify=verify, parallelism=_default_parallelism(spark))
            .load(ArchiveReader(root).uri)
        )
    selection = Selection(frozenset(nodes) if nodes is not None else None, since, until)
    archive = ArchiveReader(root)
    files = archive.file_uris(s for s in archive.list_segments() if selection.includes(s))
    frame = _read_parquet(spark, archive.uri, files)
    return frame.select(*_check_columns(columns)) if columns is not None else frame


def _read_parquet(spark: "SparkSession", root: str, files: list[str]) -> "DataFrame":
    if not files:
        return spark.createDataFrame([], spark_schema())
    return spark.read.schema(spark_schema()).option("basePath", root).parquet(*files)


def read_stream(
    spark: "SparkSession",
    root: str,
    *,
    nodes: Collection[str] | None = None,
    since: date | None = None,
    until: date | None = None,
    columns: Collection[str] | None = None,
    max_rows: int = 1_000_000,
    patience: int = 60,
) -> "DataFrame":
    """A stream of events as they are archived, all nodes together in time."""
    options = _encode_options(nodes=nodes, since=since, until=until, columns=columns)
    register_source(spark)
    stream = spark.readStream.format(FORMAT).options(
        **options, parallelism=_default_parallelism(spark)
    )
    return stream.options(maxRowsPerBatch=max_rows, patience=patience).load(ArchiveReader(root).uri)


def _encode_options(
    *,
    nodes: Collection[str] | None,
    since: date | None,
    until: date | None,
    columns: Collection[str] | None,
) -> dict[str, str]:
    given = {
        "nodes": ",".join(sorted(nodes)) if nodes else None,
        "since": since and since.isoformat(),
        "until": until and until.isoformat(),
        "columns": ",".join(columns) if columns else None,
    }
    return {name: value for name, value in given.items() if value}


def _default_parallelism(spark: "SparkSession") -> int:
    from gatepost.pipeline.transport import SparkTransport

    return SparkTransport(spark).slots


def _can_spark_open(root: str) -> bool:
    return "://" not in root or root.startswith(("file://", "hdfs://"))
