"""A Spark query over the pipeline's tables: which agents fail most, and why.

Make the tables first, from the archive of your gateways:

    gatepost pipeline run --archive ARCHIVE --tables TABLES
    python examples/spark_query.py TABLES
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from gatepost.pipeline.session import spark_session
from gatepost.pipeline.table_views import create_views


def count_dead_letters(deliveries: DataFrame) -> DataFrame:
    """Dead letters of each agent and their share of its messages, the worst first."""
    dead = F.col("dead_at").isNotNull()
    counted = deliveries.groupBy("to_agent").agg(
        F.count_if(dead).alias("dead"), F.round(F.avg(dead.cast("int")), 4).alias("share")
    )
    return counted.where("dead > 0").orderBy(F.desc("share"), "to_agent")


def main(spark: SparkSession, tables: str) -> None:
    batch = create_views(spark, tables).batch  # all views show the tables after this batch
    print(f"after batch {batch}:")
    count_dead_letters(spark.table("deliveries")).show()


if __name__ == "__main__":
    with spark_session("local[*]") as session:
        main(session, sys.argv[1])
