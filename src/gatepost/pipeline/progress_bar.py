"""A progress bar for Spark jobs, on standard error if that is a terminal."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

_INTERVAL = 0.2
_JOIN_TIMEOUT = 5.0


@contextlib.contextmanager
def show_progress(spark: "SparkSession", label: str) -> Iterator[None]:
    """Show how many tasks are done while the block runs; without a terminal show nothing."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with _draw_bar(spark.sparkContext, label, Console(stderr=True)):
        yield


@contextlib.contextmanager
def _draw_bar(context: "SparkContext", label: str, console: Any) -> Iterator[None]:
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("tasks"),
        bars.TimeElapsedColumn(),
    )
    done = threading.Event()
    with bars.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        watcher = threading.Thread(
            target=_watch_stages, args=(context, bar, task, done), daemon=True
        )
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join(_JOIN_TIMEOUT)


def _watch_stages(context: "SparkContext", bar: Any, task: Any, done: threading.Event) -> None:
    stages = StageProgress()
    tracker = context.statusTracker()
    while not done.wait(_INTERVAL):
        completed, total = stages.count_tasks(tracker)
        bar.update(task, completed=completed, total=total or None)


class StageProgress:
    """Counts tasks over all stages seen so far. A stage that is no longer active is complete."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}

    def count_tasks(self, tracker: "StatusTracker") -> tuple[int, int]:
        """The number of completed tasks, and of all known tasks."""
        active = set(tracker.getActiveStageIds())
        for id in active:
            if info := tracker.getStageInfo(id):
                self._seen[id] = info.numCompletedTasks, info.numTasks
        for id in self._seen.keys() - active:
            total = self._seen[id][1]
            self._seen[id] = total, total
        return sum(d for d, _ in self._seen.values()), sum(t for _, t in self._seen.values())
