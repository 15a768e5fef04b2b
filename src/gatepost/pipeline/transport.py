"""Carries work to executors and blocks between them, without looking into either.

A job is a list of *shares*. A kernel, which is a plain function over Arrow tables, reads one share
and yields *blocks* of bytes, each for a numbered part. Another kernel gets all blocks of a part,
and so on. The kernels of the last step return the results, which are small: descriptions of files.

The plan, which is the list of shares, is a DataFrame too, with a row for each share. Only kernels
travel as closures, so a task is as small for a million segments as for one. A share is compressed:
a slice of a segment takes 80 bytes, and would take 250 as typed columns, which the driver holds
twice. Nothing but the kernel reads them.

Blocks are opaque too. The facts of events were read and exchanged at 651,000 events/s or more as
blocks, and at 315,000/s as rows of typed columns: Spark converts each row on its way out of Python,
into the shuffle and back, and the texts that are codes in a block are written out.

`SparkTransport` carries them in DataFrames, so that every step is a query of Spark's, and runs on
any cluster, also through Spark Connect. `LocalTransport` calls the same kernels one after another
in this process; only who asks for it gets it (`--engine local`).
"""

import os
import pickle
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from gatepost.pipeline.package_upload import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Share = TypeVar("Share")

# The number of a part, and a block for it.
PartBlock = tuple[int, bytes]
# A block that arrived: memory of the batch it came in, which is not copied.
Block = bytes | memoryview
FoldKernel = Callable[[Iterator[Block]], Iterable[PartBlock]]

RESULT_PART = 0
"""The part of blocks that are results, in the last step of a job."""

_BLOCK_SCHEMA = "part int, block binary"
_ARROW_SCHEMA = pa.schema([("part", pa.int32()), ("block", pa.binary())])
_PLAN_SCHEMA: Final = pa.schema(
    [("share", pa.int32()), ("rows", pa.int64()), ("work", pa.binary())]
)
_FAST_COMPRESSION = 1
# Blocks may have megabytes, so few of them travel at once.
_BLOCKS_PER_BATCH = "16"
_BATCH_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
_LOCAL_MASTER = re.compile(r"local(\[(?P<cores>\d+|\*).*\])?")


class FoldStep(NamedTuple):
    """A kernel that gets all blocks of a part, and the number of parts."""

    parts: int
    kernel: FoldKernel


class Transport(Protocol):
    """`slots` is the number of kernels that can run at the same time.

    `queries` counts the lists of shares that were run, `input_rows` the rows that they read.
    """

    queries: int
    input_rows: int

    @property
    def slots(self) -> int: ...

    def run(
        self,
        shares: Sequence[Share],
        read: Callable[[Share], Iterable[PartBlock]],
        *folds: FoldStep,
    ) -> list[bytes]:
        """Read all shares, exchange their blocks for every fold, and return the last blocks."""
        ...


class LocalTransport:
    """Runs kernels in this process."""

    slots = 1

    def __init__(self) -> None:
        self.queries = self.input_rows = 0

    def run(
        self,
        shares: Sequence[Share],
        read: Callable[[Share], Iterable[PartBlock]],
        *folds: FoldStep,
    ) -> list[bytes]:
        self.queries += bool(shares)
        self.input_rows += sum(map(count_rows, shares))
        blocks = [block for share in shares for block in read(share)]
        for fold in folds:
            parts: dict[int, list[bytes]] = {}
            for part, block in blocks:
                parts.setdefault(part % fold.parts, []).append(block)
            blocks = [made for part in sorted(parts) for made in fold.kernel(iter(parts[part]))]
        return [block for _, block in blocks]


