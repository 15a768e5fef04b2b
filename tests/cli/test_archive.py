"""`gatepost archive`: looking at an archive, and verifying it."""

import json
from pathlib import Path

import pytest

from gatepost.cli.runner import run_command
from gatepost.pipeline.synth import SynthOptions, generate_archive
from tests.cli.conftest import Cli
from tests.pipeline.planted_faults import generate_planted


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("archive")
    generate_archive(str(root), SynthOptions(events=2000, nodes=3))
    return root


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    return Cli(home)


@pytest.mark.parametrize("command", ["archive status", "archive verify"])
def test_help_shows_an_example_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"\n  gatepost {command}" in shown
    assert "--json" in shown


def test_status_lists_every_node(cli: Cli, archive: Path) -> None:
    lines = cli.ok("archive", "status", str(archive)).splitlines()
    assert lines[0] == str(archive)
    assert [line.split("\t")[0] for line in lines[2:]] == ["node-01", "node-02", "node-03"]
    document = cli.json("archive", "status", str(archive))
    assert sum(node["events"] for node in document["nodes"]) > 1500
    assert [node["incarnations"] for node in document["nodes"]] == [2, 1, 1]


def test_the_archive_of_the_settings_is_meant_if_none_is_named(cli: Cli, archive: Path) -> None:
    (cli.home / "gatepost.toml").write_text(f'[archive]\nuri = "{archive}"\n')
    assert cli.json("archive", "status")["uri"] == str(archive)
    assert Cli(cli.home.parent / "x").json("archive", "status", "--state-dir", str(cli.home))


def test_without_settings_it_says_what_to_do(cli: Cli) -> None:
    result = cli("archive", "verify", "--json")
    assert (result.code, result.error["code"]) == (2, "usage")
    assert "set archive.uri" in result.error["message"]


def test_an_empty_folder_is_no_archive(cli: Cli, tmp_path: Path) -> None:
    result = cli("archive", "status", str(tmp_path / "nothing"), "--json")
    assert (result.code, result.error["code"]) == (1, "not_found")


def test_a_whole_archive_is_called_authentic_and_not_complete(cli: Cli, archive: Path) -> None:
    shown = cli.ok("archive", "verify", str(archive))
    assert shown.endswith(f"in {archive}: authentic; not proven: newest\n")
    assert "complete" not in shown
    assert cli.json("archive", "verify", str(archive))["findings"] == []


def test_a_lone_archive_is_not_called_the_newest(cli: Cli, tmp_path: Path) -> None:
    generate_archive(str(tmp_path / "a"), SynthOptions(events=2000, nodes=3))
    facts = tmp_path / "a" / "room"
    others = [file.rename(tmp_path / file.name) for file in sorted(facts.iterdir())]
    shown = cli.ok("archive", "verify", str(tmp_path / "a"))
    assert "node-02: not proven: newest; highest head seen by others: none\n" in shown
    (reach, *_) = cli.json("archive", "verify", str(tmp_path / "a"))["reaches"]
    assert reach["seen_through"] is None
    manifest_file = tmp_path / "a" / "node=node-02" / "_manifest.json"
    listed = json.loads(manifest_file.read_bytes())
    cut = listed["segments"].pop()
    (tmp_path / "a" / "node=node-02" / cut["path"]).unlink()
    manifest_file.write_text(json.dumps(listed))
    heads = [part for file in others for part in ("--heads", str(file))]
    result = cli("archive", "verify", str(tmp_path / "a"), *heads)
    assert result.code == 1
    assert "not_newest" in result.out
    assert f"{cut['first']} to " in result.out


def test_a_file_of_heads_that_is_none_is_a_usage_problem(cli: Cli, archive: Path) -> None:
    result = cli("archive", "verify", str(archive), "--heads", str(archive / "none"), "--json")
    assert (result.code, result.error["code"]) == (2, "usage")


def test_findings_are_listed_and_the_exit_code_tells(cli: Cli, tmp_path: Path) -> None:
    options = SynthOptions(events=2000, nodes=3)
    generate_planted(str(tmp_path / "a"), options, ["bad_signature"])
    result = cli("archive", "verify", str(tmp_path / "a"))
    assert result.code == 1
    assert "node-03\t" in result.out
    assert "bad_signature" in result.out
    assert result.out.endswith("1 finding\n")
    manifest = tmp_path / "a" / "node=node-01" / "_manifest.json"
    manifest.write_bytes(b"{")
    result = cli("archive", "verify", str(tmp_path / "a"), "--json")
    assert [f["rule"] for f in result.document["findings"]] == [
        "manifest_unreadable",
        "bad_signature",
    ]
    assert cli("archive", "status", str(tmp_path / "a")).code == 1


def test_progress_is_shown_where_somebody_looks(cli: Cli, archive: Path) -> None:
    assert "verifying" in cli.seen("archive", "verify", str(archive))
