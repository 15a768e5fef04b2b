"""The bytes of frames, rooms, journals and archives are those that were recorded.

A change of structure must not alter them. After a change that is meant to, record them anew and
review the difference: `.venv/bin/python -m tests.golden.scenarios`.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from gatepost.journal.database import Database
from tests.delivery.mesh import Mesh
from tests.golden.scenarios import RECORDED, SCENARIOS, Lines, dump_journal


@pytest.mark.parametrize("play", SCENARIOS, ids=lambda play: play.__name__.removeprefix("play_"))
def test_a_scenario_writes_the_recorded_bytes(play: Callable[[], dict[str, Lines]]) -> None:
    for name, lines in play().items():
        assert lines == (RECORDED / f"{name}.txt").read_text().splitlines(), name


def test_every_recording_belongs_to_a_scenario() -> None:
    played = {f"{name}.txt" for play in SCENARIOS for name in play()}
    assert played == {file.name for file in RECORDED.glob("*.txt")}


def open_recorded(name: str, folder: Path) -> apsw.Connection:
    """A recorded journal, opened as a gateway opens it, and copied to memory."""
    path = folder / f"{name}.db"
    path.write_bytes(gzip.decompress((RECORDED / f"journal-{name}.db.gz").read_bytes()))
    database = Database.open(path, check="full")
    copy = apsw.Connection(":memory:")
    with copy.backup("main", database.writer_connection, "main") as work:
        work.step()
    database.close()
    return copy


def test_a_recorded_journal_opens_with_all_its_rows(tmp_path: Path) -> None:
    """Two messages were sent after the scenario; they changed rows of other tables only."""
    opened = set(dump_journal(open_recorded("b", tmp_path)))
    written = (RECORDED / "messages-journal-b.txt").read_text().splitlines()
    kept = ("dead_letter", "head", "inbox ", "outbox", "undelivered", "mail ")
    lines = {line for line in written if line.startswith(kept)}
    assert lines
    assert lines <= opened


def test_gateways_with_recorded_journals_deliver_what_was_open(tmp_path: Path) -> None:
    mesh = Mesh("a", "b")  # Its keys are those with which the journals were written.
    for name, gate in mesh.gates.items():
        gate.connection = open_recorded(name, tmp_path)
        gate.start()
    mesh.meet()
    mesh.link("a", "b")
    mesh.flow()
    assert [gate.settle() for gate in mesh.gates.values()] == [3, 1]
    mesh.flow()
    for gate in mesh.gates.values():
        assert gate.rows("SELECT * FROM delivery WHERE processed_at IS NULL") == []
