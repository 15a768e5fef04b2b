"""A stream from an archive into a table, as a program that tests start and kill."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from gatepost.pipeline.archive_source import read_stream
from gatepost.pipeline.delta_tables import BatchTransaction
from gatepost.pipeline.session import is_local, spark_session
from tests.pipeline.commit_gate import CommitGate
from tests.pipeline.spark_settings import QUICK_JVM, QUICK_SPARK
from tests.pipeline.table_rows import write_table

COLUMNS = ["node", "seq", "kind", "event_id", "date"]

_LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {QUICK_JVM}",
}


def main(root: str, table: str, checkpoint: str, max_rows: int, master: str) -> None:
    conf = QUICK_SPARK if is_local(master) else QUICK_SPARK | _LOOPBACK
    with spark_session(master, conf=conf, brief=True) as spark:
        stream = read_stream(spark, root, max_rows=max_rows, columns=COLUMNS)
        start_stream(stream, table, checkpoint).awaitTermination()
        homes = spark.range(2, numPartitions=2).mapInArrow(_home, "home string")
        write_table(homes, f"{table}.homes", mode="overwrite")


def start_stream(stream: DataFrame, table: str, checkpoint: str) -> StreamingQuery:
    """Append all rows available now to a table, each batch of the checkpoint once."""

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id is not None
        transaction = BatchTransaction(query_id, batch_id)
        write_table(batch, table, partition_by=["date"], transaction=transaction)

    writer = stream.writeStream.foreachBatch(write_batch).trigger(availableNow=True)
    return writer.option("checkpointLocation", checkpoint).start()


def _home(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Where this executor has gatepost from."""
    import gatepost

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"home": [gatepost.__file__]})


if __name__ == "__main__":
    root, table, checkpoint, max_rows, master = sys.argv[1:]
    with CommitGate(Path(table)).before_commits():
        main(root, table, checkpoint, int(max_rows), master)
