"""Phases: what may follow what, and the marker file."""

from pathlib import Path

import pytest

from gatepost.errors import ConfigError, WrongState
from gatepost.migration.files import Folder
from gatepost.migration.phase import TRANSITIONS, Command, Marker, Phase, allowed, enter, load
from gatepost.migration.report import Counts


def test_everything_is_allowed_until_cut_over_and_then_only_cut_over() -> None:
    for before in (None, Phase.IMPORTING, Phase.DUAL_WRITE):
        assert {command for (phase, command) in TRANSITIONS if phase is before} == set(Command)
    assert [command for (phase, command) in TRANSITIONS if phase is Phase.CUT_OVER] == [
        Command.CUT_OVER
    ]


def test_an_import_does_not_end_dual_write() -> None:
    assert TRANSITIONS[Phase.DUAL_WRITE, Command.IMPORT] is Phase.DUAL_WRITE


def test_the_marker_keeps_what_a_command_does_not_speak_of(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert load(folder) is None
    enter(folder, Command.IMPORT, "n", 1, counts=Counts(read=3, imported=3))
    enter(folder, Command.DUAL_WRITE, "n", 2, mirror="/x.json")
    enter(folder, Command.CUT_OVER, "n", 3)
    kept = Marker(Phase.CUT_OVER, "n", 3, Counts(read=3, imported=3), "/x.json")
    assert load(folder) == kept


def test_after_cut_over_dual_write_is_refused_and_says_why(tmp_path: Path) -> None:
    marker = enter(Folder(tmp_path), Command.CUT_OVER, "n", 1)
    with pytest.raises(WrongState, match="cut over"):
        allowed(marker, Command.DUAL_WRITE, "n")


def test_a_ledger_is_about_one_gateway() -> None:
    with pytest.raises(WrongState, match="a migration to n, and the gateway is other"):
        allowed(Marker(Phase.IMPORTING, "n", 1), Command.IMPORT, "other")


def test_a_damaged_marker_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.marker.write_text("{")
    with pytest.raises(ConfigError, match=r"migration\.json is damaged"):
        load(folder)
