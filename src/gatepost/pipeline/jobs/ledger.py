"""Which events are in the tables: a list of batches, each written down before it is begun.

A batch is a range of every outbox, so running it again reads the same events; every table takes
each batch once. So whatever dies at whatever moment, the next run finishes that batch first and
the tables are exact. One process at a time works on tables that are on this machine's disk.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from gatepost.archive.store import Store
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
    """The events after `start` up to `end`, and what their tables are judged by."""

    number: int
    start: Offsets
    end: Offsets
    objectives: Objectives = Objectives()
    # Which tables there are and what is in them; before this was noted, it was the first.
    layout: int = 1


class Ledger:
    def __init__(self, tables: str) -> None:
        self._tables = tables
        self._store = Store.open(tables)

    def last(self) -> Batch | None:
        """The batch that was begun last, done or not."""
        names = self._store.files(_FOLDER)
        content = self._store.read(names[-1]) if names else None
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
        """Keep others off the tables, once those who are at work have ended a batch."""
        if not self._store.is_local:
            yield
            return
        path = Path(self._store.path(_LOCK))
        path.parent.mkdir(parents=True, exist_ok=True)
        busy = TablesBusy(f"another job is at work on the tables in {path.parent}")
        with locked(path, patience, busy):
            yield

    def objectives(self, wanted: Objectives | None = None) -> Objectives:
        """Those the tables were begun with; whoever wants others has to begin others."""
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
        last, agreed = self.last(), self.objectives(objectives)
        number, start = (last.number + 1, last.end) if last else (1, {})
        batch = Batch(number, start, end, agreed, _LAYOUT)
        name = f"{_FOLDER}/{batch.number:012d}.json"
        self._store.write(name, msgspec.json.encode(batch))
        return batch
