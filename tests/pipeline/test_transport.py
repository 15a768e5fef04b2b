"""Kernels give the same whoever carries them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

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
from tests.pipeline.spark_interface import scanned_rows, shown_queries
from tests.pipeline.worlds import World

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
    """Tables that Spark made, with the queries that its web interface shows of that run."""
    tables = str(tmp_path_factory.mktemp("carried") / "tables")
    before = shown_queries(spark).keys()
    assert Pipeline(SparkTransport(spark), world.archive, tables).run().events == world.truth.events
    after = shown_queries(spark)
    return Carried(tables, [after[id] for id in sorted(after.keys() - before)])


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


def test_the_interface_of_spark_shows_queries_and_their_input(
    world: World, carried: Carried
) -> None:
    assert {query["status"] for query in carried.queries} == {"COMPLETED"}
    nodes = {node["nodeName"] for query in carried.queries for node in query["nodes"]}
    assert {"LocalTableScan", "Exchange", "MapInArrow"} <= nodes
    assert all(scanned_rows(query) for query in carried.queries)
    said = [query["description"].partition(" in ")[0] for query in carried.queries]
    events = f"{world.truth.events:,} rows"
    assert said[:2] == [
        f"file_check.check_files: {events}",
        f"jobs.deliveries.write_deliveries: {events}",
    ]
    assert len(said) >= 4


def test_a_task_does_not_grow_with_the_plan(spark: SparkSession) -> None:
    def command_bytes(shares: int) -> int:
        """The size of the closure that each task of the query gets."""
        frame = SparkTransport(spark).read_shares(["x" * 100] * shares, read_nothing)
        plan = frame._jdf.queryExecution().analyzed()
        return int(plan.functionExpr().func().command().length())

    def read_nothing(share: str) -> list[PartBlock]:
        return []

    assert command_bytes(3) == command_bytes(3_000) < 10_000


def test_a_session_starts_no_python_that_its_first_query_does_not_use(
    spark: SparkSession, workers_at_start: list[list[str]]
) -> None:
    assert workers_at_start == []


def test_an_error_on_an_executor_is_one_sentence(spark: SparkSession) -> None:
    def fail(share: int) -> list[PartBlock]:
        raise PipelineError("the segment is gone")

    with pytest.raises(PipelineError, match=r"^the segment is gone$"), wrap_job_errors():
        SparkTransport(spark).run([1], fail)
