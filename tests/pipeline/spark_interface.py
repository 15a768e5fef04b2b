"""What the web interface of a Spark session shows."""

import json
from typing import Any
from urllib.request import urlopen

from pyspark.sql import SparkSession

from tests.waiting import wait_until


def ask_interface(spark: SparkSession, path: str) -> Any:
    """What the web interface of this session answers."""
    context = spark.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{path}"
    with urlopen(url, timeout=30) as answer:
        return json.load(answer)


def shown_queries(spark: SparkSession) -> dict[int, Any]:
    """All queries by their number, once none of them runs any more."""

    def is_over() -> bool:
        return all(query["status"] != "RUNNING" for query in _list_queries(spark))

    # The interface hears of queries a moment after they end.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    wait_until(is_over)
    return {query["id"]: query for query in _list_queries(spark)}


def _list_queries(spark: SparkSession) -> list[Any]:
    listed: list[Any] = ask_interface(spark, "sql?length=10000")
    return listed


def scanned_rows(query: Any) -> int:
    """The rows of its plan that a query began with."""
    return sum(
        int(metric["value"])
        for node in query["nodes"]
        if node["nodeName"] == "LocalTableScan"
        for metric in node["metrics"]
        if metric["name"] == "number of output rows"
    )
