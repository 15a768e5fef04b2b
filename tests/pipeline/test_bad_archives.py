"""What `run` and `audit` say of archives that somebody tampered with, and their exit codes."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gatepost.cli.runner import run_command
from gatepost.pipeline.synth import generate_archive
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
    bad.delete_room_facts: (UNDECIDED, set(), "vouch for the keys of"),
    bad.forge_manifest: (BROKEN, {"unsigned_manifest"}, "not signed by the node's key"),
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
    assert any(text in sample["detail"] for sample in shown.document["samples"]), shown


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


class Shown(NamedTuple):
    code: int
    document: Any


def called(capsys: Any, command: str, root: Path, folder: Path, *more: str) -> Shown:
    arguments = ["--archive", str(root), "--tables", str(folder / "tables"), "--json", *more]
    code = run_command(["pipeline", command, *arguments])
    shown = capsys.readouterr()
    return Shown(code, json.loads(shown.out or shown.err))
