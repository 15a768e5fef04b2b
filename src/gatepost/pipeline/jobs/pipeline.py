"""The jobs that bring tables up to date: with new events, or from nothing."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from gatepost.clock import SystemClock
from gatepost.errors import PipelineError
from gatepost.pipeline import delta_tables, read_plan
from gatepost.pipeline.archive_admission import (
    AdmittedArchive,
    ArchiveGate,
    agree_on_time,
    describe_holes,
)
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.jobs import retention
from gatepost.pipeline.jobs.batch_ledger import NO_BATCH, BatchLedger, BatchNotes, PipelineBatch
from gatepost.pipeline.jobs.deliveries import NewEvents
from gatepost.pipeline.jobs.table_update import TableFolder, TableUpdater
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.read_plan import Offsets, SegmentFile, Selection, SeqRange, SetAside
from gatepost.pipeline.tables.schemas import DELIVERIES, HOUR_MS, TABLES
from gatepost.pipeline.transport import Transport

_ALL_EVENTS = Selection()
_MAX_ROWS = 100_000_000
# Most receipts come within an hour of their message.
_HOURS_BEFORE = 1


class RunSummary(Struct, frozen=True):
    """The result of a run; `events` counts the new ones, `aside` is all that was set aside."""

    batches: int
    events: int
    aside: tuple[SetAside, ...] = ()


class Pipeline:
    """Keeps the tables of one archive up to date, with one Spark session."""

    def __init__(
        self,
        transport: Transport,
        archive: str,
        tables: str,
        objectives: Objectives | None = None,
    ) -> None:
        self._transport = transport
        self._archive = ArchiveReader(archive)
        self._gate = ArchiveGate(self._archive)
        self.tables = TableFolder(tables)
        self._ledger = BatchLedger(tables)
        self._objectives = self._ledger.agreed_objectives(objectives)
        self._apply = TableUpdater(transport, self.tables, self._objectives)

    def run(
        self, max_rows: int = _MAX_ROWS, is_stopping: Callable[[], bool] = lambda: False
    ) -> RunSummary:
        """Take in all events that were archived since the last run.

        A batch has at most `max_rows` events. Before each batch `is_stopping` is asked.
        """
        with self._ledger.hold_lock():
            ran, last = self._finish_last_batch()
            while not is_stopping():
                batch = self._begin_next_batch(last, max_rows)
                if batch is None:
                    break
                rows = self._take_batch(batch)
                ran, last = RunSummary(ran.batches + 1, ran.events + rows), batch
            return RunSummary(ran.batches, ran.events, last.aside)

    def _finish_last_batch(self) -> tuple[RunSummary, PipelineBatch]:
        """Finish the last batch if the process that began it ended before it was done."""
        last = self._ledger.last_batch()
        if last is None:
            return RunSummary(0, 0), NO_BATCH
        if self._ledger.is_done(last):
            return RunSummary(0, 0), last
        return RunSummary(1, self._take_batch(last)), last

    def _begin_next_batch(self, last: PipelineBatch, max_rows: int) -> PipelineBatch | None:
        """Record the batch after `last`; None if nothing is new and nothing else was set aside."""
        admitted = self._gate.admit_nodes()
        fresh = _segments_to_check(admitted.segments, last)
        bad = self._gate.find_bad_files(self._transport, fresh)
        right = [each for each in admitted.segments if each.path not in bad]
        lanes = read_plan.pending_lanes(right, last.end, _ALL_EVENTS)
        end = read_plan.advance_offsets(
            lanes, last.end, times=self._archive.row_times, budget=max_rows
        )
        notes = _note_batch(admitted, right, bad, last, end)
        is_news = end != last.end or notes.recovered or notes.aside != last.aside
        if not is_news:
            return None
        return self._ledger.begin_batch(end, self._objectives, notes, last)

    def _take_batch(self, batch: PipelineBatch) -> int:
        listed = self._gate.admit_nodes().segments
        slices = read_plan.slices_between(
            listed, batch.start, batch.end, _ALL_EVENTS, batch.left_out
        )
        slices += read_plan.slices_of_ranges(listed, batch.recovered)
        self._apply(NewEvents(self._archive.uri, slices), batch)
        return sum(piece.rows for piece in slices)


def _segments_to_check(segments: Sequence[SegmentFile], last: PipelineBatch) -> list[SegmentFile]:
    """Segments with events that no batch has taken in."""
    open_lanes = {each.lane for each in last.left_out}
    return [
        each
        for each in segments
        if each.last > last.end.get(each.node, {}).get(each.incarnation, 0)
        or each.lane in open_lanes
    ]


def _note_batch(
    admitted: AdmittedArchive,
    right: Sequence[SegmentFile],
    bad: dict[str, str],
    last: PipelineBatch,
    end: Offsets,
) -> BatchNotes:
    recovered, still_out = read_plan.split_covered(right, last.left_out)
    holes = [
        *((each.lane, each.first, each.last) for each in still_out),
        *read_plan.find_holes(right, admitted.segments, last.end, end),
    ]
    # Bad segments at the end of an outbox are no holes yet, and set aside all the same.
    ahead = [
        (each.lane, each.first, each.last)
        for each in admitted.segments
        if each.path in bad and each.first > end.get(each.node, {}).get(each.incarnation, 0)
    ]
    aside = [*admitted.aside, *describe_holes([*holes, *ahead], admitted.segments, bad)]
    return BatchNotes(
        agree_on_time(right, SystemClock().now()),
        tuple(SeqRange(*key, first, until) for key, first, until in holes),
        tuple(recovered),
        tuple(sorted(aside, key=lambda each: (each.node, each.incarnation or "", each.first or 0))),
    )


def update_tables(
    transport: Transport, archive: str, tables: str, objectives: Objectives | None = None
) -> RunSummary:
    """Bring the tables up to date; the cost grows with the number of new events."""
    return Pipeline(transport, archive, tables, objectives).run()


def estimate_rows(archive: str, tables: str) -> int:
    """About how many rows the next run reads: new events, and the stored hours they may change.

    A node that comes back after a week has few events, and changes the hours of a week.
    """
    ledger = BatchLedger(tables)
    last = ledger.last_batch() or NO_BATCH
    start = last.end if last is NO_BATCH or ledger.is_done(last) else last.start
    nodes = ArchiveReader(archive).list_nodes()
    segments = [segment for node in nodes for segment in node.segments]
    lanes = read_plan.pending_lanes(segments, start, _ALL_EVENTS).values()
    if not lanes:
        return 0
    earliest = min(lane.earliest for lane in lanes) // HOUR_MS
    path = TableFolder(tables).table_path(DELIVERIES)
    stored = delta_tables.list_files(path, "hour") if delta_tables.table_exists(path) else []
    changed = sum(file.rows for file in stored if file.value >= earliest - _HOURS_BEFORE)
    return changed + sum(lane.rows for lane in lanes)


def backfill_tables(
    transport: Transport, archive: str, tables: str, objectives: Objectives | None = None
) -> RunSummary:
    """Make the tables in an empty folder; they equal tables made in many runs."""
    if BatchLedger(tables).last_batch() is not None:
        raise PipelineError(f"{tables} already holds tables: choose an empty folder")
    return update_tables(transport, archive, tables, objectives)


def compact_tables(
    transport: Transport, tables: str, *, keep_hours: int = 7 * 24, keep_days: int | None = None
) -> dict[str, int]:
    """Merge small files and delete replaced ones; returns table → number of files removed.

    Files replaced within `keep_hours` stay for readers that still use an older version. Hours more
    than `keep_days` older than the latest event are dropped; by default all are kept.
    """
    with BatchLedger(tables).hold_lock():
        return _compact_tables(transport, tables, keep_hours, keep_days)


def _compact_tables(
    transport: Transport, tables: str, keep_hours: int, keep_days: int | None
) -> dict[str, int]:
    if keep_days is not None and (before := retention.oldest_kept(tables, keep_days)) is not None:
        retention.drop_old_hours(tables, before)
    folder, removed = TableFolder(tables), {}
    for table in TABLES.values():
        path = folder.table_path(table)
        if delta_tables.table_exists(path):
            merged = delta_tables.compact_table(transport, path)
            removed[table.name] = merged + len(
                delta_tables.vacuum_table(path, older_than_hours=keep_hours)
            )
    return removed
