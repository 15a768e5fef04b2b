"""Follows the archive: runs the pipeline again and again, in one session."""

from collections.abc import Callable
from threading import Event

from gatepost.pipeline.jobs.pipeline import Pipeline, RunSummary


def follow_archive(
    pipeline: Pipeline,
    *,
    every: float,
    max_rows: int,
    stopping: Event,
    report: Callable[[RunSummary], None],
) -> None:
    """Run, wait `every` seconds, and so on until `stopping` is set; `report` each run's result."""
    while not stopping.is_set():
        report(pipeline.run(max_rows, stopping.is_set))
        stopping.wait(every)
