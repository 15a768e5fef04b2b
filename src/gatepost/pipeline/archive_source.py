"""The archive as a Spark table of events: `format("gatepost")`, in batch and streaming.

Rows are those that signed manifests of admitted nodes list; a file that no manifest lists does not
exist. With the option `tables`, rows are those that a batch of these tables has taken in, so
segments that `run` set aside are excluded.

Reads are planned from manifests alone. Filters on node, date, seq and created_at skip segments; the
columns node, date, incarnation and seq are those of the manifest, so that a read of nothing else
opens no segment. Spark does not tell a Python source which columns a query needs, so pass `columns`
or a schema.

PySpark's classes are imported when a session registers the source, so this module and the workers
of a cluster need pyarrow and msgspec only.

Options of the source: `path` (the archive's root, a folder or any URI pyarrow can open),
`tables` and `batch` (a folder of tables, and the number of a batch that is done), `nodes`
(comma-separated), `since` and `until` (dates, both included), `columns` (comma-separated),
`verify` (`none` or `sha256`), `parallelism`; for streams also `maxRowsPerBatch`, `patience`
(seconds), `startingOffsets` (JSON) and `failOnDataLoss`.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from gatepost.archive.storage_uri import normalize_uri
from gatepost.clock import SystemClock
from gatepost.errors import PipelineError
from gatepost.pipeline import read_plan
from gatepost.pipeline.archive_reader import ROW_SCHEMA, ArchiveReader, Verify
from gatepost.pipeline.read_plan import Offsets, SegmentFile, Selection, Slice
from gatepost.pipeline.tables.arrow_schemas import STORED_TIME
from gatepost.pipeline.tables.stored_rows import store_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from gatepost.pipeline.archive_admission import ArchiveGate

FORMAT: Final = "gatepost"

_PARTITION_ROWS = 2 * 1024 * 1024
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_TIMES: Final = ("created_at", "expires_at", "eta_at")
_SPARK_ROWS: Final = pa.schema(
    [each.with_type(STORED_TIME) if each.name in _TIMES else each for each in ROW_SCHEMA]
)
_LISTED_COLUMNS = frozenset({"node", "date", "incarnation", "seq"})
_LISTED_ROWS = 256 * 1024


def spark_schema(columns: Collection[str] | None = None) -> "StructType":
    """The Spark schema of events, the same for every way to read them."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = {f.name: StructField(f.name, from_arrow_type(f.type)) for f in _SPARK_ROWS}
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
    tables: str | None = None
    batch: int | None = None
    starting_offsets: Offsets = {}
    fail_on_data_loss: bool = True


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
        tables=given.get("tables"),
        batch=_decode_number(given, "batch", 1) if given.get("batch") else None,
        starting_offsets=_decode_offsets(given),
        fail_on_data_loss=given.get("failondataloss", "true").lower() != "false",
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


def _decode_offsets(given: Mapping[str, str]) -> Offsets:
    try:
        return msgspec.json.decode(given.get("startingoffsets", "{}"), type=Offsets)
    except msgspec.DecodeError:
        raise PipelineError(
            "option startingOffsets is JSON: {node: {incarnation: last seq read}}"
        ) from None


def push_filter(column: str, op: str, value: Any) -> "PushedFilter | None":
    """The filter with times as epoch milliseconds; None if it compares with fractions of one."""
    if column not in _TIMES:
        return PushedFilter(column, op, value)
    steps = [
        divmod(each - _EPOCH, _MILLISECOND) for each in (value if op == "in" else [value]) if each
    ]
    if any(rest for _, rest in steps):
        return None
    times = [time for time, _ in steps]
    return PushedFilter(column, op, times if op == "in" else times[0]) if times else None


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
            return any(value is not None and least <= value <= most for value in self.value)
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
            piece
            for piece in _admitted_slices(options)
            if options.selection.includes(piece.segment)
            and all(each.may_match(piece.segment) for each in self.predicates)
        ]
        return read_plan.pack_slices(wanted, options.parallelism, _PARTITION_ROWS)

    def read_share(self, share: list[Slice]) -> Iterator[pa.RecordBatch]:
        options = self.options
        archive = ArchiveReader(options.path)
        applicable = [p for p in self.predicates if p.column in options.columns]
        for piece in share:
            for batch in read_slice(archive, piece, options):
                yield from map(to_spark_rows, _filter_batch(batch, applicable))


def _admitted_slices(options: SourceOptions) -> list[Slice]:
    """The rows that manifests of admitted nodes list, or of these those that a batch took in."""
    from gatepost.pipeline.jobs.batch_ledger import BatchLedger

    segments = _open_gate(options.path).admit_nodes().segments
    if options.tables is None:
        return [Slice(each, each.first, each.last) for each in segments]
    ledger = BatchLedger(options.tables)
    taken = ledger.last_done_batch() if options.batch is None else ledger.read_batch(options.batch)
    return list(read_plan.listed_slices(segments, {}, taken.end, taken.left_out))


