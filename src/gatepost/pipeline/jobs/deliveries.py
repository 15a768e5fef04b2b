"""Computes activity and deliveries from events, on executors.

Executors read segments, turn events into facts, and exchange the facts in blocks by the time the
event ids were drawn. The executor that receives all facts of a stretch of time folds them into
deliveries and writes these.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from msgspec import Struct

from gatepost.pipeline import read_plan
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.delta_tables import StoredFile
from gatepost.pipeline.jobs.executors import run_on_executors
from gatepost.pipeline.kernels import activity, lifecycle
from gatepost.pipeline.kernels.facts import (
    FACT_COLUMNS,
    ID_AGE_MS,
    ID_COLUMNS,
    TEXT_COLUMNS,
    Facts,
    decode_parts,
    encode_parts,
    facts_from_events,
    hours_of,
)
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.parquet import WrittenFile
from gatepost.pipeline.read_plan import RowEstimate, Slice
from gatepost.pipeline.table_files import read_batches, write_rows
from gatepost.pipeline.tables.schemas import ACTIVITY, DELIVERIES, HOUR_MS
from gatepost.pipeline.transport import RESULT_PART, Block, FoldStep, PartBlock, Transport

# About how many events one executor reads at once, and how many facts it folds at once.
_READ_ROWS = 2_000_000
_FOLDED_FACTS = 750_000
_BATCH_ROWS = 128 * 1024
# Marks a result that names a file with rows of the table of activity.
_ACTIVITY_FILE = b"activity"


class NewEvents(Struct, frozen=True):
    """The new events of an archive; their ids are at most `id_age` ms older than they are."""

    archive: str
    slices: list[Slice]
    id_age: int = ID_AGE_MS


class SurveyRequest(Struct, frozen=True):
    """The results wanted from one pass over a few columns of the new events.

    `activity` is the folder to write activity to, or None. `hours` asks for the hours of the
    deliveries that the events refer to.
    """

    batch: int
    objectives: Objectives
    activity: str | None
    hours: bool


class SurveyResult(Struct, frozen=True):
    activity: list[WrittenFile]
    hours: set[int]


def survey_events(transport: Transport, source: NewEvents, wanted: SurveyRequest) -> SurveyResult:
    archive, id_age = source.archive, source.id_age
    columns = tuple(
        dict.fromkeys(
            (
                *(activity.ACTIVITY_COLUMNS if wanted.activity else ()),
                *(ID_COLUMNS if wanted.hours else ()),
            )
        )
    )
    if not columns:
        return SurveyResult([], set())

    def survey_share(share: list[Slice]) -> Iterator[tuple[list[bytes], list[int]]]:
        counted: list[pa.Table] = []
        hours: set[int] = set()
        for events in _read_events(archive, share, columns):
            if wanted.activity:
                counted.append(activity.count_activity(events, wanted.batch, wanted.objectives))
            if wanted.hours:
                hours.update(hours_of(events, id_age).tolist())
        yield [file.encode() for file in _write_activity(counted, wanted.activity)], sorted(hours)

    found = run_on_executors(transport, plan_shares(transport, source), survey_share)
    files = [WrittenFile.decode(file) for files, _ in found for file in files]
    return SurveyResult(files, {hour for _, hours in found for hour in hours})


def _write_activity(counted: Sequence[pa.Table], folder: str | None) -> Iterable[WrittenFile]:
    if folder is None or not counted:
        return ()
    return write_rows(ACTIVITY, pa.concat_tables(counted), folder)


class WrittenDeliveries(Struct, frozen=True):
    deliveries: list[WrittenFile]
    activity: list[WrittenFile]


def write_deliveries(
    transport: Transport,
    source: NewEvents,
    stored: Sequence[StoredFile],
    folder: str,
    survey: SurveyRequest | None = None,
) -> WrittenDeliveries:
    """Merge new events into stored deliveries, and write those to few files for each hour.

    With `survey`, activity is counted in the same pass over the events.
    """
    archive, id_age, slots = source.archive, source.id_age, transport.slots
    estimates = [*map(_slice_estimate, source.slices), *map(_file_estimate, stored)]
    rows = sum(estimate.rows for estimate in estimates)
    cuts = read_plan.cut_times(estimates, -(-max(1, rows // _FOLDED_FACTS) // slots) * slots)

    def read_blocks(share: list[Slice] | StoredFile) -> Iterator[PartBlock]:
        """The facts of a share as blocks, each with the number of its stretch of time."""
        counted: list[pa.Table] = []
        for read in _read_facts(archive, share, id_age, survey, counted):
            for part, block in read.split_by_time(cuts):
                yield part, block.encode()
        for file in _write_activity(counted, survey.activity if survey else None):
            yield RESULT_PART, encode_parts([file.encode()])

    def fold_blocks(blocks: Iterator[Block]) -> Iterator[PartBlock]:
        """Write the deliveries of one stretch of time, from all its blocks."""
        facts: list[Facts] = []
        for block in blocks:
            parts = decode_parts(block)
            if len(parts) == 1:
                yield RESULT_PART, encode_parts([_ACTIVITY_FILE, parts[0]])
            else:
                facts.append(Facts.from_parts(parts))
        if facts:
            rows = lifecycle.build_deliveries(Facts.join_parts(facts))
            del facts
            for file in write_rows(DELIVERIES, rows, folder):
                yield RESULT_PART, encode_parts([file.encode()])

    shares: list[list[Slice] | StoredFile] = [*plan_shares(transport, source), *stored]
    found = map(
        decode_parts, transport.run(shares, read_blocks, FoldStep(len(cuts) + 1, fold_blocks))
    )
    files = [(len(parts) > 1, WrittenFile.decode(bytes(parts[-1]))) for parts in found]
    return WrittenDeliveries(
        [file for is_activity, file in files if not is_activity],
        [file for is_activity, file in files if is_activity],
    )


def _slice_estimate(piece: Slice) -> RowEstimate:
    return RowEstimate(piece.segment.min_created_at, piece.segment.max_created_at, piece.rows)


def _file_estimate(file: StoredFile) -> RowEstimate:
    return RowEstimate(file.value * HOUR_MS, (file.value + 1) * HOUR_MS - 1, file.rows)


def plan_shares(transport: Transport, source: NewEvents) -> list[list[Slice]]:
    return read_plan.pack_slices(source.slices, transport.slots, _READ_ROWS)


def _read_facts(
    archive: str,
    share: list[Slice] | StoredFile,
    id_age: int,
    survey: SurveyRequest | None,
    counted: list[pa.Table],
) -> Iterator[Facts]:
    """The facts of a share; the activity of new events is added to `counted`."""
    if isinstance(share, StoredFile):
        yield from map(lifecycle.facts_from_deliveries, read_batches(DELIVERIES, share.uri))
        return
    for events in _read_events(archive, share, FACT_COLUMNS):
        if survey:
            counted.append(activity.count_activity(events, survey.batch, survey.objectives))
        yield facts_from_events(events, id_age)


def _read_events(root: str, share: list[Slice], columns: Sequence[str]) -> Iterator[pa.Table]:
    """The events of a share, small tables joined into larger ones."""
    archive = ArchiveReader(root)
    pending: list[pa.Table] = []
    rows = 0
    for piece in share:
        for table in archive.read_tables(piece, columns, TEXT_COLUMNS):
            pending.append(table)
            rows += table.num_rows
            if rows >= _BATCH_ROWS:
                yield pa.concat_tables(pending)
                pending, rows = [], 0
    if pending:
        yield pa.concat_tables(pending)
