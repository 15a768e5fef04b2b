"""The jobs that update tables with new events, or build them from scratch."""

from collections.abc import Callable

from msgspec import Struct

from gatepost.errors import PipelineError
from gatepost.pipeline import delta_tables
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.job_errors import is_about_tables
from gatepost.pipeline.jobs import retention
from gatepost.pipeline.jobs.batch_ledger import NO_BATCH, BatchLedger, PipelineBatch
from gatepost.pipeline.jobs.batch_plan import ArchiveLag, BatchPlanner, replan
from gatepost.pipeline.jobs.deliveries import NewEvents
from gatepost.pipeline.jobs.sql_backfill import SqlBackfill
from gatepost.pipeline.jobs.table_update import TableFolder, TableUpdater
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.read_plan import Offsets, SetAside
from gatepost.pipeline.tables.schemas import TABLES
from gatepost.pipeline.transport import SparkTransport, Transport

_MAX_ROWS = 100_000_000


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
        first_writer: Callable[[PipelineBatch, int], None] | None = None,
    ) -> None:
        """`first_writer` may write some tables of a first batch, of so many events."""
        self._transport = transport
        self._first_writer = first_writer
        self._archive = ArchiveReader(archive)
        self.tables = TableFolder(tables)
        self._ledger = BatchLedger(tables)
        self._objectives = self._ledger.agreed_objectives(objectives)
        self._planner = BatchPlanner(transport, self._archive, self._objectives)
        self._apply = TableUpdater(transport, self.tables, self._objectives)

    @property
    def archive_uri(self) -> str:
        return self._archive.uri

    def taken_offsets(self) -> Offsets:
        """The end of the last batch, whether it is done or not."""
        return (self._ledger.last_batch() or NO_BATCH).end

    def passed_offsets(self) -> Offsets:
        """Like `taken_offsets`, but past segments that were set aside there."""
        last = self._ledger.last_batch() or NO_BATCH
        passed = {node: dict(seqs) for node, seqs in last.end.items()}
        for each in last.aside:
            if each.incarnation is not None and each.last is not None:
                seqs = passed.setdefault(each.node, {})
                seqs[each.incarnation] = max(seqs.get(each.incarnation, 0), each.last)
        return passed

    def measure_lag(self) -> ArchiveLag:
        return self._planner.measure_lag(self.taken_offsets())

    def run(
        self,
        max_rows: int = _MAX_ROWS,
        is_stopping: Callable[[], bool] = lambda: False,
        through: Offsets | None = None,
    ) -> RunSummary:
        """Take in all events that were archived since the last run, or those up to `through`.

        A batch has at most `max_rows` events. Before each batch `is_stopping` is asked.
        """
        with self._ledger.hold_lock():
            ran, last = self._finish_last_batch()
            while not is_stopping():
                batch = self._begin_next_batch(last, max_rows, through)
                if batch is None:
                    break
                rows, last = self._take_batch(batch)
                ran = RunSummary(ran.batches + 1, ran.events + rows)
            return RunSummary(ran.batches, ran.events, last.aside)

    def take_at_once(self) -> RunSummary:
        """Take in all that is archived in one batch, into tables that do not exist yet."""
        with self._ledger.hold_lock():
            plan = self._planner.plan_next(NO_BATCH, None)
            if plan is None:
                return RunSummary(0, 0)
            if not plan.is_last:
                raise PipelineError(
                    "the archive covers more than 366 days, and --engine sql makes tables in one"
                    " batch, which covers no more: use --engine spark"
                )
            batch = self._ledger.begin_batch(plan.end, self._objectives, plan.notes)
            rows, batch = self._take_batch(batch)
            return RunSummary(1, rows, batch.aside)

    def _finish_last_batch(self) -> tuple[RunSummary, PipelineBatch]:
        """Finish the last batch if the process that began it ended before it was done."""
        last = self._ledger.last_batch()
        if last is None:
            return RunSummary(0, 0), NO_BATCH
        if self._ledger.is_done(last):
            return RunSummary(0, 0), last
        rows, last = self._take_batch(last)
        return RunSummary(1, rows), last

    def _begin_next_batch(
        self, last: PipelineBatch, max_rows: int, through: Offsets | None
    ) -> PipelineBatch | None:
        """Record the batch after `last`; None if nothing is new and nothing else was set aside."""
        plan = self._planner.plan_next(last, max_rows, through)
        if plan is None:
            return None
        return self._ledger.begin_batch(plan.end, self._objectives, plan.notes, last)

    def _take_batch(self, batch: PipelineBatch) -> tuple[int, PipelineBatch]:
        """Take in a batch; returns its number of events, and the batch without unreadable parts."""
        while True:
            try:
                return self._try_batch(batch), batch
            except Exception as error:
                amended = self._plan_again(batch, error)
                if amended is None:
                    raise
                batch = amended

    def _try_batch(self, batch: PipelineBatch) -> int:
        # Once deliveries have the batch, no table is made of its events any more.
        is_read = self._apply.has_deliveries(batch)
        slices = [] if is_read else self._planner.slices_of(batch)
        if self._first_writer is not None and not self._apply.has_tables():
            self._first_writer(batch, sum(piece.rows for piece in slices))
        self._apply(NewEvents(self._archive.uri, slices, self._objectives.id_age), batch)
        return sum(piece.rows for piece in slices)

    def _plan_again(self, batch: PipelineBatch, error: Exception) -> PipelineBatch | None:
        """The batch without segments that cannot be read; None if none of them caused the error."""
        if is_about_tables(error) or self._apply.has_deliveries(batch):
            return None
        last = self._ledger.read_batch(batch.number - 1) if batch.number > 1 else NO_BATCH
        plan = self._planner.plan_again(batch, last)
        return None if plan is None else self._ledger.amend_batch(replan(batch, plan))


