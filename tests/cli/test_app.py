"""What holds for every command."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from gatepost import __version__
from gatepost.cli.command_table import COMMANDS, FAMILIES, CommandEntry
from gatepost.cli.runner import move_leading_options, run_command
from tests.cli.conftest import Cli, environment

NAMES = [entry.name for entry in COMMANDS if not entry.name.startswith("-")]


def output_of(code: str) -> str:
    return subprocess.check_output([sys.executable, "-c", code], env=environment(), text=True)


@pytest.fixture
def nowhere(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "none")


@pytest.mark.parametrize("command", NAMES)
def test_help_shows_an_example_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"\n  gatepost {command}" in shown
    assert "--json" in shown


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_the_summary_in_the_source_is_the_first_line_of_the_docstring(entry: CommandEntry) -> None:
    module, _, name = entry.function.partition(":")
    function = getattr(importlib.import_module(f"gatepost.cli.commands.{module}"), name)
    assert (inspect.getdoc(function) or "").partition("\n")[0] == entry.summary
    assert entry.summary.endswith(".")


def test_no_two_commands_share_their_function_or_their_summary() -> None:
    assert len({entry.function for entry in COMMANDS}) == len(COMMANDS)
    assert len({entry.summary for entry in COMMANDS}) == len(COMMANDS)


def test_every_family_has_commands() -> None:
    assert set(FAMILIES) == {name.partition(" ")[0] for name in NAMES if " " in name}


def test_help_lists_every_command(nowhere: Cli) -> None:
    code, shown, err = nowhere.in_own_process("--help")
    assert (code, err) == (0, "")
    for command in NAMES:
        assert f"│ {command.split()[0]} " in shown
    assert nowhere.ok() == shown


def test_version(nowhere: Cli) -> None:
    assert nowhere.in_own_process("--version") == (0, f"{__version__}\n", "")


def test_the_package_is_the_command() -> None:
    run = [sys.executable, "-m", "gatepost", "--version"]
    assert (
        subprocess.run(run, check=True, capture_output=True, text=True).stdout == f"{__version__}\n"
    )


def test_a_mistyped_command_is_guessed(nowhere: Cli) -> None:
    result = nowhere("snd", "bob", "hi")
    assert (result.code, 'Did you mean "send"?' in result.err) == (2, True)
    assert nowhere("snd", "--json").error["code"] == "usage"


def test_help_loads_nothing_it_does_not_need() -> None:
    heavy = ("litestar", "uvicorn", "httpx", "msgspec", "apsw", "nacl", "pydantic")
    code = f"import sys, gatepost.cli.runner; print([m for m in {heavy} if m in sys.modules])"
    assert output_of(code) == "[]\n"


def test_commands_load_no_server() -> None:
    heavy = ("litestar", "uvicorn", "apsw", "rich", "pydantic")
    code = (
        "import sys;"
        "from gatepost.cli.commands import dead_letters, up;"
        "from gatepost.cli.commands.messages import inbox, send;"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    assert output_of(code) == "[]\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(nowhere: Cli, shell: str) -> None:
    said = nowhere.json("completion", shell)
    assert all(word in said["script"] for word in ("inbox", "replay", "idempotency-key"))


def test_bash_loads_its_completion(nowhere: Cli) -> None:
    script = nowhere.ok("completion", "bash")
    assert "idempotency-key" in script
    for check in (["bash", "-n"], ["bash", "--norc", "-e"]):
        subprocess.run(check, input=script.encode(), check=True, timeout=10)


def test_completion_installs_itself(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "none", SHELL="/bin/bash")
    said = cli.json("completion", "bash", "--install")
    assert Path(said["file"]).is_relative_to(tmp_path)
    assert "gatepost" in Path(said["file"]).read_text()


def test_completion_offers_agents(cli: Cli, agent: str) -> None:
    offered = cli("__complete", "send", agent[:5])
    assert agent in offered.out


def test_leading_options_move_behind_the_command() -> None:
    assert move_leading_options(["--json", "--url", "u", "send", "a", "--", "b"]) == [
        *("send", "a", "--json", "--url", "u", "--", "b"),
    ]
    assert move_leading_options(["--url=u", "status"]) == ["status", "--url=u"]
    assert move_leading_options(["send", "--json"]) == ["send", "--json"]
