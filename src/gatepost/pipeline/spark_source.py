"""The PySpark data source: thin classes around the plans in `archive_source`."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.archive_source import (
    FORMAT,
    PUSHABLE_COLUMNS,
    BatchRead,
    SourceOptions,
    StreamPlan,
    decode_options,
    push_filter,
    read_slice,
    spark_schema,
    to_spark_rows,
)
from gatepost.pipeline.read_plan import Offsets

_OPERATORS: dict[type[ds.Filter], str] = {
    ds.EqualTo: "=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.In: "in",
}


class GatepostSource(ds.DataSource):
    """Archived events, in batch and streaming."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(self._decode_options().columns)

    def reader(self, schema: StructType) -> "GatepostReader":
        return GatepostReader(self._decode_options(schema))

    def streamReader(self, schema: StructType) -> "GatepostStreamReader":
        return GatepostStreamReader(self._decode_options(schema))

    def _decode_options(self, schema: StructType | None = None) -> SourceOptions:
        columns = {"columns": ",".join(schema.names)} if schema else {}
        return decode_options({**self.options, **columns})


class GatepostReader(ds.DataSourceReader):
    """A batch read, planned by manifest and pushed filters.

    Columns are pruned by option or by schema.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.plan = BatchRead(options)

    def pushFilters(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        """Use the filters that skip files; return all of them, so that Spark applies them too."""
        for pushed in filters:
            op = _OPERATORS.get(type(pushed))
            path: tuple[str, ...] = getattr(pushed, "attribute", ())
            if op and len(path) == 1 and path[0] in PUSHABLE_COLUMNS:
                known = push_filter(path[0], op, pushed.value)  # type: ignore[attr-defined]
                self.plan.predicates += [known] if known else []
        return filters

    def partitions(self) -> Sequence[ds.InputPartition]:
        return [ds.InputPartition(share) for share in self.plan.plan_shares()]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        return self.plan.read_share(partition.value or [])


class GatepostStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read; offsets are {node: {incarnation: last seq read}}."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._plan: StreamPlan | None = None

    @property
    def plan(self) -> StreamPlan:
        # Made on first use: executors receive this object without the driver's plan.
        self._plan = self._plan or StreamPlan(self.options)
        return self._plan

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_plan": None}

    def prepareForTriggerAvailableNow(self) -> None:
        self.plan.freeze_listing()

    def initialOffset(self) -> Offsets:
        return self.options.starting_offsets

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_rows)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        if isinstance(limit, ReadMaxRows):
            return self.plan.next_offsets(start, limit.max_rows)
        assert isinstance(limit, ReadAllAvailable), "getDefaultReadLimit announces no other limit"
        return self.plan.next_offsets(start, None)

    def reportLatestOffset(self) -> Offsets:
        return self.plan.newest_offsets()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[ds.InputPartition]:
        return [ds.InputPartition(share) for share in self.plan.plan_shares(start, end)]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        archive = ArchiveReader(self.options.path)
        for piece in partition.value:
            yield from map(to_spark_rows, read_slice(archive, piece, self.options))
