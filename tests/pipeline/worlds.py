"""A synthetic archive and the tables made of it, which many tests look at and none changes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gatepost.pipeline import small_tables
from gatepost.pipeline.jobs.pipeline import backfill_tables
from gatepost.pipeline.synth import SynthOptions
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import TableSpec
from gatepost.pipeline.transport import LocalTransport
from tests.pipeline.planted_faults import FAULTS, generate_planted

# A gap in a chain is for the audit; the pipeline's source refuses to read over it.
PLANTED = tuple(name for name in FAULTS if name != "chain_gap")
MADE = (
    *(schemas.DELIVERIES, schemas.TASKS, schemas.SLO, schemas.TRAFFIC),
    *(schemas.CASES, schemas.PACES, schemas.INCIDENTS, schemas.REVIEWS, schemas.ETA),
)

Rows = list[dict[str, Any]]


class World:
    def __init__(self, folder: Path, options: SynthOptions, faults: Sequence[str]) -> None:
        self.transport = LocalTransport()
        self.archive = str(folder / "archive")
        self.truth = generate_planted(self.archive, options, faults)
        self.tables = str(folder / "tables")
        self.ran = backfill_tables(self.transport, self.archive, self.tables)
        self.rows = {table.name: self.read(self.tables, table) for table in MADE}

    def read(self, tables: str, table: TableSpec) -> Rows:
        return sorted(map(_plain, small_tables.read_rows(tables, table)), key=repr)

    def assert_same(self, tables: str) -> None:
        """Whoever made these tables, and however: they are what a clean backfill makes."""
        for table in MADE:
            found = [row for row in self.read(tables, table) if not _is_repaired(row)]
            assert found == self.rows[table.name], table.name


def _is_repaired(row: dict[str, Any]) -> bool:
    """Whether it is the incident of a part of the archive that is right again."""
    return row.get("class") == "bad_archive" and row["ended_at"] is not None


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A mean may differ in its last bit with the order of adding."""
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()}
