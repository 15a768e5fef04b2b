"""Delta tables without a JVM connector: executors write Parquet, the driver commits file lists.

Executors put files beside the table's own, where no reader sees them. One commit through
`deltalake` makes all of them visible and removes the files they replace, or changes nothing. A
stream commits each batch as an application transaction (query, batch), so repeating a batch after
a crash changes nothing. A crash leaves files that no commit names; `vacuum_table` deletes them.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack
from urllib.parse import unquote

from msgspec import Struct

from gatepost.archive.storage_uri import is_local_uri, normalize_uri, s3_endpoint
from gatepost.clock import SystemClock
from gatepost.errors import PipelineError, TablesBusy
from gatepost.pipeline.job_errors import name_full_disk
from gatepost.pipeline.parquet import (
    WrittenFile,
    partition_text,
    read_whole_file,
    write_files,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable
    from deltalake import Schema as DeltaSchema
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WriteMode = Literal["append", "overwrite", "replace"]

_MIB = 1024 * 1024
_MEASURED_TYPES = {f'PrimitiveType("{name}")' for name in ("long", "integer", "date", "timestamp")}


class BatchTransaction(Struct, frozen=True):
    """A batch of an application. A table takes each batch once, in order."""

    app_id: str
    batch: int


class CommitResult(Struct, frozen=True):
    """`version` is the table's after the commit. `again`: the batch was committed before."""

    version: int
    files: int
    rows: int
    again: bool = False


class WriteOptions(TypedDict, total=False):
    """How rows are written to a table; the default is to append.

    `replace` names partitions, `{"date": [...]}`. The commit removes all their former rows, also of
    partitions without new rows. `comment` says what a new table is.
    """

    mode: WriteMode
    partition_by: Sequence[str]
    replace: Mapping[str, Collection[Any]] | None
    transaction: BatchTransaction | None
    comment: str


def begin_write(path: str, schema: Mapping[str, Any], **how: Unpack[WriteOptions]) -> "TableWrite":
    """Start a write of rows of this schema; the caller writes the files and commits them.

    Columns that the table lacks are added to it.
    """
    mode, replace = how.get("mode", "append"), how.get("replace")
    if (mode == "replace") != bool(replace):
        raise PipelineError('mode="replace" and the partitions to replace belong together')
    path, transaction = normalize_uri(path), how.get("transaction")
    table = open_table(path)
    partitions = tuple(table.metadata().partition_columns if table else how.get("partition_by", ()))
    writing = TableWrite(
        path,
        table,
        _delta_schema(schema),
        mode,
        partitions,
        replace,
        transaction,
        how.get("comment"),
    )
    if not writing.earlier_commit:
        _check_schema(writing)
    return writing


def read_table(spark: "SparkSession", path: str, *, version: int | None = None) -> "DataFrame":
    """The table at its current version, or at an older `version`."""
    path = normalize_uri(path)
    table = require_table(path, version)
    return _read_files(spark, path, table, table.file_uris())


class StoredFile(Struct, frozen=True):
    """A file of a table; `value` is the partition or statistic that the caller asked for."""

    uri: str
    value: Any
    rows: int


def list_files(
    path: str,
    partition: str,
    version: int | None = None,
    *,
    unless: tuple[str, Collection[int]] | None = None,
) -> list[StoredFile]:
    """All files of an existing table, each with its value of this partition.

    With `unless` those are left out all of whose values of a column are among these numbers.
    """
    found = _stored_files(path, f"partition.{partition}", version)
    if unless is None:
        return found
    column, among = unless
    least = {file.uri: file.value for file in _stored_files(path, f"min.{column}", version)}
    most = {file.uri: file.value for file in _stored_files(path, f"max.{column}", version)}
    return [
        file
        for file in found
        if not all(each in among for each in range(least[file.uri], most[file.uri] + 1))
    ]


