"""The jobs through Spark Connect, where there is no `sparkContext`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gatepost.pipeline.java import java_home
from tests.pipeline.worlds import World

_PROGRAM = """
import sys
from pyspark.sql import SparkSession
from gatepost.pipeline.jobs.audit import audit_archive
from gatepost.pipeline.jobs.pipeline import update_tables
from gatepost.pipeline.report.gatherer import gather_report
from gatepost.pipeline.session import _prepare_session
from gatepost.pipeline.transport import SparkTransport

archive, tables = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
_prepare_session(spark)
transport = SparkTransport(spark)
print(update_tables(transport, archive, tables).events)
print(audit_archive(transport, archive, tables).verdict)
print(gather_report(transport, tables).events)
spark.stop()
"""


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_jobs_make_the_same_tables_through_connect(world: World, tmp_path: Path) -> None:
    tables = str(tmp_path / "tables")
    env = os.environ | {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
    command = [sys.executable, "-c", _PROGRAM, world.archive, tables]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    events = str(world.truth.events)
    assert done.stdout.split() == [events, "broken", events]
    world.assert_same(tables)
