"""`run` or `stream` as a program that tests start and kill."""

import sys

from gatepost.pipeline.jobs.pipeline import Pipeline
from gatepost.pipeline.session import is_local, spark_session
from tests.pipeline.spark_settings import QUICK_SPARK
from tests.pipeline.streaming_job import _LOOPBACK


def main(what: str, archive: str, tables: str, max_rows: int, master: str) -> None:
    conf = QUICK_SPARK if is_local(master) else QUICK_SPARK | _LOOPBACK
    with spark_session(master, conf=conf, brief=True) as spark:
        pipeline = Pipeline(spark, archive, tables)
        if what == "run":
            pipeline.run(max_rows)
        else:
            query = pipeline.stream(f"{tables}/_checkpoint", max_rows=max_rows)
            query.awaitTermination()


if __name__ == "__main__":
    what, archive, tables, max_rows, master = sys.argv[1:]
    main(what, archive, tables, int(max_rows), master)
