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

from gatepost.pipeline.planning import Offsets
from gatepost.pipeline.reading import Archive
from gatepost.pipeline.source import (
    FORMAT,
    PUSHED,
    BatchPlan,
    Options,
    Predicate,
    StreamPlan,
    decode_options,
    spark_schema,
)

_OPS: dict[type[ds.Filter], str] = {
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
        return spark_schema(self._decoded().columns)

    def reader(self, schema: StructType) -> "GatepostReader":
        return GatepostReader(self._decoded(schema))

    def streamReader(self, schema: StructType) -> "GatepostStreamReader":
        return GatepostStreamReader(self._decoded(schema))

    def _decoded(self, schema: StructType | None = None) -> Options:
        columns = {"columns": ",".join(schema.names)} if schema else {}
        return decode_options({**self.options, **columns})


class GatepostReader(ds.DataSourceReader):
    """A batch read, planned by manifest and pushed filters.

    Columns are pruned by option or by schema.
    """

    def __init__(self, options: Options) -> None:
        self.plan = BatchPlan(options)

    def pushFilters(self, filters: list[ds.Filter]) -> list[ds.Filter]:
        """Use the filters that skip files; return all of them, so that Spark applies them too."""
        for pushed in filters:
            op = _OPS.get(type(pushed))
            path: tuple[str, ...] = getattr(pushed, "attribute", ())
            if op and len(path) == 1 and path[0] in PUSHED:
                self.plan.predicates.append(Predicate(path[0], op, pushed.value))  # type: ignore[attr-defined]
        return filters

    def partitions(self) -> Sequence[ds.InputPartition]:
        return [ds.InputPartition(share) for share in self.plan.shares()]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        return self.plan.read(partition.value or [])


class GatepostStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read; offsets are {node: {incarnation: last seq read}}."""

    def __init__(self, options: Options) -> None:
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
        self.plan.freeze()

    def initialOffset(self) -> Offsets:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_rows)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        if isinstance(limit, ReadMaxRows):
            return self.plan.next(start, limit.max_rows)
        assert isinstance(limit, ReadAllAvailable), "getDefaultReadLimit announces no other limit"
        return self.plan.next(start, None)

    def reportLatestOffset(self) -> Offsets:
        return self.plan.newest()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[ds.InputPartition]:
        return [ds.InputPartition(share) for share in self.plan.shares(start, end)]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        archive = Archive(self.options.path)
        for piece in partition.value:
            yield from archive.batches(piece, self.options.columns, self.options.verify)
