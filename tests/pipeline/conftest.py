"""One Spark session for all tests of the pipeline: its JVM is what takes time to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from gatepost.pipeline.session import spark_session

# Tests are many small jobs: compile little, collect garbage plainly, shuffle nothing.
QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]", name="tests", conf=QUICK) as session:
        yield session
