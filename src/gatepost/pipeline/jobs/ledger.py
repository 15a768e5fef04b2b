"""Which events are in the tables: a list of batches, each written down before it is begun.

A batch is a range of every outbox, so running it again reads the same events; every table takes
each batch once. So whatever dies at whatever moment, the next run finishes that batch first and
the tables are exact.
"""

import msgspec
from msgspec import Struct

from gatepost.archive.store import Store
from gatepost.pipeline.planning import Offsets

APP = "gatepost-pipeline"
_FOLDER = "_batches"


class Batch(Struct, frozen=True, rename="camel"):
    """The events after `start` up to `end`."""

    number: int
    start: Offsets
    end: Offsets


class Ledger:
    def __init__(self, tables: str) -> None:
        self._store = Store.open(tables)

    def last(self) -> Batch | None:
        """The batch that was begun last, done or not."""
        names = self._store.files(_FOLDER)
        content = self._store.read(names[-1]) if names else None
        return None if content is None else msgspec.json.decode(content, type=Batch)

    def begin(self, end: Offsets) -> Batch:
        last = self.last()
        batch = Batch(last.number + 1, last.end, end) if last else Batch(1, {}, end)
        name = f"{_FOLDER}/{batch.number:012d}.json"
        self._store.write(name, msgspec.json.encode(batch))
        return batch
