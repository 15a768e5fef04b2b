"""Delta tables without a JVM connector: executors write Parquet, the driver commits file lists.

Executors put files beside the table's own, where nobody sees them; one commit through
`deltalake` makes all of them visible, and removes those they replace, or does nothing. A stream
commits each batch as an application transaction (query, batch), so one that is run again after
a crash changes nothing. What a crash leaves behind are files no commit names, for `vacuum`.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from gatepost.clock import SystemClock
from gatepost.errors import PipelineError
from gatepost.pipeline.parquet import File, partition_text, write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable
    from deltalake import Schema as DeltaSchema
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

Mode = Literal["append", "overwrite", "replace"]

_MIB = 1024 * 1024
_QUERY_ID = "sql.streaming.queryId"


class Transaction(Struct, frozen=True):
    """Who commits, and which of its batches: a table takes each one once, in order."""

    app_id: str
    batch: int


class Made(Struct, frozen=True):
    """Rows that executors make of others in the same breath in which they write them."""

    of: Any
    by: "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]"
    schema: "StructType"

    @property
    def columns(self) -> list[str]:
        return self.schema.names


class Written(Struct, frozen=True):
    """`version` is the table's after the commit. `again`: the batch was there already."""

    version: int
    files: int
    rows: int
    again: bool = False


class How(TypedDict, total=False):
    """How rows get into a table: appended to it, unless this says otherwise.

    `replace` names partitions, `{"date": [...]}`: what they held is gone with this commit, also
    where there is no row for them.
    """

    mode: Mode
    partition_by: Sequence[str]
    replace: Mapping[str, Collection[Any]] | None
    transaction: Transaction | None


def write_table(df: "DataFrame | Made", path: str, **how: Unpack[How]) -> Written:
    """Write all rows of `df` in one commit; the table is made if there is none.

    Columns the table lacks are added to it. Rows that are made by executors are written as they
    come: those of a partition should come together.
    """
    return write_files_of(df, path, **how).commit()


def write_files_of(df: "DataFrame | Made", path: str, **how: Unpack[How]) -> "Pending":
    """The first half of `write_table`: the files are there, and nobody sees them yet."""
    mode, replace = how.get("mode", "append"), how.get("replace")
    if (mode == "replace") != bool(replace):
        raise PipelineError('mode="replace" and the partitions to replace belong together')
    path = _absolute(path)
    table = _open(path)
    pending = Pending(path, table, df, mode, (), [], replace, how.get("transaction"))
    if pending.done():
        return pending
    partitions = tuple(table.metadata().partition_columns if table else how.get("partition_by", ()))
    _check(df, table, mode, partitions, replace)
    files = _spread(df, path, partitions)
    _check_within(files, replace)
    return msgspec.structs.replace(pending, partitions=partitions, files=files)


def commit_batch(
    df: "DataFrame",
    batch_id: int,
    path: str,
    *,
    app_id: str | None = None,
    mode: Mode = "append",
    partition_by: Sequence[str] = (),
    replace: Mapping[str, Collection[Any]] | None = None,
) -> Written:
    """`write_table` for `foreachBatch`: the same batch of the same query counts once.

    A query is known by the id in its checkpoint, so a fresh checkpoint is a new query.
    """
    transaction = Transaction(app_id or query_id(df), batch_id)
    return write_table(
        df, path, mode=mode, partition_by=partition_by, replace=replace, transaction=transaction
    )


def write_stream(
    df: "DataFrame",
    path: str,
    checkpoint: str,
    *,
    partition_by: Sequence[str] = (),
    every: str | None = None,
    name: str | None = None,
) -> "StreamingQuery":
    """Append a stream to a table: all there is now, or again and again `every` ("30 seconds")."""

    def commit(batch: "DataFrame", batch_id: int) -> None:
        commit_batch(batch, batch_id, path, partition_by=partition_by)

    writer = df.writeStream.foreachBatch(commit).option("checkpointLocation", checkpoint)
    writer = writer.queryName(name) if name else writer
    trigger = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
    return trigger.start()


def query_id(df: "DataFrame") -> str:
    """The id of the streaming query this batch belongs to."""
    id = df.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    if not id:
        raise PipelineError("outside of a streaming query a batch needs an app_id of its own")
    return id


def read_table(
    spark: "SparkSession",
    path: str,
    *,
    where: Mapping[str, Collection[Any]] | None = None,
    version: int | None = None,
) -> "DataFrame":
    """The table as of now, or of an older version; `where` picks partitions."""
    path = _absolute(path)
    table = _existing(path, version)
    filters = _filters(where) if where else None
    return _frame(spark, path, table, table.file_uris(file_pruning_predicate=filters))


class Held(Struct, frozen=True):
    """A file of a table: where it is, the value of its partition, and its rows."""

    uri: str
    value: Any
    rows: int


