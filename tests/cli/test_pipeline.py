"""`gatepost pipeline`, from a synthetic archive to a report, and back to a gateway.

One Spark session serves all commands here, as it would in a notebook: its JVM is what takes time.
"""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from gatepost.cli.problems import ExitCode
from gatepost.cli.runner import run_command
from gatepost.pipeline.synth import SynthOptions
from tests.cli.conftest import Cli, gateway
from tests.pipeline.planted_faults import generate_planted
from tests.pipeline.spark_interface import scanned_rows, shown_queries
from tests.waiting import wait_until

COMMANDS = [
    "run",
    "stream",
    "audit",
    "backfill",
    "compact",
    "report",
    "replay",
    "synth",
    "feedback",
]


# What these tests are about is the same on every engine, and this one needs no JVM.
LOCAL = ("--engine", "local")


class Made(NamedTuple):
    archive: str
    tables: str

    @property
    def places(self) -> tuple[str, ...]:
        return ("--archive", self.archive, "--tables", self.tables)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """An archive with a doubled turn and dead letters, and tables of it."""
    folder = tmp_path_factory.mktemp("pipeline")
    made = Made(str(folder / "archive"), str(folder / "tables"))
    faults = ("doubled_turn", "dead_letter_burst")
    generate_planted(made.archive, SynthOptions(events=2000, nodes=3), faults)
    assert run_command(["pipeline", "run", *made.places, *LOCAL]) == 0
    return made


