"""The ledger of batches: which events are in the tables.

A batch is recorded before work on it begins. It is a range of every outbox, so repeating it reads
the same events, and every table takes each batch once. So after a crash at any moment the next run
finishes that batch first, and the tables are exact. For tables on a local disk a lock admits one
process at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from gatepost.archive.archive_store import ArchiveStore
from gatepost.errors import PipelineError, TablesBusy
from gatepost.pipeline.locking import locked
from gatepost.pipeline.objectives import Objectives
from gatepost.pipeline.planning import Offsets
from gatepost.pipeline.small import open_table
from gatepost.pipeline.tables.schemas import INCIDENTS

APP = "gatepost-pipeline"
_FOLDER = "_batches"
_LOCK = "_lock"
_LAYOUT = 2
_PATIENCE = 600.0


class Batch(Struct, frozen=True, rename="camel"):
    """The events after `start` up to `end`, and the objectives of their tables."""

    number: int
    start: Offsets
    end: Offsets
    objectives: Objectives = Objectives()
    # The version of the tables' layout; the first version did not record it.
    layout: int = 1


class Ledger:
    """The batches of one folder of tables, each in a file of its own."""

    def __init__(self, tables: str) -> None:
        self._tables = tables
        self._store = ArchiveStore.open(tables)

    def last(self) -> Batch | None:
        """The latest batch, whether it is done or not."""
        names = self._store.list_files(_FOLDER)
        content = self._store.read_file(names[-1]) if names else None
        if content is None:
            return None
        batch = msgspec.json.decode(content, type=Batch)
        if batch.layout != _LAYOUT:
            raise PipelineError(
                f"the tables in {self._tables} were made by another version of Gatepost:"
                " make new ones in another folder, with backfill"
            )
        return batch

    def is_done(self, batch: Batch) -> bool:
        """Whether the table that is written last has this batch."""
        table = open_table(self._tables, INCIDENTS)
        return table is not None and (table.transaction_version(APP) or 0) >= batch.number

    @contextmanager
    def held(self, patience: float = _PATIENCE) -> Iterator[None]:
        """Hold the lock of the tables, after waiting for another job to end its batch."""
        if not self._store.is_local:
            yield
            return
        path = Path(self._store.full_path(_LOCK))
        path.parent.mkdir(parents=True, exist_ok=True)
        busy = TablesBusy(f"another job is at work on the tables in {path.parent}")
        with locked(path, patience, busy):
            yield

    def objectives(self, wanted: Objectives | None = None) -> Objectives:
        """The objectives the tables were begun with; raises if `wanted` differs from them."""
        last = self.last()
        if last is None:
            return wanted or Objectives()
        if wanted and (names := wanted.differing(last.objectives)):
            raise PipelineError(
                f"the tables in {self._tables} were made with other objectives"
                f" ({', '.join(names)}): make new ones in another folder, with backfill"
            )
        return last.objectives

    def begin(self, end: Offsets, objectives: Objectives | None = None) -> Batch:
        """Record the next batch, from the end of the last one up to `end`."""
        last, agreed = self.last(), self.objectives(objectives)
        number, start = (last.number + 1, last.end) if last else (1, {})
        batch = Batch(number, start, end, agreed, _LAYOUT)
        name = f"{_FOLDER}/{batch.number:012d}.json"
        self._store.write_file(name, msgspec.json.encode(batch))
        return batch
