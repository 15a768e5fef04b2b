"""Archives and tables in a bucket of an S3 server: the jobs make the same of them."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.storage_uri import normalize_uri, open_filesystem
from gatepost.cli.runner import run_command
from gatepost.errors import TablesBusy
from gatepost.pipeline.dead_letter_replay import choose_letters
from gatepost.pipeline.jobs.audit import audit_archive
from gatepost.pipeline.jobs.batch_ledger import BatchLedger
from gatepost.pipeline.jobs.pipeline import Pipeline, RunSummary, compact_tables
from gatepost.pipeline.synth import SynthOptions, generate_archive
from gatepost.pipeline.table_views import create_views
from gatepost.pipeline.transport import LocalTransport
from tests.pipeline.worlds import World
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket of a real server, whose address and keys are in the environment.

    The server is a process of its own, because `deltalake` may hold the interpreter while it waits.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    log = tmp_path_factory.mktemp("s3") / "log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address[10:]]
    with log.open("wb") as written:
        server = subprocess.Popen(command, stdout=written, stderr=written)
    try:
        wait_until(lambda: _is_listening(address), 60, failure=log.read_text)
        with pytest.MonkeyPatch.context() as patched:
            for name, value in (KEYS | {"AWS_ENDPOINT_URL": f"http://{address}"}).items():
                patched.setenv(name, value)
            creator = fs.S3FileSystem(
                endpoint_override=address, scheme="http", allow_bucket_creation=True
            )
            creator.create_dir("pipes")
            yield "s3://pipes"
    finally:
        server.kill()
        server.wait(30)


def _is_listening(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.fixture(scope="module")
def stored(bucket: str, world: World) -> str:
    """The archive of the world, in the bucket."""
    local, base = fs.LocalFileSystem(), world.archive
    remote, path = open_filesystem(f"{bucket}/archive")
    fs.copy_files(base, path, source_filesystem=local, destination_filesystem=remote)
    return f"{bucket}/archive"


def test_one_form_of_uri_names_every_storage(tmp_path: Path) -> None:
    assert normalize_uri("s3a://b/x/") == normalize_uri("s3://b/x") == "s3://b/x"
    assert normalize_uri(f"file://{tmp_path}/a%20b") == f"{tmp_path}/a b"
    assert normalize_uri("gs://b/x") == "gs://b/x"
    assert ArchiveStore.open(f"file://{tmp_path}").root == str(tmp_path)


@pytest.fixture(scope="module")
def tables(spark: SparkSession, stored: str, bucket: str, world: World) -> str:
    """Tables in the bucket, which tests may compact but not change otherwise.

    Spark's workers run already, started before this process knew of a bucket.
    """
    tables = f"{bucket}/tables"
    code, shown = call_cli("run", archive=stored, tables=tables)
    assert (code, shown["events"], shown["aside"]) == (0, world.truth.events, [])
    world.assert_same(tables)
    return tables


def call_cli(*arguments: str, archive: str, tables: str) -> tuple[int, Any]:
    """The exit code of a command of the pipeline, and the document that it prints."""
    places = ["--archive", archive.replace("s3:", "s3a:"), "--tables", tables, "--json"]
    with redirect_stdout(StringIO()) as out:
        code = run_command(["pipeline", *arguments, *places])
    return code, json.loads(out.getvalue())


def test_all_jobs_work_on_buckets(stored: str, tables: str, world: World) -> None:
    called = partial(call_cli, archive=stored, tables=tables)
    code, shown = called("run")
    assert (code, shown["batches"]) == (0, 0)
    local = audit_archive(LocalTransport(), world.archive, world.tables)
    code, shown = called("audit")
    assert (code, shown["violations"]) == (1, local.violations)
    assert called("report", "--terminal")[0] == 0
    assert called("compact", "--keep-hours", "0")[0] == 0
    world.assert_same(tables)


def test_queries_and_replays_read_buckets(spark: SparkSession, tables: str, world: World) -> None:
    found = choose_letters(spark, tables, "true", 10_000)
    assert found.letters == choose_letters(spark, world.tables, "true", 10_000).letters != []
    create_views(spark, tables)
    (row,) = spark.sql("SELECT count(*) AS n, min(hour) AS hour FROM deliveries").collect()
    assert row.n == len(world.rows["deliveries"])
    assert row.hour == min(row["hour"] for row in world.rows["deliveries"])


def test_two_runs_at_once_lose_no_batch(stored: str, bucket: str, world: World) -> None:
    tables, started = f"{bucket}/raced", threading.Barrier(2)
    ended: list[RunSummary | TablesBusy] = []

    def race() -> None:
        pipeline = Pipeline(LocalTransport(), stored, tables)
        started.wait(60)
        try:
            ended.append(pipeline.run(world.truth.events // 2 + 1))
        except TablesBusy as error:
            ended.append(error)

    racers = [threading.Thread(target=race) for _ in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(300)
    assert len(ended) == 2
    Pipeline(LocalTransport(), stored, tables).run()
    world.assert_same(tables)


def test_a_batch_is_begun_once(bucket: str) -> None:
    one, other = BatchLedger(f"{bucket}/begun"), BatchLedger(f"{bucket}/begun")
    first = one.begin_batch({"a": {"i": 1}})
    with pytest.raises(TablesBusy):
        other.begin_batch({"a": {"i": 2}})
    one.begin_batch({"a": {"i": 3}}, last=first)
    with pytest.raises(TablesBusy):
        other.begin_batch({"a": {"i": 4}}, last=first)
    last = one.last_batch()
    assert last is not None and (last.number, last.end) == (2, {"a": {"i": 3}})


def test_a_synthetic_archive_is_written_to_a_bucket(bucket: str) -> None:
    truth = generate_archive(f"{bucket}/made", SynthOptions(events=500))
    assert audit_archive(LocalTransport(), f"{bucket}/made", f"{bucket}/m").events == truth.events
    compact_tables(f"{bucket}/m")
