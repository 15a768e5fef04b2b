"""Runs kernels on executors, one share each; they return only file lists or small sums."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from gatepost.pipeline.parquet import WrittenFile
from gatepost.pipeline.table_files import write_rows
from gatepost.pipeline.tables.schemas import TableSpec
from gatepost.pipeline.transport import RESULT_PART, Block, FoldStep, PartBlock, Transport

Share = TypeVar("Share")
Made = TypeVar("Made")
Combined = TypeVar("Combined")


def run_on_executors(
    transport: Transport, shares: Sequence[Share], work: Callable[[Share], Iterable[Made]]
) -> list[Made]:
    """Apply `work` to each share on an executor, and collect all results."""

    def read(share: Share) -> Iterator[PartBlock]:
        return ((RESULT_PART, pickle.dumps(made)) for made in work(share))

    _take_name(read, work)
    return [pickle.loads(made) for made in transport.run(shares, read)]


def combine_on_executor(
    transport: Transport,
    shares: Sequence[Share],
    work: Callable[[Share], Made],
    combine: Callable[[list[Made]], Combined],
) -> Combined | None:
    """Apply `work` to each share, and `combine` to all results; None without shares."""

    def read(share: Share) -> Iterator[PartBlock]:
        yield RESULT_PART, pickle.dumps(work(share))

    _take_name(read, work)

    def fold(blocks: Iterator[Block]) -> Iterator[PartBlock]:
        yield RESULT_PART, pickle.dumps(combine([pickle.loads(block) for block in blocks]))

    for made in transport.run(shares, read, FoldStep(1, fold)):
        combined: Combined = pickle.loads(made)
        return combined
    return None


def _take_name(kernel: Callable[..., object], work: Callable[..., object]) -> None:
    """Name the kernel after its work, for Spark's UI."""
    kernel.__module__, kernel.__qualname__ = work.__module__, work.__qualname__


def write_on_executors(
    transport: Transport,
    shares: Sequence[Share],
    make: Callable[[Share], Iterable[tuple[TableSpec, pa.Table]]],
    folders: Mapping[TableSpec, str],
) -> dict[TableSpec, list[WrittenFile]]:
    """Apply `make` to each share on an executor, and write its tables, each into its folder."""

    def write(share: Share) -> Iterator[tuple[str, bytes]]:
        for table, rows in make(share):
            for file in write_rows(table, rows, folders[table]):
                yield table.name, file.encode()

    _take_name(write, make)
    found = run_on_executors(transport, shares, write)
    return {
        table: [WrittenFile.decode(file) for name, file in found if name == table.name]
        for table in folders
    }
