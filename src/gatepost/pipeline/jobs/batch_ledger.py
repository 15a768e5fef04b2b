"""The ledger of batches: which events are in the tables.

A batch is recorded before work on it begins. It is a range of every outbox, so repeating it reads
the same events, and every table takes each batch once. So after a crash at any moment the next run
finishes that batch first, and the tables are exact. For tables on a local disk a lock admits one
process at a time. In a bucket, the file of a batch is created only if there is none: of two jobs
that begin the same batch, one ends. Two jobs that finish the same batch do no harm, because every
table takes it once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from gatepost.archive.archive_store import ArchiveStore
from gatepost.errors import PipelineError, TablesBusy
from gatepost.files import hold_file_lock
from gatepost.pipeline.conditional_write import create_in_bucket
from gatepost.pipeline.job_errors import name_full_disk
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.read_plan import Offsets, SeqRange, SetAside
from gatepost.pipeline.small_tables import open_table
from gatepost.pipeline.tables.schemas import INCIDENTS

APP_ID = "gatepost-pipeline"
_BATCH_FOLDER = "_batches"
_LOCK_FILE = "_lock"
# 2: before times were TIMESTAMPs, and small tables had a partition for each day.
_LAYOUT_VERSION = 3
_LOCK_TIMEOUT = 600.0


class PipelineBatch(Struct, frozen=True, rename="camel"):
    """The events after `start` up to `end`, and the objectives of their tables."""

    number: int
    start: Offsets
    end: Offsets
    objectives: Objectives = Objectives()
    # The version of the tables' layout; the first version did not record it.
    layout: int = 1
    # The time up to which the archive reached.
    as_of: int = 0
    # Events through `end` that no batch contains yet, and earlier ones that this batch adds.
    left_out: tuple[SeqRange, ...] = ()
    recovered: tuple[SeqRange, ...] = ()
    # All that was set aside when the batch began, and repaired segments.
    aside: tuple[SetAside, ...] = ()
    repaired: tuple[SetAside, ...] = ()


NO_BATCH = PipelineBatch(0, {}, {})
"""Stands before the first batch."""


class BatchNotes(Struct, frozen=True):
    """The notes of a batch beside its range; see `PipelineBatch`."""

    as_of: int = 0
    left_out: tuple[SeqRange, ...] = ()
    recovered: tuple[SeqRange, ...] = ()
    aside: tuple[SetAside, ...] = ()
    repaired: tuple[SetAside, ...] = ()


class BatchLedger:
    """The batches of one folder of tables, each in a separate file."""

    def __init__(self, tables: str) -> None:
        self._tables = tables
        self._store = ArchiveStore.open(tables)

    def require_known_layout(self) -> None:
        """Raise PipelineError if these tables were made by an earlier or newer Gatepost."""
        self.last_batch()

    def last_batch(self) -> PipelineBatch | None:
        """The latest batch, whether it is done or not."""
        names = self._store.list_files(_BATCH_FOLDER)
        return self._read_batch_file(names[-1]) if names else None

    def last_done_batch(self) -> PipelineBatch:
        """The latest batch that all tables have; `NO_BATCH` if there is none."""
        last = self.last_batch()
        if last is None or self.is_done(last):
            return last or NO_BATCH
        return self.read_batch(last.number - 1) if last.number > 1 else NO_BATCH

    def read_batch(self, number: int) -> PipelineBatch:
        """The batch of this number, which a reader has seen to be done."""
        versions = self._versions_of(number)
        batch = self._read_batch_file(versions[-1]) if versions else None
        if batch is None:
            raise PipelineError(f"there is no batch {number} in {self._tables}")
        return batch

    def _read_batch_file(self, name: str) -> PipelineBatch | None:
        content = self._store.read_file(name)
        if content is None:
            return None
        batch = msgspec.json.decode(content, type=PipelineBatch)
        if batch.layout > _LAYOUT_VERSION:
            raise PipelineError(
                f"the tables in {self._tables} were made by a newer Gatepost (layout"
                f" {batch.layout}; this one knows {_LAYOUT_VERSION}): upgrade Gatepost here"
            )
        if batch.layout < _LAYOUT_VERSION:
            raise PipelineError(
                f"the tables in {self._tables} were made by an earlier Gatepost (layout"
                f" {batch.layout}; this one knows {_LAYOUT_VERSION}): make new ones of the archive"
                " with `gatepost pipeline backfill --tables ANOTHER_FOLDER`"
            )
        return batch

    def is_done(self, batch: PipelineBatch) -> bool:
        """Whether the table that is written last has this batch."""
        table = open_table(self._tables, INCIDENTS)
        return table is not None and (table.transaction_version(APP_ID) or 0) >= batch.number

    @contextmanager
    def hold_lock(self, patience: float = _LOCK_TIMEOUT) -> Iterator[None]:
        """Hold the lock of the tables, after waiting for another job to end its batch."""
        if not self._store.is_local:
            yield
            return
        path = Path(self._store.full_path(_LOCK_FILE))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        busy = TablesBusy(f"another job is at work on the tables in {path.parent}")
        with hold_file_lock(path, patience, busy):
            yield

    def agreed_objectives(self, wanted: Objectives | None = None) -> Objectives:
        """The objectives the tables were begun with; raises if `wanted` differs from them."""
        last = self.last_batch()
        if last is None:
            return wanted or Objectives()
        if wanted and (names := wanted.differing_names(last.objectives)):
            raise PipelineError(
                f"the tables in {self._tables} were made with other objectives"
                f" ({', '.join(names)}): make new ones in another folder, with backfill"
            )
        return last.objectives

    def begin_batch(
        self,
        end: Offsets,
        objectives: Objectives | None = None,
        notes: BatchNotes | None = None,
        last: PipelineBatch = NO_BATCH,
    ) -> PipelineBatch:
        """Record the batch after `last`, from its end up to `end`.

        The caller has seen that `last` is done. In a bucket, another job may have begun the next
        one since then; that raises TablesBusy.
        """
        agreed = self.agreed_objectives(objectives)
        notes = notes or BatchNotes()
        batch = PipelineBatch(
            last.number + 1,
            last.end,
            end,
            agreed,
            _LAYOUT_VERSION,
            notes.as_of,
            notes.left_out,
            notes.recovered,
            notes.aside,
            notes.repaired,
        )
        self._create_file(_batch_file(batch.number), msgspec.json.encode(batch))
        return batch

    def amend_batch(self, batch: PipelineBatch) -> PipelineBatch:
        """Record a changed batch in another file. The caller has checked that no table has it."""
        name = _batch_file(batch.number, len(self._versions_of(batch.number)))
        self._create_file(name, msgspec.json.encode(batch))
        return batch

    def _versions_of(self, number: int) -> list[str]:
        """The files of a batch, the last of which counts."""
        begin = _batch_file(number).removesuffix(".json")
        return [name for name in self._store.list_files(_BATCH_FOLDER) if name.startswith(begin)]

    def _create_file(self, name: str, content: bytes) -> None:
        """Write the file of a batch; on a local disk the caller holds the lock."""
        if self._store.is_local:
            with name_full_disk(self._tables):
                self._store.write_file(name, content)
        elif not create_in_bucket(self._tables, name, content):
            raise TablesBusy(
                f"another job has begun the same batch of the tables in {self._tables}"
            )


def _batch_file(number: int, amendment: int = 0) -> str:
    """The names of a batch sort before those of the next one, and its amendments after it."""
    suffix = f"_{amendment:03d}" if amendment else ""
    return f"{_BATCH_FOLDER}/{number:012d}{suffix}.json"
