"""Follows the archive without Spark: runs the pipeline again and again in this process."""

from collections.abc import Callable
from threading import Event

from gatepost.pipeline.jobs.pipeline import Pipeline, RunSummary


def follow_archive(
    pipeline: Pipeline,
    *,
    every: float | None,
    max_rows: int,
    stopping: Event,
    report: Callable[[RunSummary], None],
) -> None:
    """Run, wait `every` seconds, and so on until `stopping` is set; if None, run once.

    `report` gets the result of each run.
    """
    while not stopping.is_set():
        report(pipeline.run(max_rows, stopping.is_set))
        if every is None:
            return
        stopping.wait(every)
