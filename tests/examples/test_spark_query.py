"""The Spark example, over the tables of a small archive."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples import spark_query
from gatepost.pipeline.jobs.pipeline import backfill_tables
from gatepost.pipeline.small_tables import read_rows
from gatepost.pipeline.synth import SynthOptions, generate_archive
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.transport import LocalTransport

pytestmark = pytest.mark.timeout(400)


def test_the_query_counts_the_dead_letters_of_each_agent(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, tables = str(tmp_path / "archive"), str(tmp_path / "tables")
    generate_archive(archive, SynthOptions(events=500, seed=4))
    backfill_tables(LocalTransport(), archive, tables)
    spark_query.main(spark, tables)
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    counted = {row[0].strip(): int(row[1]) for row in (line[1:-1].split("|") for line in shown[1:])}
    dead = [row["to_agent"] for row in read_rows(tables, schemas.DELIVERIES) if row["dead_at"]]
    assert dead and counted == {agent: dead.count(agent) for agent in set(dead)}
