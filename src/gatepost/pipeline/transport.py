"""Carries work to executors and blocks between them, without looking into either.

A job is a list of *shares*. A kernel, which is a plain function over Arrow tables, reads one share
and yields *blocks* of bytes, each for a numbered part. Another kernel gets all blocks of a part,
and so on. The kernels of the last step return the results, which are small: descriptions of files.

`SparkTransport` carries them in DataFrames, so that every step is a query of Spark's, and runs on
any cluster, also through Spark Connect. `LocalTransport` calls the same kernels one after another
in this process: few events take less time than a JVM needs to start.
"""

import os
import pickle
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Share = TypeVar("Share")

# The number of a part, and a block for it.
PartBlock = tuple[int, bytes]
# A block that arrived: memory of the batch it came in, which is not copied.
Block = bytes | memoryview
FoldKernel = Callable[[Iterator[Block]], Iterable[PartBlock]]

SMALL_ROWS: Final = 1_500_000
"""Up to this many rows, this process alone is done before a session of Spark would be.

A row takes about 4 µs here. Spark takes 6 s to start, and then 7 µs for a row on one of its cores.
"""

RESULT_PART = 0
"""The part of blocks that are results, in the last step of a job."""

_BLOCK_SCHEMA = "part int, block binary"
_ARROW_SCHEMA = pa.schema([("part", pa.int32()), ("block", pa.binary())])
# Blocks may have megabytes, so few of them travel at once.
_BLOCKS_PER_BATCH = "16"
_BATCH_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
_LOCAL_MASTER = re.compile(r"local(\[(?P<cores>\d+|\*).*\])?")


class FoldStep(NamedTuple):
    """A kernel that gets all blocks of a part, and the number of parts."""

    parts: int
    kernel: FoldKernel


class Transport(Protocol):
    """`slots` is the number of kernels that can run at the same time."""

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

    def run(
        self,
        shares: Sequence[Share],
        read: Callable[[Share], Iterable[PartBlock]],
        *folds: FoldStep,
    ) -> list[bytes]:
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
        self.spark.conf.set(_BATCH_SETTING, _BLOCKS_PER_BATCH)
        try:
            frame = self._read_shares(shares, read)
            for fold in folds:
                frame = frame.repartitionById(fold.parts, "part")
                frame = frame.mapInArrow(_fold_blocks(fold.kernel), _BLOCK_SCHEMA)
            return [bytes(row.block) for row in frame.select("block").collect()]
        finally:
            self.spark.conf.unset(_BATCH_SETTING)

    def _read_shares(
        self, shares: Sequence[Share], read: Callable[[Share], Iterable[PartBlock]]
    ) -> "DataFrame":
        """The blocks of all shares; each share is a partition, and a record of its input."""
        # A task gets all shares with its kernel, and decodes its own.
        encoded = [pickle.dumps(share) for share in shares]

        def read_partition(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from _to_batches(read(pickle.loads(encoded[number])))

        numbered = self.spark.range(0, len(encoded), 1, len(encoded))
        return numbered.mapInArrow(read_partition, _BLOCK_SCHEMA)


def _count_slots(spark: "SparkSession") -> int:
    """The number of tasks that Spark runs at the same time."""
    master = spark.conf.get("spark.master", "") or ""
    if found := _LOCAL_MASTER.fullmatch(master):
        cores = found["cores"] or "1"
        return (os.cpu_count() or 1) if cores == "*" else int(cores)
    from pyspark.sql import functions as F

    # A cluster tells it only by the number of partitions it makes on its own.
    return spark.range(1 << 16).select(F.spark_partition_id()).distinct().count()


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
