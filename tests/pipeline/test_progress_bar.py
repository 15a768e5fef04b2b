"""Progress is drawn for people and counted from Spark's own books."""

import io
import re
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from gatepost.pipeline import progress_bar as module
from gatepost.pipeline.progress_bar import StageProgress, show_progress
from tests.waiting import wait_until


class Tracker:
    """Plays back what Spark's status tracker says, one look after another."""

    def __init__(self, *looks: dict[int, tuple[int, int]]) -> None:
        self._looks = iter(looks)

    def getActiveStageIds(self) -> list[int]:
        self._now = next(self._looks)
        return list(self._now)

    def getStageInfo(self, id: int) -> SimpleNamespace:
        done, total = self._now[id]
        return SimpleNamespace(numCompletedTasks=done, numTasks=total)


def test_a_stage_that_is_gone_was_completed() -> None:
    tracker = Tracker({1: (1, 4)}, {1: (3, 4), 2: (0, 2)}, {2: (1, 2)}, {})
    stages = StageProgress()
    seen = [stages.count_tasks(tracker) for _ in range(4)]  # type: ignore[arg-type]
    assert seen == [(1, 4), (3, 6), (5, 6), (6, 6)]


def test_a_person_sees_tasks(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL", 0.02)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    slow = spark.range(4, numPartitions=4).selectExpr(
        "java_method('java.lang.Thread','sleep',100L)"
    )

    def is_drawn() -> bool:
        """The thread that draws may be late on a busy machine: it sees one of these jobs."""
        slow.collect()
        return re.search(r"\d/\d", screen.getvalue()) is not None

    with module._draw_bar(spark.sparkContext, "counting", console):
        wait_until(is_drawn)
    assert "counting" in screen.getvalue()


def test_without_a_terminal_nothing_is_drawn(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    with show_progress(spark, "counting"):
        spark.range(2).collect()
    assert capsys.readouterr() == ("", "")
