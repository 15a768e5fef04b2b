"""Delta tables: a commit is there once or not at all, and any Delta reader sees the same."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from gatepost.errors import PipelineError
from gatepost.pipeline.archive_source import read_stream
from gatepost.pipeline.delta_tables import (
    BatchTransaction,
    CommitResult,
    compact_table,
    read_table,
    table_exists,
    vacuum_table,
)
from tests.pipeline.archives import NOON, write_node
from tests.pipeline.streaming_job import start_stream
from tests.pipeline.table_rows import write_table

MONDAY, TUESDAY = date(2026, 1, 5), date(2026, 1, 6)


def frame(
    spark: SparkSession, *rows: tuple[Any, ...], schema: str = "day date, n int"
) -> DataFrame:
    return spark.createDataFrame(list(rows), schema)


def rows(spark: SparkSession, path: str, version: int | None = None) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in read_table(spark, path, version=version).collect())


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def test_what_is_written_is_read_by_spark_and_by_others(spark: SparkSession, path: str) -> None:
    assert not table_exists(path)
    written = write_table(frame(spark, (MONDAY, 1), (TUESDAY, 2)), path, partition_by=["day"])
    assert written == CommitResult(version=0, files=2, rows=2)
    assert rows(spark, path) == [(MONDAY, 1), (TUESDAY, 2)]
    others = DeltaTable(path).to_pyarrow_table().sort_by("n")
    assert others.select(["day", "n"]).to_pylist() == [
        {"day": MONDAY, "n": 1},
        {"day": TUESDAY, "n": 2},
    ]


def test_all_types_come_back_as_they_went(spark: SparkSession, path: str) -> None:
    source = spark.sql(
        "select 1L as whole, 1.5D as real, true as flag, 'ü' as text, X'00ff' as bytes,"
        " date'2026-01-05' as day, timestamp'2026-01-05 12:00:00.123456' as at,"
        " array('a', 'b') as list, named_struct('x', 1) as pair, cast(null as string) as nothing,"
        " cast(1.25 as decimal(10, 2)) as money"
    )
    write_table(source, path)
    found = read_table(spark, path)
    assert found.dtypes == source.dtypes
    assert found.collect() == source.collect()


def test_partition_values_may_be_anything(spark: SparkSession, path: str) -> None:
    values = ["a b:c/ü=%", None, "plain", "'quoted'"]
    df = frame(spark, *((v, i) for i, v in enumerate(values)), schema="p string, n int")
    write_table(df, path, partition_by=["p"])
    write_table(df, path)
    assert {row.p for row in read_table(spark, path).collect()} == set(values)
    assert {row["p"] for row in DeltaTable(path).to_pyarrow_table().to_pylist()} == set(values)


def test_a_batch_counts_once(spark: SparkSession, path: str) -> None:
    df = frame(spark, (MONDAY, 1))
    for batch, again in [(0, False), (0, True), (1, False), (0, True)]:
        assert write_table(df, path, transaction=BatchTransaction("job", batch)).again is again
    assert write_table(df, path, transaction=BatchTransaction("other job", 0)).again is False
    assert len(rows(spark, path)) == 3


def test_an_empty_batch_counts_too(spark: SparkSession, path: str) -> None:
    empty = frame(spark)
    assert write_table(empty, path, transaction=BatchTransaction("job", 0)).files == 0
    assert rows(spark, path) == []
    write_table(empty, path, transaction=BatchTransaction("job", 1))
    assert DeltaTable(path).transaction_version("job") == 1


def test_two_attempts_at_one_batch_at_once_leave_one(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = frame(spark, (MONDAY, 1))
    write_table(df, path, transaction=BatchTransaction("job", 0))
    stale = DeltaTable(path)
    write_table(df, path, transaction=BatchTransaction("job", 1))
    views = iter([stale])
    monkeypatch.setattr(
        "gatepost.pipeline.delta_tables.open_table",
        lambda path, version=None: next(views, None) or DeltaTable(path, version=version),
    )
    assert write_table(df, path, transaction=BatchTransaction("job", 1)).again
    assert len(rows(spark, path)) == 2


def test_replace_touches_only_the_partitions_it_names(spark: SparkSession, path: str) -> None:
    write_table(frame(spark, (MONDAY, 1), (TUESDAY, 2)), path, partition_by=["day"])
    kept = [uri for uri in DeltaTable(path).file_uris() if "2026-01-06" in uri]
    write_table(frame(spark, (MONDAY, 10)), path, mode="replace", replace={"day": [MONDAY]})
    assert rows(spark, path) == [(MONDAY, 10), (TUESDAY, 2)]
    assert set(kept) <= set(DeltaTable(path).file_uris())
    write_table(frame(spark), path, mode="replace", replace={"day": [MONDAY]})
    assert rows(spark, path) == [(TUESDAY, 2)]
    assert rows(spark, path, version=1) == [(MONDAY, 10), (TUESDAY, 2)]


def test_to_replace_no_partition_changes_nothing(spark: SparkSession, path: str) -> None:
    write_table(frame(spark, (MONDAY, 1)), path, partition_by=["day"])
    write_table(frame(spark), path, mode="replace", replace={"day": []})
    assert rows(spark, path) == [(MONDAY, 1)]


def test_buckets_are_replaced_by_number(spark: SparkSession, path: str) -> None:
    df = spark.range(20).selectExpr("id", "cast(id % 4 as int) as bucket")
    write_table(df, path, partition_by=["bucket"])
    touched = df.where("bucket in (1, 3)").selectExpr("id + 100 as id", "bucket")
    write_table(touched, path, mode="replace", replace={"bucket": [1, 3]})
    expected = [i + 100 if i % 2 else i for i in range(20)]
    assert sorted(row.id for row in read_table(spark, path).collect()) == sorted(expected)


def test_rows_outside_of_what_is_replaced_are_refused(spark: SparkSession, path: str) -> None:
    write_table(frame(spark, (MONDAY, 1)), path, partition_by=["day"])
    with pytest.raises(PipelineError, match="outside of what is replaced"):
        write_table(frame(spark, (TUESDAY, 2)), path, mode="replace", replace={"day": [MONDAY]})
    with pytest.raises(PipelineError, match="only partitions can be replaced"):
        write_table(frame(spark, (MONDAY, 2)), path, mode="replace", replace={"n": [1]})
    with pytest.raises(PipelineError, match="belong together"):
        write_table(frame(spark, (MONDAY, 2)), path, mode="replace")
    assert rows(spark, path) == [(MONDAY, 1)]


def test_overwrite_replaces_rows_and_schema(spark: SparkSession, path: str) -> None:
    write_table(frame(spark, (MONDAY, 1)), path)
    write_table(frame(spark, ("x",), schema="text string"), path, mode="overwrite")
    assert rows(spark, path) == [("x",)]


def test_new_columns_are_added_and_old_rows_lack_them(spark: SparkSession, path: str) -> None:
    write_table(frame(spark, (MONDAY, 1)), path)
    wider = frame(spark, (MONDAY, 2, "new"), schema="day date, n int, extra string")
    write_table(wider, path)
    write_table(frame(spark, (MONDAY, 3)), path)
    found = {row.n: row.extra for row in read_table(spark, path).collect()}
    assert found == {1: None, 2: "new", 3: None}


def test_a_column_never_changes_its_type(spark: SparkSession, path: str) -> None:
    write_table(frame(spark, (MONDAY, 1)), path)
    with pytest.raises(PipelineError, match="column n is"):
        write_table(frame(spark, (MONDAY, "1"), schema="day date, n string"), path)


def test_a_task_that_fails_changes_nothing(spark: SparkSession, path: str) -> None:
    write_table(spark.range(3), path)
    broken = spark.range(100).selectExpr("if(id < 90, id, raise_error('no')) as id")
    with pytest.raises(Exception, match="no"):
        write_table(broken.selectExpr("cast(id as bigint) as id"), path)
    assert len(rows(spark, path)) == 3


def test_a_table_that_is_not_there_says_so(spark: SparkSession, path: str) -> None:
    for use in (
        lambda: read_table(spark, path),
        lambda: compact_table(path),
        lambda: vacuum_table(path),
    ):
        with pytest.raises(PipelineError, match="no table"):
            use()


def test_compact_merges_and_vacuum_deletes_what_nobody_names(
    spark: SparkSession, path: str
) -> None:
    for n in range(5):
        write_table(frame(spark, (MONDAY, n), (TUESDAY, n)), path, partition_by=["day"])
    (Path(path) / "part-orphan.parquet").write_bytes(b"left by a crash")
    before = rows(spark, path)
    assert compact_table(path) == 8
    assert len(DeltaTable(path).file_uris()) == 2
    assert rows(spark, path) == before
    assert len(vacuum_table(path, older_than_hours=0)) == 11
    assert rows(spark, path) == before
    assert compact_table(path) == 0


def test_file_statistics_let_readers_skip(spark: SparkSession, path: str) -> None:
    write_table(spark.range(5, 15).selectExpr("id", "concat('t', id) as text"), path)
    found = DeltaTable(path).get_add_actions(flatten=True)
    stats = {name: found[name].to_pylist() for name in found.schema.names}
    assert sum(stats["num_records"]) == 10
    assert (min(stats["min.id"]), max(stats["max.id"])) == (5, 14)
    assert set(stats["null_count.id"]) == {0}


def test_a_stream_into_a_table_and_again_from_a_fresh_checkpoint(
    spark: SparkSession, tmp_path: Path, path: str
) -> None:
    archive = tmp_path / "archive"
    write_node(archive, "n1", range(NOON, NOON + 100), segment_rows=30)
    for checkpoint, expected in [("a", 100), ("a", 100), ("b", 200)]:
        stream = read_stream(spark, str(archive), max_rows=40, columns=["node", "seq", "date"])
        query = start_stream(stream, path, str(tmp_path / checkpoint))
        assert query.awaitTermination(60)
        assert read_table(spark, path).count() == expected
