"""`run` or `stream` as a program that tests start and kill."""

import sys
from pathlib import Path
from threading import Event

from gatepost.pipeline.jobs.pipeline import Pipeline
from gatepost.pipeline.jobs.streaming import ArchiveStream
from gatepost.pipeline.session import is_local, spark_session
from gatepost.pipeline.transport import SparkTransport
from tests.pipeline.commit_gate import CommitGate
from tests.pipeline.spark_settings import QUICK_SPARK
from tests.pipeline.streaming_job import _LOOPBACK


def main(what: str, archive: str, tables: str, max_rows: int, master: str) -> None:
    conf = QUICK_SPARK if is_local(master) else QUICK_SPARK | _LOOPBACK
    with spark_session(master, conf=conf, brief=True) as spark:
        pipeline = Pipeline(SparkTransport(spark), archive, tables)
        if what == "run":
            pipeline.run(max_rows)
            return
        # Until somebody ends this.
        ArchiveStream(spark, pipeline, max_rows).follow(
            every=0.1, checkpoint=None, stopping=Event(), report=lambda step: None
        )


if __name__ == "__main__":
    what, archive, tables, max_rows, master = sys.argv[1:]
    with CommitGate(Path(tables)).before_commits():
        main(what, archive, tables, int(max_rows), master)