class SparkTransport:
    """Runs kernels on the executors of a Spark session."""

    def __init__(self, spark: "SparkSession") -> None:
        self.spark = spark
        self.queries = self.input_rows = 0
        self._slots: int | None = None

    @property
    def slots(self) -> int:
        if self._slots is None:
            self._slots = _count_slots(self.spark)
        return self._slots

    def run(
        self,
        shares: Sequence[Share],
        read: Callable[[Share], Iterable[PartBlock]],
        *folds: FoldStep,
    ) -> list[bytes]:
        if not shares:
            return []
        rows = sum(map(count_rows, shares))
        self.queries += 1
        self.input_rows += rows
        self.spark.conf.set(_BATCH_SETTING, _BLOCKS_PER_BATCH)
        try:
            frame = self.read_shares(shares, read)
            for fold in folds:
                frame = frame.repartitionById(fold.parts, "part")
                frame = frame.mapInArrow(_fold_blocks(fold.kernel), _BLOCK_SCHEMA)
            with _describe_query(self.spark, _describe_work(read, rows, len(shares))):
                return [bytes(row.block) for row in frame.select("block").collect()]
        finally:
            self.spark.conf.unset(_BATCH_SETTING)

    def read_shares(
        self, shares: Sequence[Share], read: Callable[[Share], Iterable[PartBlock]]
    ) -> "DataFrame":
        """The blocks of all shares; each share is a row in a separate partition."""
        plan = self.spark.createDataFrame(plan_shares(shares))
        if len(shares) > 1:
            plan = plan.repartitionById(len(shares), "share")
        return plan.mapInArrow(_read_plan(read), _BLOCK_SCHEMA)


def count_rows(share: object) -> int:
    """The rows of archived events, or of tables, that a share reads."""
    if isinstance(share, list | tuple):
        return sum(map(count_rows, share))
    return int(getattr(share, "rows", 0))


def plan_shares(shares: Sequence[Share]) -> pa.Table:
    """The shares as rows: number, rows to read, and the share itself, compressed."""
    columns = [
        pa.array(range(len(shares)), pa.int32()),
        pa.array(map(count_rows, shares), pa.int64()),
        pa.array(map(_encode_share, shares), pa.binary()),
    ]
    return pa.Table.from_arrays(columns, _PLAN_SCHEMA.names)


def _encode_share(share: object) -> bytes:
    return zlib.compress(pickle.dumps(share), _FAST_COMPRESSION)


def _decode_share(work: pa.Buffer) -> Any:
    return pickle.loads(zlib.decompress(work))


def _count_slots(spark: "SparkSession") -> int:
    """The number of tasks that Spark runs at the same time."""
    master = spark.conf.get("spark.master", "") or ""
    if found := _LOCAL_MASTER.fullmatch(master):
        cores = found["cores"] or "1"
        return (os.cpu_count() or 1) if cores == "*" else int(cores)
    from pyspark.sql import functions as F

    # A cluster tells it only by the number of partitions it makes on its own.
    return spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()


@contextmanager
def _describe_query(spark: "SparkSession", text: str) -> Iterator[None]:
    """Say in Spark's UI what a query does; Spark Connect has no place for it."""
    if is_connect(spark):
        yield
        return
    spark.sparkContext.setJobDescription(text)
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def _describe_work(read: Callable[..., object], rows: int, shares: int) -> str:
    """The kernel by its name, and its input: `jobs.deliveries.write_deliveries: 9 rows in …`."""
    module = read.__module__.removeprefix("gatepost.pipeline.")
    name = read.__qualname__.partition(".<locals>")[0]
    return f"{module}.{name}: {rows:,} rows in {shares:,} {'share' if shares == 1 else 'shares'}"


def _read_plan(
    read: Callable[[Share], Iterable[PartBlock]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read_partition(plan: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in plan:
            for work in batch.column("work"):
                yield from _to_batches(read(_decode_share(work.as_buffer())))

    return read_partition


def _fold_blocks(
    kernel: FoldKernel,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def fold_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blocks = (
            memoryview(block.as_buffer()) for batch in batches for block in batch.column("block")
        )
        return _to_batches(kernel(blocks))

    return fold_partition


def _to_batches(blocks: Iterable[PartBlock]) -> Iterator[pa.RecordBatch]:
    for part, block in blocks:
        ends = pa.py_buffer(struct.pack("=2i", 0, len(block)))
        whole = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(block)])
        yield pa.RecordBatch.from_arrays([pa.array([part], pa.int32()), whole], _ARROW_SCHEMA.names)
