"""`gatepost top`, up to its first screen."""

import sys

import pytest

from tests.cli.conftest import Cli


def test_top_needs_a_terminal(cli: Cli) -> None:
    result = cli("top")
    assert result.code == 2
    assert "needs a terminal" in result.err
    assert "gatepost watch --json" in cli("top", "--json").err


def test_a_missing_extra_names_the_line_to_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gatepost.tui")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    result = cli("top")
    assert result.code == 2
    assert result.err == (
        "gatepost: `gatepost top` needs Textual: run pip install 'gatepost[tui]'\n"
    )


def test_an_unknown_view_is_named(cli: Cli) -> None:
    said = cli.seen("top", "nowhere")
    assert "there is no view 'nowhere': needs, nodes" in " ".join(said.split())


def test_top_draws_the_room_and_ends_with_q(cli: Cli) -> None:
    with cli.on_terminal("top") as terminal:
        assert "gatepost top" in terminal.read("live")
        terminal.type("q")
        assert terminal.process.wait(60) == 0
