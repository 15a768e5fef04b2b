"""`run` or `stream` as a program that tests start and kill."""

import sys
from pathlib import Path
from threading import Event

from gatepost.pipeline.jobs.following import follow_archive
from gatepost.pipeline.jobs.pipeline import Pipeline
from gatepost.pipeline.session import is_local, spark_session
from gatepost.pipeline.transport import LocalTransport, SparkTransport
from tests.pipeline.commit_gate import CommitGate
from tests.pipeline.spark_settings import QUICK_SPARK
from tests.pipeline.streaming_job import _LOOPBACK


def main(what: str, archive: str, tables: str, max_rows: int, master: str) -> None:
    if what == "stream":
        follow(Pipeline(LocalTransport(), archive, tables), max_rows)
        return
    conf = QUICK_SPARK if is_local(master) else QUICK_SPARK | _LOOPBACK
    with spark_session(master, conf=conf, brief=True) as spark:
        Pipeline(SparkTransport(spark), archive, tables).run(max_rows)


def follow(pipeline: Pipeline, max_rows: int) -> None:
    """Until somebody ends this."""
    follow_archive(
        pipeline, every=0.1, max_rows=max_rows, stopping=Event(), report=lambda ran: None
    )


if __name__ == "__main__":
    what, archive, tables, max_rows, master = sys.argv[1:]
    with CommitGate(Path(tables)).before_commits():
        main(what, archive, tables, int(max_rows), master)