def _open_gate(root: str) -> "ArchiveGate":
    # A late import: workers only read, and need not have the signing libraries.
    from gatepost.pipeline.archive_admission import ArchiveGate

    return ArchiveGate(ArchiveReader(root))


def read_slice(
    archive: ArchiveReader, piece: Slice, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of a slice. Columns that the manifest states need no file."""
    if _LISTED_COLUMNS.issuperset(options.columns) and options.verify == "none":
        return _list_rows(piece, options.columns)
    return archive.read_batches(piece, options.columns, options.verify)


def to_spark_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the archive with their times as TIMESTAMPs."""
    schema = pa.schema([_SPARK_ROWS.field(name) for name in batch.schema.names])
    arrays = [
        store_times(column, field.type) for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _list_rows(piece: Slice, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([ROW_SCHEMA.field(name) for name in columns])
    for first in range(piece.first, piece.last + 1, _LISTED_ROWS):
        seqs = pa.array(np.arange(first, min(first + _LISTED_ROWS, piece.last + 1)), pa.int64())
        arrays = [
            seqs if field.name == "seq" else _repeat_value(piece.segment, field, len(seqs))
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _repeat_value(segment: SegmentFile, field: pa.Field, times: int) -> pa.Array:
    return pa.repeat(pa.scalar(getattr(segment, field.name), field.type), times)


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
        self._archive = ArchiveReader(options.path)
        self._gate = _open_gate(options.path)
        self._frozen_segments: list[SegmentFile] | None = None
        self._cached_times: dict[str, Sequence[int]] = {}

    def freeze_listing(self) -> None:
        """Ignore segments that are listed later."""
        self._frozen_segments = self._current_segments()

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
        # The next batch begins in the segment in which this one ends, so keep its times.
        self._cached_times = used
        return end

    def newest_offsets(self) -> Offsets:
        segments = self._current_segments()
        lanes = read_plan.pending_lanes(segments, {}, self.options.selection)
        return read_plan.advance_offsets(lanes, {}, times=self._archive.row_times)

    def plan_shares(self, start: Offsets, end: Offsets) -> list[list[Slice]]:
        options, segments = self.options, self._current_segments()
        if options.fail_on_data_loss:
            wanted = read_plan.slices_between(segments, start, end, options.selection)
        else:
            found = read_plan.listed_slices(segments, start, end)
            wanted = [piece for piece in found if options.selection.includes(piece.segment)]
        return read_plan.pack_slices(wanted, options.parallelism, _PARTITION_ROWS)

    def _current_segments(self) -> list[SegmentFile]:
        if self._frozen_segments is None:
            return self._gate.admit_nodes().segments
        return self._frozen_segments

    def _row_times(self, segment: SegmentFile, used: dict[str, Sequence[int]]) -> Sequence[int]:
        if segment.path not in used:
            known = self._cached_times.get(segment.path)
            used[segment.path] = self._archive.row_times(segment) if known is None else known
        return used[segment.path]


def register_source(spark: "SparkSession") -> None:
    """Register `format("gatepost")` with this session."""
    from gatepost.pipeline.spark_source import GatepostSource

    spark.dataSource.register(GatepostSource)


def read_events(
    spark: "SparkSession",
    root: str,
    *,
    tables: str | None = None,
    batch: int | None = None,
    nodes: Collection[str] | None = None,
    since: date | None = None,
    until: date | None = None,
    columns: Collection[str] | None = None,
    verify: Verify = "none",
) -> "DataFrame":
    """All archived events, or those that a batch of these tables has taken in."""
    options = _encode_options(nodes=nodes, since=since, until=until, columns=columns)
    if tables is not None:
        options |= {"tables": normalize_uri(tables)}
    if batch is not None:
        options |= {"batch": str(batch)}
    register_source(spark)
    reader = spark.read.format(FORMAT).options(**options, verify=verify)
    return reader.option("parallelism", _default_parallelism(spark)).load(normalize_uri(root))


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
    starting_offsets: Offsets | None = None,
    fail_on_data_loss: bool = True,
) -> "DataFrame":
    """A stream of events as they are archived, all nodes together in time."""
    options = _encode_options(nodes=nodes, since=since, until=until, columns=columns)
    options |= {
        "maxRowsPerBatch": str(max_rows),
        "patience": str(patience),
        "startingOffsets": json.dumps(starting_offsets or {}),
        "failOnDataLoss": str(fail_on_data_loss),
        "parallelism": str(_default_parallelism(spark)),
    }
    register_source(spark)
    return spark.readStream.format(FORMAT).options(**options).load(normalize_uri(root))


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