def files_since(path: str, column: str, least: int) -> list[StoredFile]:
    """The files of an existing table that may hold a value of `column` of at least `least`.

    A time is its epoch millisecond.
    """
    stored = _stored_files(path, f"max.{column}")
    return [file for file in stored if file.value is None or file.value >= least]


def largest_value(path: str, column: str) -> int | None:
    """The largest value of a column of whole numbers, from the log's statistics of each file."""
    known = (file.value for file in _stored_files(path, f"max.{column}"))
    return max((value for value in known if value is not None), default=None)


def _stored_files(path: str, value: str, version: int | None = None) -> list[StoredFile]:
    """All files, each with one of its values in the log."""
    import pyarrow as pa

    from gatepost.pipeline.tables.stored_rows import to_reckoned

    path = normalize_uri(path)
    listed = pa.table(require_table(path, version).get_add_actions(flatten=True))
    if not listed.num_rows:
        return []
    columns = (to_reckoned(listed)[name].to_pylist() for name in ("path", value, "num_records"))
    found = zip(*columns, strict=True)
    return [StoredFile(f"{path.rstrip('/')}/{unquote(name)}", *rest) for name, *rest in found]


def version_of_batch(path: str, app_id: str, batch: int) -> int | None:
    """The last version of a table before it took a later batch; None if that is gone.

    The number of the batch never goes down from one version to the next.
    """
    first, last = 0, require_table(path).version()
    while first < last:
        middle = (first + last + 1) // 2
        taken = _taken_batch(path, app_id, middle)
        if taken is None or taken <= batch:
            first = middle
        else:
            last = middle - 1
    taken = _taken_batch(path, app_id, first)
    return first if taken is not None and taken <= batch else None


def values_since_batch(path: str, partition: str, app_id: str, batch: int) -> set[Any]:
    """The values of a partition in all files that were written after this batch.

    If the version of that batch is gone, those of all files.
    """
    version, value = version_of_batch(path, app_id, batch), f"partition.{partition}"
    before = [] if version is None else _stored_files(path, value, version)
    known = {file.uri for file in before}
    return {file.value for file in _stored_files(path, value) if file.uri not in known}


def _taken_batch(path: str, app_id: str, version: int) -> int | None:
    """The last batch in this version; None without a batch, or if the version is gone."""
    from deltalake.exceptions import DeltaError

    try:
        table = require_table(path, version)
    except DeltaError:
        return None
    return table.transaction_version(app_id)


def table_exists(path: str) -> bool:
    return open_table(path) is not None


def compact_table(path: str, *, target: int = 128 * _MIB) -> int:
    """Merge the small files of each partition; returns how many fewer remain.

    Readers see no change of data. Delta's library does it in this process, a few files at a time.
    """
    from deltalake import WriterProperties

    done = require_table(path).optimize.compact(
        target_size=target, writer_properties=WriterProperties(compression="ZSTD")
    )
    return int(done["numFilesRemoved"] - done["numFilesAdded"])


def vacuum_table(path: str, *, older_than_hours: int = 7 * 24) -> list[str]:
    """Delete old files that the table no longer uses or no commit names; returns their names."""
    return require_table(path).vacuum(
        older_than_hours, dry_run=False, enforce_retention_duration=False, full=True
    )


class TableWrite(Struct, frozen=True):
    """A write to a table in progress; `table` is its current state, or None before the first."""

    path: str
    table: Any
    schema: Any
    mode: WriteMode
    partitions: tuple[str, ...]
    replace: Mapping[str, Collection[Any]] | None
    transaction: BatchTransaction | None
    comment: str | None

    @property
    def earlier_commit(self) -> CommitResult | None:
        """The earlier commit of the same transaction, if there is one."""
        return _find_commit(self.table, self.transaction)

    def commit(self, files: Sequence[WrittenFile]) -> CommitResult:
        """Make these files visible, unless the transaction was committed before."""
        from deltalake.exceptions import DeltaError

        if done := self.earlier_commit:
            return done
        _check_partitions(files, self.replace)
        try:
            with name_full_disk(self.path):
                version = self._commit_files(files)
        except DeltaError as error:
            # Another attempt at the same batch may have committed first; that is a success too.
            if done := _find_commit(open_table(self.path), self.transaction):
                return done
            raise TablesBusy(f"{self.path} was changed by another writer: {error}") from None
        return CommitResult(version, len(files), sum(file.rows for file in files))

    def _commit_files(self, files: Sequence[WrittenFile]) -> int:
        return _create_table(self, files) if self.table is None else _add_files(self, files)