def files(path: str, partition: str, values: Collection[Any]) -> list[Held]:
    """The files that hold these partitions."""
    path = _absolute(path)
    names = ("path", f"partition.{partition}", "num_records")
    rows = zip(*(_listed(path).column(name).to_pylist() for name in names), strict=True)
    return [
        Held(f"{path.rstrip('/')}/{unquote(name)}", value, count)
        for name, value, count in rows
        if value in values
    ]


def largest(path: str, column: str) -> int | None:
    """The largest value of a column of whole numbers, by what the log knows of each file."""
    files = _listed(path)
    known = files.column(f"max.{column}").to_pylist() if files.num_rows else []
    return max((value for value in known if value is not None), default=None)


def count(path: str) -> int:
    """How many rows there are, by what the log knows of each file."""
    files = _listed(path)
    return sum(files.column("num_records").to_pylist()) if files.num_rows else 0


def _listed(path: str) -> "pa.Table":
    import pyarrow as pa

    return pa.table(_existing(_absolute(path)).get_add_actions(flatten=True))


def table_exists(path: str) -> bool:
    return _open(path) is not None


def compact(
    spark: "SparkSession", path: str, *, target: int = 128 * _MIB, at_least: int = 4
) -> int:
    """Merge the small files of each partition that has several; returns how many went away."""
    path = _absolute(path)
    table = _existing(path)
    merged = [group for group in _small(table, target) if len(group) >= at_least]
    return sum(_merge(spark, path, group, target) for group in merged)


def vacuum(path: str, *, older_than_hours: int = 7 * 24) -> list[str]:
    """Delete files that no commit names, or none that recent readers use; returns their names."""
    return _existing(path).vacuum(
        older_than_hours, dry_run=False, enforce_retention_duration=False, full=True
    )


class Pending(Struct, frozen=True):
    """Files that wait for their commit."""

    path: str
    table: Any
    df: Any
    mode: Mode
    partitions: tuple[str, ...]
    files: list[File]
    replace: Mapping[str, Collection[Any]] | None
    transaction: Transaction | None

    def commit(self) -> Written:
        """Let everybody see them; nothing, if the same transaction was there before."""
        from deltalake.exceptions import CommitFailedError

        if done := self.done():
            return done
        try:
            version = _create(self) if self.table is None else _add(self)
        except CommitFailedError as error:
            # Another attempt at the same batch may have been faster; that is the same success.
            if done := _committed(_open(self.path), self.transaction):
                return done
            raise PipelineError(f"{self.path} was changed by somebody else: {error}") from None
        return Written(version, len(self.files), sum(file.rows for file in self.files))

    def done(self) -> Written | None:
        return _committed(self.table, self.transaction)


def _open(path: str, version: int | None = None) -> "DeltaTable | None":
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(path, version=version)
    except TableNotFoundError:
        return None


def _existing(path: str, version: int | None = None) -> "DeltaTable":
    table = _open(path, version)
    if table is None:
        raise PipelineError(f"there is no table at {path}")
    return table


def _absolute(path: str) -> str:
    """Executors need not run in the folder the driver runs in."""
    return path if "://" in path else str(Path(path).expanduser().absolute())


def _committed(table: "DeltaTable | None", transaction: Transaction | None) -> Written | None:
    if table is None or transaction is None:
        return None
    last = table.transaction_version(transaction.app_id)
    done = last is not None and last >= transaction.batch
    return Written(table.version(), 0, 0, again=True) if done else None


def _check(
    df: "DataFrame | Made",
    table: "DeltaTable | None",
    mode: Mode,
    partitions: Sequence[str],
    replace: Mapping[str, Collection[Any]] | None,
) -> None:
    """What would break the table is refused before any file is written."""
    missing = [name for name in partitions if name not in df.columns]
    if missing:
        raise PipelineError(f"the table is partitioned by {missing}, which these rows lack")
    stray = [name for name in replace or () if name not in partitions]
    if stray:
        raise PipelineError(f"only partitions can be replaced, and {stray} is none of them")
    if table is not None and mode != "overwrite":
        have = {field.name: field.type for field in table.schema().fields}
        for field in _schema(df).fields:
            if have.get(field.name, field.type) != field.type:
                raise PipelineError(
                    f"column {field.name} is {have[field.name]} in the table, not {field.type}"
                )


def _check_within(files: Sequence[File], replace: Mapping[str, Collection[Any]] | None) -> None:
    for name, values in (replace or {}).items():
        allowed = set(_texts(values))
        if outside := {file.partition[name] for file in files} - allowed:
            raise PipelineError(
                f"rows for {name}={sorted(map(str, outside))} are outside of what is replaced"
            )


