"""The list of batches, and that one job at a time adds to it."""

import subprocess
import sys
from pathlib import Path

import pytest

from gatepost.errors import ConfigError, PipelineError, TablesBusy
from gatepost.pipeline.jobs.batch_ledger import BatchLedger, PipelineBatch
from gatepost.pipeline.objectives import Objectives

_HOLDER = """
import sys
from gatepost.pipeline.jobs.batch_ledger import BatchLedger
with BatchLedger(sys.argv[1]).hold_lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_batch_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    ledger = BatchLedger(str(tmp_path))
    assert ledger.last_batch() is None
    first = ledger.begin_batch({"vps": {"a": 5}})
    second = BatchLedger(str(tmp_path)).begin_batch({"vps": {"a": 9}}, last=first)
    assert first == PipelineBatch(1, {}, {"vps": {"a": 5}}, layout=3)
    assert second == PipelineBatch(2, {"vps": {"a": 5}}, {"vps": {"a": 9}}, layout=3)
    assert ledger.last_batch() == second


def test_whoever_comes_second_waits_and_is_told(tmp_path: Path) -> None:
    ledger = BatchLedger(str(tmp_path))
    second = BatchLedger(str(tmp_path)).hold_lock(patience=0.2)
    with ledger.hold_lock(), pytest.raises(TablesBusy, match="another job"), second:
        pytest.fail("two held the tables at once")
    with BatchLedger(str(tmp_path)).hold_lock(patience=0):
        pass


def test_a_job_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TablesBusy), BatchLedger(str(tmp_path)).hold_lock(patience=0):
            pytest.fail("two held the tables at once")
        holder.kill()
    with BatchLedger(str(tmp_path)).hold_lock(patience=5):
        pass


def test_tables_keep_the_objectives_they_were_begun_with(tmp_path: Path) -> None:
    ledger, strict = BatchLedger(str(tmp_path)), Objectives(sla=60)
    assert (ledger.agreed_objectives(), ledger.agreed_objectives(strict)) == (Objectives(), strict)
    first = ledger.begin_batch({"vps": {"a": 5}}, strict)
    assert BatchLedger(str(tmp_path)).agreed_objectives() == strict
    assert ledger.begin_batch({"vps": {"a": 9}}, last=first).objectives == strict
    with pytest.raises(PipelineError, match=r"other objectives \(sla\)"):
        ledger.agreed_objectives(Objectives())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sla = 1800\nslo = 3", "slo"),
        ("sla = 'soon'", "sla"),
        ("sla = -1", "cannot be negative"),
        ("window = 7000", "does not divide an hour"),
        ("sla", "TOML|Expected"),
    ],
)
def test_objectives_that_make_no_sense_are_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "promises.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        Objectives.load_file(path)


def test_objectives_name_what_differs_from_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "promises.toml"
    path.write_text("sla = 1800\ndelivery_p95 = 2.5\n")
    assert Objectives.load_file(path) == Objectives(sla=1800, delivery_p95=2.5)
    with pytest.raises(ConfigError, match="cannot be read"):
        Objectives.load_file(tmp_path / "nowhere.toml")


def test_tables_of_another_version_are_not_gone_on_with(tmp_path: Path) -> None:
    ledger = BatchLedger(str(tmp_path))
    ledger.begin_batch({"vps": {"a": 5}})
    (file,) = (tmp_path / "_batches").iterdir()
    file.write_text(file.read_text().replace('"layout":3', '"layout":1'))
    with pytest.raises(PipelineError, match=r"an earlier Gatepost \(layout 1; .* backfill"):
        ledger.last_batch()
    file.write_text(file.read_text().replace('"layout":1', '"layout":4'))
    with pytest.raises(PipelineError, match=r"a newer Gatepost \(layout 4; .* upgrade"):
        ledger.last_batch()
