"""What the tables of a whole run add up to."""

from collections import defaultdict

import pytest
from pyspark.sql import SparkSession

from gatepost.pipeline.jobs.table_update import TableFolder
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.tables.turns import derive_turns
from tests.pipeline.worlds import World

# Whole runs of Spark, on machines that do other things too.
pytestmark = pytest.mark.timeout(400)


def test_doubled_turns_show_in_the_table_of_turns(spark: SparkSession, world: World) -> None:
    (known,) = [v for v in world.truth.violations if v.rule == "doubled_turn"]
    ok: dict[bytes, set[str]] = defaultdict(set)
    deliveries = TableFolder(world.tables).read(spark, schemas.DELIVERIES).where("turns > 1")
    for turn in derive_turns(deliveries).where("outcome = 'ok'").collect():
        ok[bytes(turn.event_id)].add(turn.turn_node)
    doubled = [row for row in world.rows["deliveries"] if row["turns"] > 1]
    assert [row["corr_id"] for row in doubled] == known.corr_ids
    assert [len(ok[bytes(row["event_id"])]) for row in doubled] == [2]


def test_traffic_and_tasks_add_up_to_what_was_sent(world: World) -> None:
    totals = world.truth.totals
    sent = sum(row["sent"] for row in world.rows["traffic"])
    cancels = sum(1 for row in world.rows["deliveries"] if row["kind"] == "task_cancel")
    assert sent == totals.messages + totals.replies + totals.tasks + cancels
    assert len(world.rows["tasks"]) == totals.tasks
    assert world.ran.events == world.truth.events
