"""The archive through Spark: batch and stream, exactly the rows the manifests list."""

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from gatepost.errors import ArchiveError, PipelineError
from gatepost.pipeline.archive_reader import ROW_SCHEMA, ArchiveReader
from gatepost.pipeline.archive_source import (
    FORMAT,
    BatchRead,
    PushedFilter,
    decode_options,
    read_events,
    read_stream,
    register_source,
)
from gatepost.pipeline.read_plan import SegmentFile
from tests.pipeline.archives import (
    DAY,
    NOON,
    manifest_path,
    read_manifest,
    write_manifest,
    write_node,
)

Key = tuple[str, str, int]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes over two days, one of them restored from a backup in between."""
    root = tmp_path_factory.mktemp("archive")
    times = range(NOON, NOON + 2 * DAY, DAY // 250)
    write_node(root, "n1", times, segment_rows=100)
    write_node(root, "n2", times[:300], segment_rows=70)
    write_node(root, "n2", times[300:], first=281, incarnation="b2", segment_rows=70)
    return root


def keys(df: DataFrame) -> list[Key]:
    rows = df.select("node", "incarnation", "seq").collect()
    return sorted((r.node, r.incarnation, r.seq) for r in rows)


EXPECTED = sorted(
    [("n1", "a1", seq) for seq in range(1, 501)]
    + [("n2", "a1", seq) for seq in range(1, 301)]
    + [("n2", "b2", seq) for seq in range(281, 481)]
)


def load(spark: SparkSession, root: Path, **options: object) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    register_source(spark)
    return spark.read.format(FORMAT).options(**given).load(str(root))


def test_events_are_the_rows_of_the_files(spark: SparkSession, root: Path) -> None:
    events = load(spark, root)
    assert events.columns == ROW_SCHEMA.names
    assert keys(events) == EXPECTED
    files = spark.read.option("basePath", str(root)).parquet(f"{root}/*/*")
    for name in ("created_at", "expires_at", "eta_at"):
        files = files.withColumn(name, F.timestamp_millis(name))
    assert contents(events).equals(contents(files.select(*events.columns)))


def contents(df: DataFrame) -> pa.Table:
    order = [(name, "ascending") for name in ("node", "incarnation", "seq")]
    return df.toArrow().sort_by(order).combine_chunks()


def test_a_file_that_no_manifest_lists_does_not_exist(spark: SparkSession, tmp_path: Path) -> None:
    write_node(tmp_path, "n1", [NOON, NOON + 1], segment_rows=1)
    listed = read_manifest(tmp_path, "n1")["segments"]
    write_manifest(tmp_path, "n1", listed[:1])
    (tmp_path / "node=n2").mkdir()
    assert keys(load(spark, tmp_path)) == [("n1", "a1", 1)]


def test_a_node_that_run_sets_aside_has_no_events(spark: SparkSession, tmp_path: Path) -> None:
    write_node(tmp_path, "n1", [NOON])
    write_node(tmp_path, "n2", [NOON])
    unsigned = read_manifest(tmp_path, "n2") | {"signature": ""}
    manifest_path(tmp_path, "n2").write_text(json.dumps(unsigned))
    assert keys(load(spark, tmp_path)) == [("n1", "a1", 1)]


def test_an_empty_archive_has_the_schema_and_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    events = load(spark, tmp_path)
    assert (events.columns, events.count()) == (ROW_SCHEMA.names, 0)


def test_nodes_dates_and_columns_select(spark: SparkSession, root: Path) -> None:
    day = date(2026, 1, 6)
    chosen = read_events(
        spark, str(root), nodes=["n2"], since=day, until=day, columns=["seq", "node", "date"]
    )
    checked = load(
        spark, root, nodes="n2", since=day, until=day, columns="seq,node,date", verify="sha256"
    )
    assert chosen.columns == checked.columns == ["seq", "node", "date"]
    assert {r.date for r in chosen.collect()} == {day}
    assert sorted(chosen.collect()) == sorted(checked.collect())
    assert chosen.count() == 250


def test_filters_reach_the_source(spark: SparkSession, root: Path) -> None:
    where = "node = 'n1' and seq between 150 and 260 and kind in ('ack', 'reply')"
    assert keys(load(spark, root).where(where)) == [
        ("n1", "a1", seq) for seq in range(150, 261) if seq % 4 in {1, 2}
    ]
    assert keys(load(spark, root).where("node = 'n9'")) == []


@pytest.mark.parametrize(
    ("where", "is_needed", "opened"),
    [
        ("node IN ('n1', NULL) AND seq > 300", lambda s: s.node == "n1" and s.last > 300, 4),
        ("date = DATE '2026-01-07'", lambda s: str(s.date) == "2026-01-07", 4),
        (
            f"created_at >= timestamp_millis({NOON + DAY}) AND kind = 'ack'",
            lambda s: s.max_created_at >= NOON + DAY,
            10,
        ),
    ],
)
def test_a_query_opens_only_segments_that_can_match(
    spark: SparkSession,
    root: Path,
    tmp_path: Path,
    where: str,
    is_needed: Callable[[SegmentFile], bool],
    opened: int,
) -> None:
    """All other files are gone, and the answer is the same."""
    archive = tmp_path / "archive"
    shutil.copytree(root, archive)
    listed = ArchiveReader(str(archive)).list_segments()
    assert (len([s for s in listed if is_needed(s)]), len(listed)) == (opened, 16)
    for segment in listed:
        if not is_needed(segment):
            (archive / segment.path).unlink()
    found = keys(load(spark, archive).where(where))
    assert found == keys(load(spark, root).where(where)) != []


def test_what_manifests_state_is_read_without_files(spark: SparkSession, tmp_path: Path) -> None:
    write_node(tmp_path, "n1", range(NOON, NOON + DAY, DAY // 50), segment_rows=20)
    for segment in tmp_path.glob("*/*/*.parquet"):
        segment.unlink()
    listed = load(spark, tmp_path, columns="date,seq,incarnation,node")
    assert keys(listed) == [("n1", "a1", seq) for seq in range(1, 51)]
    assert {str(row.date) for row in listed.collect()} == {"2026-01-05", "2026-01-06"}


@pytest.mark.parametrize(
    ("predicate", "firsts"),
    [
        (PushedFilter("seq", ">=", 426), [376, 426, 476]),
        (PushedFilter("seq", "<", 2), [1, 1]),
        (PushedFilter("created_at", "<=", NOON), [1, 1]),
        (PushedFilter("created_at", ">", NOON + 2 * DAY - DAY // 125), [426, 476]),
        (PushedFilter("date", "=", date(2026, 1, 8)), []),
        (PushedFilter("seq", "in", (5, 6)), [1, 1]),
    ],
)
def test_segments_that_cannot_match_are_not_opened(
    root: Path, predicate: PushedFilter, firsts: list[int]
) -> None:
    plan = BatchRead(decode_options({"path": str(root)}))
    plan.predicates.append(predicate)
    assert sorted(piece.first for share in plan.plan_shares() for piece in share) == firsts


def test_a_damaged_file_is_noticed_when_asked_to(spark: SparkSession, tmp_path: Path) -> None:
    write_node(tmp_path, "n1", [NOON])
    manifest = read_manifest(tmp_path, "n1")["segments"]
    manifest[0]["sha256"] = "00" * 32
    write_manifest(tmp_path, "n1", manifest)
    assert keys(load(spark, tmp_path)) == [("n1", "a1", 1)]
    with pytest.raises(PySparkException, match="wrong SHA-256"):
        read_events(spark, str(tmp_path), verify="sha256").collect()


@pytest.mark.parametrize(
    ("field", "value"), [("path", "date=2026-01-05/../../x.parquet"), ("rows", 7)]
)
def test_an_impossible_manifest_is_refused(tmp_path: Path, field: str, value: object) -> None:
    write_node(tmp_path, "n1", [NOON])
    segments = read_manifest(tmp_path, "n1")["segments"]
    segments[0][field] = value
    write_manifest(tmp_path, "n1", segments)
    with pytest.raises(ArchiveError, match=r"impossible segment|is not a manifest"):
        ArchiveReader(str(tmp_path)).list_segments()


def test_a_manifest_in_another_nodes_folder_is_refused(tmp_path: Path) -> None:
    write_node(tmp_path, "n1", [NOON])
    write_node(tmp_path, "n2", [NOON])
    manifest_path(tmp_path, "n1").replace(manifest_path(tmp_path, "n2"))
    with pytest.raises(ArchiveError, match="belongs to node n1"):
        ArchiveReader(str(tmp_path)).list_segments()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"path": "x", "since": "yesterday"},
        {"path": "x", "maxRowsPerBatch": "0"},
        {"path": "x", "columns": "payload"},
        {"path": "x", "verify": "md5"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(PipelineError):
        decode_options(options)


class Stream:
    """Streams an archive into memory, one list of keys per batch."""

    def __init__(self, spark: SparkSession, root: Path, checkpoint: Path, **options: Any) -> None:
        self.batches: list[list[Key]] = []
        self._spark, self._root, self._checkpoint, self._options = spark, root, checkpoint, options

    def run(self) -> StreamingQuery:
        """All there is now."""

        def take(batch: DataFrame, _: int) -> None:
            self.batches.append(keys(batch))

        stream = read_stream(self._spark, str(self._root), **self._options)
        writer = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        query.awaitTermination(60)
        return query

    def rows(self) -> list[Key]:
        return sorted(key for batch in self.batches for key in batch)


def test_a_stream_reads_every_row_once_and_nodes_together(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    stream = Stream(spark, root, tmp_path, max_rows=300)
    stream.run()
    assert stream.rows() == EXPECTED
    assert [len(batch) for batch in stream.batches] == [300, 300, 300, 100]
    assert [sum(key[0] == "n1" for key in batch) for batch in stream.batches] == [150, 150, 150, 50]


def test_a_restart_on_the_same_checkpoint_reads_nothing_and_then_only_what_is_new(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    write_node(archive, "n1", range(NOON, NOON + 50))
    stream = Stream(spark, archive, checkpoint)
    stream.run()
    assert sum(p["numInputRows"] for p in stream.run().recentProgress) == 0
    # A laptop comes back with the mail of last week.
    write_node(archive, "laptop", range(NOON - 7 * DAY, NOON - 7 * DAY + 30))
    stream.run()
    assert [len(batch) for batch in stream.batches if batch] == [50, 30]
    assert {key[0] for key in stream.batches[-1]} == {"laptop"}


def test_a_batch_that_runs_again_has_the_same_rows(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    stream = Stream(spark, root, tmp_path, max_rows=300)
    stream.run()
    # As after a crash: the last batch was planned and not committed.
    (tmp_path / "commits" / "3").unlink()
    (tmp_path / "commits" / ".3.crc").unlink(missing_ok=True)
    again = Stream(spark, root, tmp_path, max_rows=7)
    again.run()
    assert again.batches[0] == stream.batches[3]
    assert again.rows() == stream.batches[3]


def test_offsets_are_numbers_per_incarnation(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    Stream(spark, root, tmp_path).run()
    log = (tmp_path / "offsets" / "0").read_text().splitlines()
    assert json.loads(log[-1]) == {"n1": {"a1": 500}, "n2": {"a1": 300, "b2": 480}}


def test_a_stream_whose_rows_were_let_go_stops(spark: SparkSession, tmp_path: Path) -> None:
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    write_node(archive, "n1", range(NOON, NOON + 30), segment_rows=10)
    Stream(spark, archive, checkpoint).run()
    write_node(archive, "n1", range(NOON + 30, NOON + 50), first=31, segment_rows=10)
    segments = read_manifest(archive, "n1")["segments"]
    write_manifest(archive, "n1", segments[-1:])
    with pytest.raises(StreamingQueryException, match="events 31 to 40 of node n1"):
        Stream(spark, archive, checkpoint).run()


@pytest.fixture
def running(spark: SparkSession) -> Iterator[list[StreamingQuery]]:
    queries: list[StreamingQuery] = []
    yield queries
    for query in queries:
        query.stop()


def test_a_stream_that_goes_on_takes_segments_archived_meanwhile(
    spark: SparkSession, tmp_path: Path, running: list[StreamingQuery]
) -> None:
    archive = tmp_path / "archive"
    write_node(archive, "n1", [NOON])
    seen: list[Key] = []

    def take(batch: DataFrame, _: int) -> None:
        seen.extend(keys(batch))

    writer = read_stream(spark, str(archive)).writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    running.append(writer.trigger(processingTime="100 milliseconds").start())
    running[0].processAllAvailable()
    write_node(archive, "n1", [NOON + 1], first=2)
    running[0].processAllAvailable()
    assert seen == [("n1", "a1", 1), ("n1", "a1", 2)]