def update_tables(
    transport: Transport, archive: str, tables: str, objectives: Objectives | None = None
) -> RunSummary:
    """Bring the tables up to date; the cost grows with the number of new events."""
    return Pipeline(transport, archive, tables, objectives).run()


def backfill_tables(
    transport: Transport, archive: str, tables: str, objectives: Objectives | None = None
) -> RunSummary:
    """Make the tables in an empty folder; they equal tables made in many runs."""
    if BatchLedger(tables).last_batch() is not None:
        raise PipelineError(f"{tables} already holds tables: choose an empty folder")
    return update_tables(transport, archive, tables, objectives)


def backfill_with_sql(
    transport: SparkTransport, archive: str, tables: str, objectives: Objectives | None = None
) -> RunSummary:
    """As `backfill_tables`, with the tables' definitions in Spark SQL instead of kernels."""
    ledger = BatchLedger(tables)
    if ledger.last_batch() is not None:
        raise PipelineError(f"{tables} already holds tables: choose an empty folder")
    agreed = ledger.agreed_objectives(objectives)
    writer = SqlBackfill(transport, archive, TableFolder(tables), agreed)
    return Pipeline(transport, archive, tables, objectives, writer.write_batch).take_at_once()


def compact_tables(
    tables: str, *, keep_hours: int = 7 * 24, keep_days: int | None = None
) -> dict[str, int]:
    """Merge small files and delete replaced ones; returns table → number of files removed.

    Files replaced within `keep_hours` stay for readers that still use an older version. Days more
    than `keep_days` before the latest event are dropped; by default all are kept.
    """
    ledger = BatchLedger(tables)
    ledger.require_known_layout()
    with ledger.hold_lock():
        return _compact_tables(tables, keep_hours, keep_days)


def _compact_tables(tables: str, keep_hours: int, keep_days: int | None) -> dict[str, int]:
    if keep_days is not None and (before := retention.oldest_kept(tables, keep_days)) is not None:
        retention.drop_old_days(tables, before)
    folder, removed = TableFolder(tables), {}
    for table in TABLES.values():
        path = folder.table_path(table)
        if delta_tables.table_exists(path):
            merged = delta_tables.compact_table(path)
            removed[table.name] = merged + len(
                delta_tables.vacuum_table(path, older_than_hours=keep_hours)
            )
    return removed
