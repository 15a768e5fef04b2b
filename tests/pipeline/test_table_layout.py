"""What is on disk: times that every reader knows, a partition for each day, one known layout."""

import tarfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from gatepost.cli.runner import run_command
from gatepost.pipeline import small_tables
from gatepost.pipeline.delta_tables import list_files
from gatepost.pipeline.jobs.hourly_tables import HOURLY_TABLES
from gatepost.pipeline.jobs.pipeline import Pipeline, RunSummary, compact_tables
from gatepost.pipeline.jobs.retention import drop_old_days
from gatepost.pipeline.synth import SynthOptions
from gatepost.pipeline.table_files import read_columns
from gatepost.pipeline.table_views import create_views
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.schemas import HOUR_MS, HOURS_A_DAY, TABLES, TableSpec, day_of
from tests.pipeline.worlds import MADE, World

pytestmark = pytest.mark.timeout(400)

EARLIER = Path(__file__).with_name("earlier") / "layout_2.tar.gz"
DAY_MS = HOURS_A_DAY * HOUR_MS


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Tables of four days."""
    options = SynthOptions(events=6000, nodes=3, seed=5, hours=4 * HOURS_A_DAY, segment_rows=400)
    return World(tmp_path_factory.mktemp("days"), options, ())


def _to_datetime(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def _is_time(name: str) -> bool:
    return name.endswith("_at") or name in ("at", "window_start")


# -- times


def test_every_time_is_a_timestamp_of_utc_in_tables_and_events(world: World) -> None:
    times = {
        (table.name, column.name, column.type)
        for table in TABLES.values()
        for column in table.columns
        if _is_time(column.name)
    }
    assert len(times) >= 30
    assert {kind for _, _, kind in times} == {"timestamp"}
    for table in MADE:
        stored = DeltaTable(f"{world.tables}/{table.name}")
        assert stored.protocol().min_reader_version == 1, "ntz would need a feature of readers"
        for field in pa.schema(stored.schema().to_arrow()):
            if _is_time(field.name):
                assert field.type == pa.timestamp("us", "UTC"), (table.name, field.name)


def test_spark_duckdb_and_kernels_read_the_same_moments(spark: SparkSession, world: World) -> None:
    expected = sorted(_to_datetime(row["sent_at"]) for row in world.rows["cases"])
    stored = DeltaTable(f"{world.tables}/cases").to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("cases", stored)
        found = connection.execute("SELECT epoch_ms(sent_at) FROM cases").fetchall()
    assert sorted(_to_datetime(ms) for (ms,) in found) == expected
    create_views(spark, world.tables)
    rows = spark.table("cases").select("sent_at").toArrow()
    assert sorted(rows["sent_at"].to_pylist()) == expected
    early, late = expected[0], expected[-1]
    between = f"sent_at BETWEEN timestamp '{early:%F %T}Z' AND timestamp '{late:%F %T}Z'"
    inside = [each for each in expected if each <= late.replace(microsecond=0)]
    assert 0 < spark.table("cases").where(between).count() == len(inside)


def test_a_query_prints_times_with_their_zone(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    at = "SELECT max(window_start) AS last, max(day) AS day FROM slo"
    assert run_command(["pipeline", "query", at, "--tables", world.tables, "--json"]) == 0
    last = _to_datetime(max(row["window_start"] for row in world.rows["slo"]))
    assert f'"last":"{last:%Y-%m-%dT%H:%M:%SZ}","day":"{last:%F}"' in (
        capsys.readouterr().out.replace(" ", "").replace("\n", "")
    )


# -- days


def test_small_tables_have_a_partition_for_each_day_and_few_files(days: World) -> None:
    known = {row["hour"] // HOURS_A_DAY for row in days.rows["deliveries"]}
    assert len(known) >= 4
    for table in HOURLY_TABLES:
        stored = DeltaTable(f"{days.tables}/{table.name}")
        assert stored.metadata().partition_columns == ["day"]
        files = list_files(f"{days.tables}/{table.name}", "day")
        assert {file.value for file in files} <= {day_of(day) for day in known}
        assert len(files) <= 2 * len(known) < len({row["hour"] for row in days.rows["deliveries"]})
        for row in small_tables.read_rows(days.tables, table):
            assert row["day"] == day_of(row["hour"] // HOURS_A_DAY)
    assert DeltaTable(f"{days.tables}/deliveries").metadata().partition_columns == ["hour"]


def test_batches_that_replace_days_make_the_same_tables_as_one(days: World, tmp_path: Path) -> None:
    tables = str(tmp_path)
    pipeline = Pipeline(days.transport, days.archive, tables)
    assert pipeline.run(days.truth.events // 9).batches > 8
    days.assert_same(tables)
    compact_tables(tables, keep_hours=0)
    days.assert_same(tables)


def test_days_that_are_too_old_go_from_every_table(days: World, tmp_path: Path) -> None:
    tables = str(tmp_path)
    pipeline = Pipeline(days.transport, days.archive, tables)
    pipeline.run()
    hours = sorted({row["hour"] for row in days.rows["deliveries"]})
    # In the middle of a day, which is kept.
    before = (hours[-1] // HOURS_A_DAY - 1) * DAY_MS + DAY_MS // 2
    assert drop_old_days(tables, before)["deliveries"] > 0
    first = before // DAY_MS * HOURS_A_DAY
    for table in MADE:
        if table.partition:
            left = [row for row in days.rows[table.name] if row["hour"] >= first]
            assert days.read(tables, table) == left, table.name
    activity = days.read(tables, schemas.ACTIVITY)
    assert min(row["window_start"] for row in activity) >= first * HOUR_MS
    assert pipeline.run() == RunSummary(0, 0), "what is gone is not read again"


# -- other layouts


def test_a_column_that_was_added_later_is_null_in_older_files(world: World, tmp_path: Path) -> None:
    (file, *_) = list_files(f"{world.tables}/deliveries", "hour")
    older = tmp_path / "older.parquet"
    rows = pq.ParquetFile(file.uri).read().drop_columns(["forwarded", "replied_at", "reason"])
    pq.write_table(rows, older)
    read = read_columns(
        schemas.DELIVERIES, str(older), ["reason", "forwarded", "replied_at", "sent_at"], ["reason"]
    )
    assert [read[name].null_count for name in read.column_names[:3]] == [rows.num_rows] * 3
    assert read["replied_at"].type == read["sent_at"].type == pa.int64()


def test_tables_go_on_though_their_files_lack_a_column(days: World, tmp_path: Path) -> None:
    """As after an update that adds a column: files of before are read with nulls."""
    tables = str(tmp_path)
    pipeline = Pipeline(days.transport, days.archive, tables)
    pipeline.run(max_rows=1500, is_stopping=_after(1))
    for table, column in ((schemas.DELIVERIES, "decision"), (schemas.CASES, "failure_class")):
        _drop_column(tables, table, column)
    assert pipeline.run().batches == 1
    states = [(row["event_id"], row["state"]) for row in days.read(tables, schemas.DELIVERIES)]
    assert states == [(row["event_id"], row["state"]) for row in days.rows["deliveries"]]


def _after(rounds: int) -> Callable[[], bool]:
    left = [rounds + 1]

    def is_stopping() -> bool:
        left[0] -= 1
        return left[0] == 0

    return is_stopping


def _drop_column(tables: str, table: TableSpec, column: str) -> None:
    for uri in DeltaTable(f"{tables}/{table.name}").file_uris():
        pq.write_table(pq.ParquetFile(uri).read().drop_columns([column]), uri)


JOBS: tuple[tuple[str, ...], ...] = (
    ("run",),
    ("audit",),
    ("verify",),
    ("backfill",),
    ("report", "-o", "report.html"),
    ("query", "SELECT 1"),
    ("compact",),
    ("feedback", "--url", "http://127.0.0.1:1", "--token-file", "token"),
)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job[0])
def test_tables_of_an_earlier_layout_are_refused_with_the_remedy(
    job: tuple[str, ...],
    days: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("token")
    with tarfile.open(EARLIER) as packed:
        packed.extractall(filter="data")
    before = sorted(map(str, Path("layout_2").rglob("*.parquet")))
    places = ["--tables", str(tmp_path / "layout_2")]
    if job[0] in ("run", "audit", "verify", "backfill"):
        places += ["--archive", days.archive]
    assert run_command(["pipeline", *job, *places]) != 0
    (sentence, *rest) = capsys.readouterr().err.strip().splitlines()
    assert not rest
    assert "layout 2; this one knows 3" in sentence
    assert "`gatepost pipeline backfill --tables ANOTHER_FOLDER`" in sentence
    assert sorted(map(str, Path("layout_2").rglob("*.parquet"))) == before
