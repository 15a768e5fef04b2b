"""One Spark session for all tests of the pipeline: its JVM is what takes time to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from gatepost.pipeline.cluster import standalone_cluster
from gatepost.pipeline.session import spark_session
from gatepost.pipeline.synth import SynthOptions
from tests.pipeline.worlds import PLANTED, World

# Tests are many small jobs: compile little, shuffle nothing.
QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "2g",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]", name="tests", conf=QUICK, brief=True) as session:
        yield session


@pytest.fixture(scope="session")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """20,000 events with everything planted that can be read, and their tables."""
    options = SynthOptions(events=20_000, seed=4, faults=PLANTED, segment_rows=1500)
    return World(spark, tmp_path_factory.mktemp("world"), options)


@pytest.fixture(scope="session")
def master() -> Iterator[str]:
    """A cluster of two workers."""
    with standalone_cluster(2, memory="600m", java_options="-XX:TieredStopAtLevel=1") as url:
        yield url
