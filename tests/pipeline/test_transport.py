"""Kernels give the same whoever carries them."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.request import urlopen

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
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)


def read_numbers(share: int) -> Iterator[PartBlock]:
    return ((number % 3, bytes([number])) for number in range(share))


def add_up(blocks: Iterator[Block]) -> Iterator[PartBlock]:
    total = sum(block[0] for block in blocks)
    if total:
        yield RESULT_PART, bytes([total])


class Carried(NamedTuple):
    tables: str
    queries: list[Any]
    stages: list[Any]


def ask_interface(spark: SparkSession, path: str) -> Any:
    """What the web interface of this session answers."""
    context = spark.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{path}"
    with urlopen(url, timeout=30) as answer:
        return json.load(answer)


def shown_queries(spark: SparkSession) -> dict[int, Any]:
    return {query["id"]: query for query in ask_interface(spark, "sql?length=10000")}


def shown_stages(spark: SparkSession) -> dict[int, Any]:
    return {stage["stageId"]: stage for stage in ask_interface(spark, "stages")}


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


@pytest.fixture(scope="module")
def carried(spark: SparkSession, world: World, tmp_path_factory: pytest.TempPathFactory) -> Carried:
    """Tables that Spark made, with the queries and stages its web interface shows of that run."""
    tables = str(tmp_path_factory.mktemp("carried") / "tables")
    before = shown_queries(spark).keys(), shown_stages(spark).keys()
    assert Pipeline(SparkTransport(spark), world.archive, tables).run().events == world.truth.events
    # The interface hears of queries a moment after they end.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    wait_until(lambda: all(query["status"] != "RUNNING" for query in shown_queries(spark).values()))
    after = shown_queries(spark), shown_stages(spark)
    new = ([all[id] for id in all.keys() - old] for all, old in zip(after, before, strict=True))
    return Carried(tables, *new)


def test_the_jobs_say_the_same_with_spark(
    spark: SparkSession, world: World, carried: Carried
) -> None:
    tables, transport = carried.tables, SparkTransport(spark)
    world.assert_same(tables)
    local = audit_archive(LocalTransport(), world.archive, world.tables)
    assert audit_archive(transport, world.archive, tables) == local
    clock = ManualClock(1_772_600_000_000)
    reports = [gather_report(each, tables, clock=clock) for each in (transport, LocalTransport())]
    assert reports[0] == reports[1]


def test_the_interface_of_spark_shows_queries_and_their_input(carried: Carried) -> None:
    assert {query["status"] for query in carried.queries} == {"COMPLETED"}
    assert len(carried.queries) >= 4
    nodes = {node["nodeName"] for query in carried.queries for node in query["nodes"]}
    assert {"Range", "MapInArrow"} <= nodes
    assert sum(stage["inputRecords"] for stage in carried.stages) > 0


def test_a_session_starts_no_python_that_its_first_query_does_not_use(
    spark: SparkSession, workers_at_start: list[list[str]]
) -> None:
    assert workers_at_start == []


def test_an_error_on_an_executor_is_one_sentence(spark: SparkSession) -> None:
    def fail(share: int) -> list[PartBlock]:
        raise PipelineError("the segment is gone")

    with pytest.raises(PipelineError, match=r"^the segment is gone$"), wrap_job_errors():
        SparkTransport(spark).run([1], fail)
