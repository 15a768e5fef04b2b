"""What `run` and `audit` say of archives that somebody tampered with, and their exit codes."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gatepost.cli.runner import run_command
from gatepost.pipeline.small_tables import read_rows
from gatepost.pipeline.synth import generate_archive
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import TableSpec
from tests.pipeline import bad_archives as bad

pytestmark = pytest.mark.timeout(600)

KEPT, BROKEN, UNDECIDED = 0, 1, 2


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("right") / "archive"
    generate_archive(str(root), bad.OPTIONS)
    return root


# Tampering → exit code of the audit, the rules that are broken, and a part of what it says.
AUDITS: dict[bad.Tampering, tuple[int, set[str], str]] = {
    bad.empty: (UNDECIDED, set(), "the archive holds no events"),
    bad.add_node_without_archive: (UNDECIDED, set(), "say --absent node-99"),
    bad.delete_folder: (BROKEN, {"missing_archive"}, "has read its events up to"),
    bad.leave_out_last_segment: (BROKEN, {"missing_events"}, "the archive ends with"),
    bad.hide_last_segment_and_facts: (UNDECIDED, set(), "the node has not archived since"),
    bad.add_stranger: (BROKEN, {"unknown_node"}, "no gateway of the room knows this node"),
    bad.write_newer_manifest: (UNDECIDED, set(), "has version 7, this Gatepost reads 1"),
    bad.leave_out_first_segment: (UNDECIDED, set(), "lists events from 201 on, and begins it with"),
    bad.empty_segment: (BROKEN, {"altered_segment"}, "has 0 events, the manifest lists 3"),
    bad.delete_segment: (BROKEN, {"chain_gap"}, "is missing"),
    bad.name_node_in_column: (BROKEN, {"altered_segment"}, "the file has a column node"),
    bad.retype_column: (BROKEN, {"altered_segment"}, "the column kind is int64, not string"),
    bad.leave_out_digests: (BROKEN, {"altered_segment"}, "digest has rows without a value"),
    bad.write_newer_segment: (UNDECIDED, set(), "has version 2, this Gatepost reads 1"),
    bad.write_newer_facts: (UNDECIDED, set(), "has version 2, this Gatepost reads 1"),
    bad.enlarge_blob: (UNDECIDED, set(), "the column blob_size has impossible values"),
    bad.write_odd_progress: (UNDECIDED, set(), "the column progress has impossible values"),
    bad.move_to_other_incarnation: (UNDECIDED, set(), "of another incarnation than the manifest"),
    bad.name_far_id: (KEPT, set(), ""),
    bad.drop_columns: (KEPT, set(), ""),
    bad.delete_room_facts: (UNDECIDED, set(), "vouch for the keys of"),
    bad.delete_facts_of_one: (UNDECIDED, set(), "its room facts are missing"),
    bad.forge_manifest: (BROKEN, {"unsigned_manifest"}, "not signed by the node's key"),
    bad.add_strange_gateway: (
        BROKEN,
        {"unsigned_manifest", "room_facts"},
        "no gateway of the room knows this gateway",
    ),
}


VERDICTS = {KEPT: "kept", BROKEN: "broken", UNDECIDED: "undecided"}


@pytest.mark.parametrize("tamper", AUDITS, ids=lambda tamper: tamper.__name__)
def test_an_audit_is_not_fooled(
    right: Path, tmp_path: Path, tamper: bad.Tampering, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "archive"
    shutil.copytree(right, root)
    tamper(root)
    code, rules, text = AUDITS[tamper]
    shown = called(capsys, "audit", root, tmp_path)
    assert (shown.code, set(shown.document["violations"])) == (code, rules)
    assert shown.document["verdict"] == VERDICTS[code]
    samples = [sample["detail"] for sample in shown.document["samples"]]
    assert any(text in detail for detail in samples) if text else not samples, shown


def test_a_right_archive_is_kept_and_an_absence_may_be_stated(
    right: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(capsys, "audit", right, tmp_path).code == KEPT
    root = tmp_path / "archive"
    shutil.copytree(right, root)
    bad.add_node_without_archive(root)
    assert called(capsys, "audit", root, tmp_path, "--absent", "node-99").code == KEPT
    missing = called(capsys, "audit", tmp_path / "nowhere", tmp_path)
    assert missing.code == UNDECIDED


# Tampering → what `run` says of what it sets aside, and whether only some events are missing.
RUNS: dict[bad.Tampering, tuple[str, bool]] = {
    bad.add_stranger: ("no gateway of the room knows this node", False),
    bad.forge_manifest: ("not signed by the key that the room knows", False),
    bad.add_strange_gateway: ("not signed by the key that the room knows", False),
    bad.garble_manifest: ("is not a manifest", False),
    bad.write_newer_manifest: ("has version 7, this Gatepost reads 1", False),
    bad.damage_segment: ("the file is not the one that was archived", True),
    bad.delete_segment: ("the file is missing", True),
    bad.empty_segment: ("the file has 0 events, the manifest lists 3", True),
    bad.name_node_in_column: ("has a column node, which only its folder may name", True),
    bad.leave_out_digests: ("the column digest has rows without a value", True),
    bad.write_odd_progress: ("the column progress has impossible values", True),
    bad.move_to_other_incarnation: ("of another incarnation than the manifest lists", True),
    bad.write_newer_segment: ("it has version 2, this Gatepost reads 1", True),
    bad.retype_column: ("the column kind is int64, not string", True),
    bad.enlarge_blob: ("the column blob_size has impossible values", True),
    bad.scramble_pages: ("the file cannot be decoded", True),
    bad.replace_segment_by_pipe: ("it is not a file", True),
    bad.list_impossible_date: ("lists an impossible segment", False),
}


@pytest.mark.parametrize("tamper", RUNS, ids=lambda tamper: tamper.__name__)
def test_run_sets_poison_aside_and_goes_on(
    right: Path, tmp_path: Path, tamper: bad.Tampering, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "archive"
    shutil.copytree(right, root)
    tamper(root)
    text, partly = RUNS[tamper]
    shown = called(capsys, "run", root, tmp_path)
    assert shown.code == 0
    (aside,) = shown.document["aside"]
    assert text in aside["reason"]
    assert (aside.get("first") is not None) == partly
    (incident,) = incidents(tmp_path, "bad_archive")
    assert (incident["node"], text in incident["sentence"]) == (aside["node"], True)
    senders = {level["name"] for level in shown.document["report"]["nodes"]}
    assert (aside["node"] in senders) == partly
    assert {"node-01", "node-03", "node-04"} <= senders
    # Nothing is said twice, and nothing new happened.
    again = called(capsys, "run", root, tmp_path)
    assert (again.document["batches"], again.document["aside"]) == (0, [aside])


@pytest.mark.parametrize("tamper", [bad.damage_segment, bad.garble_manifest])
def test_what_is_right_again_is_made_up_for(
    right: Path, tmp_path: Path, tamper: bad.Tampering, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "archive"
    shutil.copytree(right, root)
    tamper(root)
    called(capsys, "run", root, tmp_path)
    (lasting,) = incidents(tmp_path, "bad_archive")
    assert lasting["ended_at"] is None
    shutil.copytree(right, root, dirs_exist_ok=True)
    shown = called(capsys, "run", root, tmp_path)
    assert shown.document["aside"] == []
    assert shown.document["events"] > 0
    # It is over, and says so to whoever knew that it lasted.
    (over,) = incidents(tmp_path, "bad_archive")
    assert over["incident_id"] == lasting["incident_id"]
    assert over["ended_at"] >= over["started_at"]
    called(capsys, "run", right, tmp_path / "other")
    for table in (schemas.DELIVERIES, schemas.SLO, schemas.INCIDENTS):
        found, expected = (rows(folder, table) for folder in (tmp_path, tmp_path / "other"))
        assert [row for row in found if row != over] == expected


def test_one_event_of_the_future_empties_nothing(
    right: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "archive"
    shutil.copytree(right, root)
    bad.write_event_of_the_future(root)
    shown = called(capsys, "run", root, tmp_path)
    # It is taken in, but its id is too far from it to count.
    (aside,) = shown.document["aside"]
    assert (shown.code, aside["node"], aside["events"]) == (0, bad.VICTIM, 1)
    assert shown.document["batches"] <= 3
    assert shown.document["events"] == sum(bad.read_listed(right, n).rows for n in NODES)
    day = 24 * 3_600_000
    assert shown.document["report"]["last_at"] - shown.document["report"]["first_at"] <= 2 * day
    before = len(rows(tmp_path, schemas.DELIVERIES))
    places = ["--tables", str(tmp_path / "tables"), "--json"]
    assert run_command(["pipeline", "compact", "--keep-days", "3", *places]) == 0
    assert len(rows(tmp_path, schemas.DELIVERIES)) == before > 0


@pytest.mark.parametrize(
    ("tamper", "counted"), [(bad.name_far_id, "1 event is"), (bad.shorten_ids, "2 events are")]
)
def test_ids_that_cannot_be_right_are_counted_and_their_neighbours_taken_in(
    right: Path,
    tmp_path: Path,
    tamper: bad.Tampering,
    counted: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "archive"
    shutil.copytree(right, root)
    tamper(root)
    shown = called(capsys, "run", root, tmp_path)
    assert shown.document["events"] == sum(bad.read_listed(right, n).rows for n in NODES)
    (aside,) = shown.document["aside"]
    assert (aside["first"], aside["last"]) == (401, 403)
    (incident,) = incidents(tmp_path, "bad_archive")
    assert incident["count"] == aside["events"] == int(counted[0])
    said = f"{bad.VICTIM}: among its events 401 to 403, {counted} not counted: an id was drawn"
    assert incident["sentence"].startswith(said)
    places = ["--archive", str(root), "--tables", str(tmp_path / "tables"), "--engine", "local"]
    assert run_command(["pipeline", "run", *places]) == 0
    assert said in capsys.readouterr().out


def test_older_segments_lack_columns(
    right: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "archive"
    shutil.copytree(right, root)
    bad.drop_columns(root)
    shown = called(capsys, "run", root, tmp_path)
    assert (shown.code, shown.document["aside"]) == (0, [])
    assert shown.document["events"] == sum(bad.read_listed(right, n).rows for n in NODES)


def test_tables_that_cannot_be_written_are_one_sentence(
    right: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "tables"
    blocked.write_text("a file, where a folder should be")
    places = ["--archive", str(right), "--tables", str(blocked), "--engine", "local"]
    code = run_command(["pipeline", "run", *places])
    shown = capsys.readouterr()
    assert code == 1
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert shown.err.startswith("gatepost: ")


NODES = ("node-01", "node-02", "node-03", "node-04")


def incidents(folder: Path, name: str) -> list[dict[str, Any]]:
    return [row for row in rows(folder, schemas.INCIDENTS) if row["class"] == name]


def rows(folder: Path, table: TableSpec) -> list[dict[str, Any]]:
    return sorted(read_rows(str(folder / "tables"), table), key=repr)


class Shown(NamedTuple):
    code: int
    document: Any


def called(capsys: Any, command: str, root: Path, folder: Path, *more: str) -> Shown:
    places = ["--archive", str(root), "--tables", str(folder / "tables"), "--engine", "local"]
    code = run_command(["pipeline", command, *places, "--json", *more])
    shown = capsys.readouterr()
    return Shown(code, json.loads(shown.out or shown.err))
