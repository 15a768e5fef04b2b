"""Kernels give the same whoever carries them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gatepost.errors import PipelineError
from gatepost.pipeline.job_errors import wrap_job_errors
from gatepost.pipeline.jobs.audit import audit_archive
from gatepost.pipeline.jobs.pipeline import Pipeline
from gatepost.pipeline.report.gatherer import gather_report
from gatepost.pipeline.transport import (
    RESULT_PART,
    Block,
    FoldStep,
    LocalTransport,
    PartBlock,
    SparkTransport,
    Transport,
)
from gatepost.testing import ManualClock
from tests.pipeline.worlds import World

pytestmark = pytest.mark.timeout(600)


def read_numbers(share: int) -> Iterator[PartBlock]:
    return ((number % 3, bytes([number])) for number in range(share))


def add_up(blocks: Iterator[Block]) -> Iterator[PartBlock]:
    total = sum(block[0] for block in blocks)
    if total:
        yield RESULT_PART, bytes([total])


def sums(transport: Transport) -> list[int]:
    made = transport.run([4, 3, 0, 7], read_numbers, FoldStep(3, add_up), FoldStep(1, add_up))
    return [block[0] for block in made]


def test_blocks_of_a_part_come_together(spark: SparkSession) -> None:
    assert sums(LocalTransport()) == sums(SparkTransport(spark)) == [6 + 3 + 21]
    by_part = [
        sorted(transport.run([4, 3, 7], read_numbers, FoldStep(3, add_up)))
        for transport in (LocalTransport(), SparkTransport(spark))
    ]
    assert by_part[0] == by_part[1] == [bytes([7]), bytes([11]), bytes([12])]


def test_without_shares_there_is_nothing_to_do(spark: SparkSession) -> None:
    for transport in (LocalTransport(), SparkTransport(spark)):
        assert transport.run([], read_numbers, FoldStep(1, add_up)) == []


def test_a_session_knows_its_slots(spark: SparkSession) -> None:
    assert SparkTransport(spark).slots == 2


def test_the_jobs_say_the_same_with_spark(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    tables, carried = str(tmp_path / "tables"), SparkTransport(spark)
    assert Pipeline(carried, world.archive, tables).run().events == world.truth.events
    world.assert_same(tables)
    local = audit_archive(LocalTransport(), world.archive, world.tables)
    assert audit_archive(carried, world.archive, tables) == local
    clock = ManualClock(1_772_600_000_000)
    reports = [
        gather_report(transport, tables, clock=clock) for transport in (carried, LocalTransport())
    ]
    assert reports[0] == reports[1]


_WATCHED = """
import json, sys
from urllib.request import urlopen
import psutil
from gatepost.pipeline.jobs.pipeline import update_tables
from gatepost.pipeline.session import spark_session
from gatepost.pipeline.transport import SparkTransport

conf = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.sql.shuffle.partitions": "1"}
with spark_session("local[2]", conf=conf, brief=True) as spark:
    started = [process.cmdline() for process in psutil.Process().children(recursive=True)]
    update_tables(SparkTransport(spark), *sys.argv[1:])
    api = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
    found = {name: json.load(urlopen(f"{api}/{name}")) for name in ("sql", "stages")}
    found["workers"] = [line for line in started if "pyspark.daemon" in line]
json.dump(found, sys.stdout)
"""


def test_the_interface_of_spark_shows_queries_and_their_input(world: World, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WATCHED, world.archive, str(tmp_path / "tables")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    found = json.loads(done.stdout)
    assert {query["status"] for query in found["sql"]} == {"COMPLETED"}
    assert len(found["sql"]) >= 4
    nodes = {node["nodeName"] for query in found["sql"] for node in query["nodes"]}
    assert {"Range", "MapInArrow"} <= nodes
    assert sum(stage["inputRecords"] for stage in found["stages"]) > 0
    # No session starts Python processes that its first query does not use.
    assert found["workers"] == []


def test_an_error_on_an_executor_is_one_sentence(spark: SparkSession) -> None:
    def fail(share: int) -> list[PartBlock]:
        raise PipelineError("the segment is gone")

    with pytest.raises(PipelineError, match=r"^the segment is gone$"), wrap_job_errors():
        SparkTransport(spark).run([1], fail)