class Shown(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def pipeline(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> Shown:
        capsys.readouterr()
        code = run_command(["pipeline", *arguments])
        return Shown(code, *capsys.readouterr())

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["pipeline", command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"\n  gatepost pipeline {command}" in shown
    assert "--json" in shown


def test_run_takes_in_what_is_new_and_sums_up(made: Made, pipeline: Any) -> None:
    again = pipeline("run", *made.places, *LOCAL)
    lines = again.out.splitlines()
    assert (again.code, lines[0]) == (0, "no new events")
    assert (" sent = " in lines[3], lines[4].split("\t")[:2]) == (True, ["", "Deliveries"])
    assert any(line.startswith("throughput ") for line in lines)
    assert any(line.startswith("dead letter burst\t") for line in lines)
    assert lines[-1].startswith("in this process, without Spark: ")
    shown = pipeline("run", *made.places, *LOCAL, "--json")
    assert shown.document["engine"]["engine"] == "local"
    assert (shown.document["batches"], shown.document["events"]) == (0, 0)
    assert shown.document["report"]["total"]["sent"] > 400


def test_tables_are_not_judged_by_two_sorts_of_objectives(
    made: Made, pipeline: Any, tmp_path: Path
) -> None:
    promises = tmp_path / "promises.toml"
    promises.write_text("sla = 60")
    places = (*made.places, *LOCAL)
    shown = pipeline("run", *places, "--objectives", str(promises))
    assert (shown.code, "other objectives (sla)" in shown.err) == (ExitCode.FAILED, True)
    promises.write_text("sla = 'soon'")
    shown = pipeline("run", *places, "--objectives", str(promises))
    assert (shown.code, str(promises) in shown.err) == (ExitCode.FAILED, True)


def test_run_on_an_empty_folder_says_so(pipeline: Any, tmp_path: Path) -> None:
    places = Made(str(tmp_path / "a"), str(tmp_path / "t")).places
    shown = pipeline("run", *places, *LOCAL)
    assert (shown.code, "no segment was archived there yet" in shown.err) == (ExitCode.FAILED, True)


def test_a_broken_segment_is_named_and_the_rest_is_taken_in(pipeline: Any, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    assert pipeline("synth", str(archive), "--events", "500", "--nodes", "3").code == 0
    segment = min(archive.glob("node=*/date=*/*.parquet"))
    segment.write_bytes(segment.read_bytes()[:300])
    shown = pipeline("run", *Made(str(archive), str(tmp_path / "tables")).places, *LOCAL)
    assert (shown.code, shown.err) == (0, "")
    said = [line for line in shown.out.splitlines() if line.startswith("set aside: ")]
    assert len(said) == 1
    assert f"{segment.relative_to(archive)}: the file is not the one" in said[0]


def test_backfill_wants_an_empty_folder(made: Made, pipeline: Any, tmp_path: Path) -> None:
    shown = pipeline("backfill", *made.places, *LOCAL)
    assert (shown.code, "choose an empty folder" in shown.err) == (1, True)


def test_run_also_audits_and_reports(made: Made, pipeline: Any, tmp_path: Path) -> None:
    page, places = tmp_path / "r.html", (*made.places, *LOCAL)
    shown = pipeline("run", *places, "--audit", "--report", str(page))
    assert shown.code == ExitCode.FAILED
    assert shown.out.splitlines()[-2].endswith(" events: 1 broken promise")
    assert page.read_text().startswith("<!doctype html>")
    shown = pipeline("run", *places, "--audit", "--json")
    assert shown.document["audit"]["violations"] == {"doubled_turn": 1}


def test_audit_lists_what_was_broken_and_its_exit_code_tells(made: Made, pipeline: Any) -> None:
    shown = pipeline("audit", *made.places, *LOCAL)
    rules, counted, _, head, found, ledger, last, engine = shown.out.splitlines()
    assert shown.code == ExitCode.FAILED
    assert (rules, head) == ("Rule\tBroken\tPromise", "Node\tSeq\tRule\tWhat was found")
    assert counted == "doubled_turn\t1\tOne event completes at most one turn."
    node, seq, rule, detail = found.split("\t")
    assert node.startswith("node-") and seq.isdigit()
    assert (rule, detail.startswith("processed on ")) == ("doubled_turn", True)
    assert last.endswith(" events: 1 broken promise")
    where, rows = engine.removesuffix(" input rows").rsplit(" ", 1)
    assert where == "in this process, without Spark:"
    assert int(rows.replace(",", "")) > int(last.split()[0]), "the events, and the deliveries"
    report = pipeline("report", "--tables", made.tables, "--terminal", *LOCAL)
    assert ledger in report.out.splitlines(), "one equation, in the same words"


def test_audit_of_a_good_archive_ends_well(pipeline: Any, tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    assert pipeline("synth", archive, "--events", "500", "--nodes", "3").code == 0
    shown = pipeline("audit", *Made(archive, str(tmp_path / "t")).places, *LOCAL, "--json")
    assert shown.code == 0
    assert (shown.document["violations"], shown.document["samples"]) == ({}, [])


def test_report_is_written_or_shown(made: Made, pipeline: Any, tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    tables = ("--tables", made.tables, *LOCAL)
    shown = pipeline("report", *tables, "-o", str(target))
    assert shown.out.splitlines()[0] == f"written: {target}"
    assert target.read_text().startswith("<!doctype html>")
    shown = pipeline("report", *tables, "--terminal")
    assert "\tDeliveries\t" in shown.out
    shown = pipeline("report", *tables, "-o", str(tmp_path / "no" / "r.html"))
    assert (shown.code, "cannot be written" in shown.err) == (ExitCode.USAGE, True)


def test_compact_says_what_went(made: Made, pipeline: Any, tmp_path: Path) -> None:
    shown = pipeline("compact", "--tables", made.tables, *LOCAL, "--json")
    assert {"deliveries", "slo", "incidents"} <= shown.document.keys()
    assert pipeline("compact", "--tables", str(tmp_path), *LOCAL).code == ExitCode.FAILED


def test_the_local_engine_takes_no_setting_of_spark(made: Made, pipeline: Any) -> None:
    shown = pipeline("run", *made.places, *LOCAL, "--master", "local[2]")
    assert (shown.code, "--engine local has no Spark" in shown.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("job", ["run", "audit", "report"])
def test_a_job_runs_on_spark_at_every_size(
    spark: SparkSession, made: Made, pipeline: Any, tmp_path: Path, job: str
) -> None:
    options = {
        "run": ("--archive", made.archive, "--tables", str(tmp_path / "tables")),
        "audit": ("--archive", made.archive, "--tables", str(tmp_path / "tables")),
        "report": ("--tables", made.tables, "-o", str(tmp_path / "report.html")),
    }
    before = shown_queries(spark)
    shown = pipeline(job, *options[job])
    queries = [query for id, query in shown_queries(spark).items() if id not in before]
    assert {query["status"] for query in queries} == {"COMPLETED"}
    assert all(scanned_rows(query) for query in queries)
    rows = sum(int(found[1].replace(",", "")) for q in queries if (found := _rows_of(q)))
    executions = "1 SQL execution" if len(queries) == 1 else f"{len(queries)} SQL executions"
    assert rows > 1000
    last = re.sub(r"start \d+\.\d s", "start … s", shown.out.splitlines()[-1])
    assert last == (
        f"Spark {spark.version} on local[2]: 1 executor, 2 cores, session start … s,"
        f" {executions}, {rows:,} input rows"
    )


def _rows_of(query: Any) -> re.Match[str] | None:
    return re.search(r": ([\d,]+) rows in \d+ share", query["description"])


def test_one_session_runs_audits_and_reports(
    spark: SparkSession, made: Made, pipeline: Any, tmp_path: Path
) -> None:
    places = Made(made.archive, str(tmp_path / "tables")).places
    shown = pipeline("run", *places, "--audit", "--report", str(tmp_path / "r.html"), "--json")
    engine = shown.document["engine"]
    assert (engine["engine"], engine["master"], engine["executors"]) == ("spark", "local[2]", 1)
    assert shown.document["audit"]["engine"] == engine
    assert engine["sql_executions"] >= 6
    # Files are checked, then read, then audited.
    assert engine["input_rows"] > 3 * shown.document["events"]


def test_replay_without_a_gateway_only_looks(
    spark: SparkSession, made: Made, pipeline: Any
) -> None:
    where = ("replay", "--where", "to_agent = 'burst-owner'", "--tables", made.tables)
    shown = pipeline(*where, "--dry-run", "--json")
    (there,) = shown.document["elsewhere"]
    assert (shown.document["outcomes"], there["letters"]) == ([], 60)
    assert there["commands"][0].startswith("gatepost undelivered replay ")
    shown = pipeline(*where, "--dry-run", "--limit", "1")
    assert f"{there['node']} holds 1 dead letter; run there:" in shown.out
    shown = pipeline("replay", "--where", "nonsense", "--tables", made.tables, "--dry-run")
    assert (shown.code, "no condition over deliveries" in shown.err) == (ExitCode.USAGE, True)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    home = tmp_path_factory.mktemp("live") / "state"
    home.mkdir(mode=0o700)
    with gateway(home) as cli:
        yield cli


def test_replay_asks_only_the_gateway_it_has_a_token_for(
    spark: SparkSession, made: Made, pipeline: Any, live: Cli
) -> None:
    where = ("replay", "--where", "to_agent = 'burst-owner'", "--tables", made.tables)
    shown = pipeline(*where, "--state-dir", str(live.home), "--json")
    assert (shown.code, shown.document["outcomes"]) == (0, [])
    assert shown.document["node"] == live.call("GET", "/status")["node_id"]
    assert shown.document["elsewhere"][0]["letters"] == 60


def test_feedback_reaches_the_gateway(made: Made, pipeline: Any, live: Cli) -> None:
    shown = pipeline("feedback", "--tables", made.tables, "--state-dir", str(live.home))
    assert shown.code == 0, shown
    assert shown.out.splitlines()[1].startswith("incidents\t")
    found = live.call("GET", "/incidents")["incidents"]
    assert "dead_letter_burst" in {incident["class"] for incident in found}
    again = pipeline("feedback", "--tables", made.tables, "--state-dir", str(live.home), "--json")
    assert [posted["new"] for posted in again.document][:2] == [0, 0]


def test_no_gateway_is_said_so(made: Made, pipeline: Any, tmp_path: Path) -> None:
    shown = pipeline("feedback", "--tables", made.tables, "--state-dir", str(tmp_path))
    assert shown.code == ExitCode.UNREACHABLE


# -- as a program of its own


def _cli(tmp_path: Path, **env: str) -> Cli:
    home = tmp_path / "state"
    home.mkdir(mode=0o700)
    return Cli(home, **env)


def test_without_an_archive_it_says_what_to_do(tmp_path: Path) -> None:
    result = _cli(tmp_path).in_own_process("pipeline", "run", "--json")
    assert (result.code, result.error["code"]) == (2, "usage")
    assert "archive.uri" in result.error["message"]


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "hide = lambda name, *rest: None if name == 'pyspark' else find(name, *rest)\n"
        "importlib.util.find_spec = hide\n"
    )
    cli = _cli(tmp_path)
    cli.env["PYTHONPATH"] = f"{tmp_path}:{cli.env['PYTHONPATH']}"
    result = cli.in_own_process("pipeline", "audit", "--archive", str(tmp_path), "--json")
    assert (result.code, result.error["code"]) == (2, "pipeline_missing")
    assert "pip install 'gatepost[pipeline]'" in result.error["message"]


def _is_spark(process: psutil.Process) -> bool:
    try:
        return any("SparkSubmit" in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_ctrl_c_while_spark_starts_leaves_no_jvm_behind(tmp_path: Path) -> None:
    cli = _cli(tmp_path)
    arguments = ("pipeline", "query", "SELECT 1", "--tables", str(tmp_path), "--master", "local[1]")
    with cli.running(*arguments) as process:
        started = psutil.Process(process.pid)
        jvms = wait_until(
            lambda: [child for child in started.children(True) if _is_spark(child)], 60
        )
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == ExitCode.INTERRUPTED
        gone, alive = psutil.wait_procs(jvms, timeout=30)
        for jvm in alive:
            jvm.kill()
        assert gone and not alive


def test_ctrl_c_at_work_ends_it_without_a_word(tmp_path: Path) -> None:
    cli = _cli(tmp_path)
    archive, tables = tmp_path / "archive", tmp_path / "tables"
    assert (
        run_command(["pipeline", "synth", str(archive), "--events", "100000", "--nodes", "4"]) == 0
    )
    arguments = ("pipeline", "run", "--archive", str(archive), "--tables", str(tables))
    # A master is named, so Spark does the work, which takes it some seconds.
    with cli.running(*arguments, "--master", "local[2]") as process:
        wait_until(lambda: list(tables.glob("_batches/*.json")), 240)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
        assert (process.returncode, out, err) == (ExitCode.INTERRUPTED, "", "")


def test_spark_is_not_imported_by_help(tmp_path: Path) -> None:
    cli = _cli(tmp_path, PYTHONPROFILEIMPORTTIME="1")
    cli.env["PYTHONWARNINGS"] = "default"
    result = cli.in_own_process("pipeline", "run", "--help")
    assert result.code == 0
    assert "cyclopts" in result.err
    assert not {"pyspark", "pyarrow", "deltalake"} & {
        line.rpartition("|")[2].strip() for line in result.err.splitlines()
    }
