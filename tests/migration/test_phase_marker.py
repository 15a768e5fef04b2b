"""Phases: what may follow what, and the marker file."""

from pathlib import Path

import pytest

from gatepost.errors import ConfigError, WrongState
from gatepost.migration.import_summary import ImportCounts
from gatepost.migration.migration_files import MigrationFolder
from gatepost.migration.phase_marker import (
    TRANSITIONS,
    MigrationCommand,
    MigrationPhase,
    PhaseMarker,
    check_transition,
    enter_phase,
    load_marker,
)


def test_everything_is_allowed_until_cut_over_and_then_only_cut_over() -> None:
    for before in (None, MigrationPhase.IMPORTING, MigrationPhase.DUAL_WRITE):
        assert {command for (phase, command) in TRANSITIONS if phase is before} == set(
            MigrationCommand
        )
    assert [command for (phase, command) in TRANSITIONS if phase is MigrationPhase.CUT_OVER] == [
        MigrationCommand.CUT_OVER
    ]


def test_an_import_does_not_end_dual_write() -> None:
    assert (
        TRANSITIONS[MigrationPhase.DUAL_WRITE, MigrationCommand.IMPORT] is MigrationPhase.DUAL_WRITE
    )


def test_the_marker_keeps_what_a_command_does_not_speak_of(tmp_path: Path) -> None:
    folder = MigrationFolder(tmp_path)
    assert load_marker(folder) is None
    enter_phase(folder, MigrationCommand.IMPORT, "n", 1, counts=ImportCounts(read=3, imported=3))
    enter_phase(folder, MigrationCommand.DUAL_WRITE, "n", 2, mirror="/x.json")
    enter_phase(folder, MigrationCommand.CUT_OVER, "n", 3)
    kept = PhaseMarker(MigrationPhase.CUT_OVER, "n", 3, ImportCounts(read=3, imported=3), "/x.json")
    assert load_marker(folder) == kept


def test_after_cut_over_dual_write_is_refused_and_says_why(tmp_path: Path) -> None:
    marker = enter_phase(MigrationFolder(tmp_path), MigrationCommand.CUT_OVER, "n", 1)
    with pytest.raises(WrongState, match="cut over"):
        check_transition(marker, MigrationCommand.DUAL_WRITE, "n")


def test_a_ledger_is_about_one_gateway() -> None:
    with pytest.raises(WrongState, match="a migration to n, and the gateway is other"):
        check_transition(
            PhaseMarker(MigrationPhase.IMPORTING, "n", 1), MigrationCommand.IMPORT, "other"
        )


def test_a_damaged_marker_is_named(tmp_path: Path) -> None:
    folder = MigrationFolder(tmp_path)
    folder.marker.write_text("{")
    with pytest.raises(ConfigError, match=r"migration\.json is damaged"):
        load_marker(folder)