def open_table(path: str, version: int | None = None) -> "DeltaTable | None":
    """Open a table; None if there is none."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    uri = normalize_uri(path)
    try:
        return DeltaTable(uri, version=version, storage_options=_storage_options(uri))
    except TableNotFoundError:
        return None


def _storage_options(uri: str) -> dict[str, str] | None:
    """Options of `deltalake`, which takes all others from the environment."""
    endpoint = s3_endpoint() if uri.startswith("s3://") else None
    return {"AWS_ALLOW_HTTP": "true"} if (endpoint or "").startswith("http://") else None


def require_table(path: str, version: int | None = None) -> "DeltaTable":
    table = open_table(path, version)
    if table is None:
        raise PipelineError(f"there is no table at {path}")
    return table


def _find_commit(
    table: "DeltaTable | None", transaction: BatchTransaction | None
) -> CommitResult | None:
    if table is None or transaction is None:
        return None
    last = table.transaction_version(transaction.app_id)
    done = last is not None and last >= transaction.batch
    return CommitResult(table.version(), 0, 0, again=True) if done else None


def _check_schema(writing: TableWrite) -> None:
    """Refuse rows that would break the table, before any file is written."""
    fields, table = writing.schema.fields, writing.table
    names = {field.name for field in fields}
    missing = [name for name in writing.partitions if name not in names]
    if missing:
        raise PipelineError(f"the table is partitioned by {missing}, which these rows lack")
    stray = [name for name in writing.replace or () if name not in writing.partitions]
    if stray:
        raise PipelineError(f"only partitions can be replaced, and {stray} is none of them")
    if table is not None and writing.mode != "overwrite":
        have = {field.name: field.type for field in table.schema().fields}
        for field in fields:
            if have.get(field.name, field.type) != field.type:
                raise PipelineError(
                    f"column {field.name} is {have[field.name]} in the table, not {field.type}"
                )


def _check_partitions(
    files: Sequence[WrittenFile], replace: Mapping[str, Collection[Any]] | None
) -> None:
    for name, values in (replace or {}).items():
        allowed = set(_partition_texts(values))
        if outside := {file.partition[name] for file in files} - allowed:
            raise PipelineError(
                f"rows for {name}={sorted(map(str, outside))} are outside of what is replaced"
            )


def write_frame(df: "DataFrame", writing: TableWrite) -> list[WrittenFile]:
    """Let executors write the rows, balanced over the partitions; returns the list of files."""
    if partitions := writing.partitions:
        # Few files of a suitable size, sorted so that a task has one file open at a time.
        df = df.hint("rebalance", *partitions).sortWithinPartitions(*partitions)
    return _write_rows(df, writing.path, partitions)


def _write_rows(df: "DataFrame", path: str, partitions: tuple[str, ...]) -> list[WrittenFile]:
    columns = df.columns

    def write(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        for file in write_files(batches, path, columns, partitions):
            yield pa.RecordBatch.from_pydict({"file": pa.array([file.encode()], pa.binary())})

    rows = df.mapInArrow(write, "file binary").collect()
    return [WrittenFile.decode(bytes(row.file)) for row in rows]


def _create_table(writing: TableWrite, files: Sequence[WrittenFile]) -> int:
    from deltalake.transaction import create_table_with_add_actions

    create_table_with_add_actions(
        writing.path,
        writing.schema,
        _add_actions(files),
        mode="error",
        partition_by=list(writing.partitions),
        description=writing.comment,
        storage_options=_storage_options(writing.path),
        configuration={"delta.dataSkippingStatsColumns": ",".join(_measured_columns(writing))},
        commit_properties=_commit_properties(writing.transaction),
    )
    return 0


def _measured_columns(writing: TableWrite) -> list[str]:
    """The columns that readers may skip files by.

    `deltalake` takes a column whose extremes are unknown for one that matches nothing, so only
    columns whose extremes are always known may be among them.
    """
    return [
        field.name
        for field in writing.schema.fields
        if str(field.type) in _MEASURED_TYPES and field.name not in writing.partitions
    ]


def _add_files(writing: TableWrite, files: Sequence[WrittenFile]) -> int:
    table: DeltaTable = writing.table
    schema = writing.schema
    if writing.mode != "overwrite":
        known = {field.name for field in table.schema().fields}
        if fresh := [field for field in schema.fields if field.name not in known]:
            table.alter.add_columns(fresh)
        schema = table.schema()
    # Replacing no partition must not replace all of them.
    replace = writing.replace if writing.replace and all(writing.replace.values()) else None
    append = writing.mode == "append" or (writing.mode == "replace" and replace is None)
    table.create_write_transaction(
        list(_add_actions(files)),
        "append" if append else "overwrite",
        schema,
        partition_by=list(writing.partitions),
        partition_filters=_partition_filters(replace) if replace else None,
        commit_properties=_commit_properties(writing.transaction),
    )
    table.update_incremental()
    return table.version()


def _commit_properties(transaction: BatchTransaction | None) -> "CommitProperties | None":
    from deltalake import CommitProperties
    from deltalake.transaction import Transaction as AppTransaction

    if transaction is None:
        return None
    return CommitProperties(
        app_transactions=[AppTransaction(transaction.app_id, transaction.batch)]
    )


def _add_actions(files: Sequence[WrittenFile], *, data_change: bool = True) -> "list[AddAction]":
    from deltalake.transaction import AddAction

    now = SystemClock().now()
    return [
        AddAction(file.path, file.size, file.partition, now, data_change, file.stats)
        for file in files
    ]


def _delta_schema(schema: Mapping[str, Any]) -> "DeltaSchema":
    """Spark's schema in Delta's form, with every column nullable."""
    from deltalake import Schema

    fields = [field | {"nullable": True} for field in schema["fields"]]
    return Schema.from_json(json.dumps({"type": "struct", "fields": fields}))


def _partition_filters(
    partitions: Mapping[str, Collection[Any]],
) -> list[tuple[str, str, list[str]]]:
    return [(name, "in", _partition_texts(values)) for name, values in partitions.items()]


def _partition_texts(values: Collection[Any]) -> list[str]:
    return [partition_text(value) or "" for value in values]


def _read_files(
    spark: "SparkSession", path: str, table: "DeltaTable", files: Sequence[str]
) -> "DataFrame":
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    if not files:
        return spark.createDataFrame([], schema)
    if not is_local_uri(path):
        return _read_remote_files(spark, table, files, schema)
    frame = spark.read.schema(schema).option("basePath", path).parquet(*files)
    return frame.select(*schema.names)


def _read_remote_files(
    spark: "SparkSession", table: "DeltaTable", files: Sequence[str], schema: "StructType"
) -> "DataFrame":
    """Read files of a bucket with pyarrow: this Spark may have no connector for it."""
    import pyarrow as pa

    stored = pa.schema(table.schema().to_arrow())
    partitions = {name: stored.field(name).type for name in table.metadata().partition_columns}
    names, uris = schema.names, list(files)

    def read(numbers: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_whole_file(uris[number], names, partitions)

    return spark.range(0, len(uris), 1, len(uris)).mapInArrow(read, schema)