def _spread(df: "DataFrame | Made", path: str, partitions: tuple[str, ...]) -> list[File]:
    """Let executors write the rows; only the list of files comes back."""
    if isinstance(df, Made):
        make, write = df.by, _writer(path, df.columns, partitions)
        return _collect(df.of, lambda batches: write(make(batches)))
    if partitions:
        # Few files, of a good size each; and sorted, so that a task has one of them open.
        df = df.hint("rebalance", *partitions).sortWithinPartitions(*partitions)
    return _collect(df, _writer(path, df.columns, partitions))


def _writer(
    path: str, columns: Sequence[str], partitions: tuple[str, ...]
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    def write(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return write_files(batches, path, columns, partitions)

    return write


def _collect(
    df: "DataFrame", write: "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]"
) -> list[File]:
    rows = df.mapInArrow(write, "file binary").collect()
    return [File.decode(bytes(row.file)) for row in rows]


def _create(commit: Pending) -> int:
    from deltalake.transaction import create_table_with_add_actions

    create_table_with_add_actions(
        commit.path,
        _schema(commit.df),
        _adds(commit.files),
        mode="error",
        partition_by=list(commit.partitions),
        commit_properties=_properties(commit.transaction),
    )
    return 0


def _add(commit: Pending) -> int:
    table: DeltaTable = commit.table
    schema = _schema(commit.df)
    if commit.mode != "overwrite":
        known = {field.name for field in table.schema().fields}
        if fresh := [field for field in schema.fields if field.name not in known]:
            table.alter.add_columns(fresh)
        schema = table.schema()
    # To replace no partition at all must not be taken for to replace all of them.
    nothing = commit.replace is not None and not all(commit.replace.values())
    table.create_write_transaction(
        list(_adds(commit.files)),
        "append" if commit.mode == "append" or nothing else "overwrite",
        schema,
        partition_by=list(commit.partitions),
        partition_filters=None if commit.replace is None or nothing else _filters(commit.replace),
        commit_properties=_properties(commit.transaction),
    )
    table.update_incremental()
    return table.version()


def _properties(transaction: Transaction | None) -> "CommitProperties | None":
    from deltalake import CommitProperties
    from deltalake.transaction import Transaction as AppTransaction

    if transaction is None:
        return None
    return CommitProperties(
        app_transactions=[AppTransaction(transaction.app_id, transaction.batch)]
    )


def _adds(files: Sequence[File], *, data_change: bool = True) -> "list[AddAction]":
    from deltalake.transaction import AddAction

    now = SystemClock().now()
    return [
        AddAction(file.path, file.size, file.partition, now, data_change, file.stats)
        for file in files
    ]


def _schema(df: "DataFrame | Made") -> "DeltaSchema":
    from deltalake import Schema

    schema = json.loads(df.schema.json())
    for field in schema["fields"]:
        field["nullable"] = True
    return Schema.from_json(json.dumps(schema))


def _filters(partitions: Mapping[str, Collection[Any]]) -> list[tuple[str, str, list[str]]]:
    return [(name, "in", _texts(values)) for name, values in partitions.items()]


def _texts(values: Collection[Any]) -> list[str]:
    return [partition_text(value) or "" for value in values]


def _frame(
    spark: "SparkSession", path: str, table: "DeltaTable", files: Sequence[str]
) -> "DataFrame":
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    if not files:
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).option("basePath", path).parquet(*files)
    return frame.select(*schema.names)


def _small(table: "DeltaTable", target: int) -> list[list[dict[str, Any]]]:
    """The files below half of the target, by partition."""
    import pyarrow as pa

    groups: dict[str, list[dict[str, Any]]] = {}
    for file in pa.table(table.get_add_actions()).to_pylist():
        if file["size_bytes"] < target // 2:
            # The log's spelling of a path, back to the name on disk.
            file["path"] = unquote(file["path"])
            groups.setdefault(file["path"].rpartition("/")[0], []).append(file)
    return list(groups.values())


def _merge(
    spark: "SparkSession", path: str, group: Sequence[Mapping[str, Any]], target: int
) -> int:
    """Replace these files by fewer that hold the same rows; readers see no change of data."""
    from deltalake.transaction import RemoveAction

    table = _existing(path)
    partitions = tuple(table.metadata().partition_columns)
    rows = _frame(spark, path, table, [f"{path.rstrip('/')}/{file['path']}" for file in group])
    size = sum(file["size_bytes"] for file in group)
    merged = rows.coalesce(max(1, math.ceil(size / target)))
    files = _collect(merged, _writer(path, merged.columns, partitions))
    now = SystemClock().now()
    removes = [
        RemoveAction(file["path"], False, now, file["size_bytes"], files[0].partition)
        for file in group
    ]
    table.create_write_transaction(
        [*_adds(files, data_change=False), *removes],
        "append",
        table.schema(),
        partition_by=list(partitions),
    )
    return len(group) - len(files)
