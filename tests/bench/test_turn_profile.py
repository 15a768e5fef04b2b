"""The profile of a turn: which steps it has, and that they are all of it."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from gatepost.bench.marked_gateway import Mark
from gatepost.bench.turn_profile import Span, profile_turns, render_profile, step_medians


def marks_of(begin: int, *lengths: int) -> list[Mark]:
    """The marks of one operation whose steps take so long, in ns."""
    names = (
        "received", "submitted", "group", "commit", "committed", "outcomes", "woken", "encoded"
    )  # fmt: skip
    found: list[Mark] = []
    for name, length in zip(names, lengths, strict=True):
        begin += length
        found.append((name, begin))  # type: ignore[arg-type]
    return found


STEPS = range(1_000, 9_000, 1_000)  # eight of the nine; the last one ends at the client


def test_a_step_lasts_from_mark_to_mark_and_the_last_to_the_end_of_the_span() -> None:
    span = Span(0, 45_000)
    assert step_medians([span], marks_of(0, *STEPS)) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_marks_of_other_operations_and_groups_without_one_are_left_out() -> None:
    spans = [Span(100_000, 145_000), Span(200_000, 245_000)]
    others: list[Mark] = [("group", 99_000), ("commit", 99_500), ("committed", 150_000)]
    marks = [*marks_of(100_000, *STEPS), *marks_of(200_000, *STEPS), *others]
    marks.append(("group", 100_500))  # a timer's, before the operation was submitted
    marks.sort(key=lambda mark: mark[1])
    assert step_medians(spans, marks) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_an_operation_that_lacks_a_mark_does_not_count() -> None:
    spans = [Span(0, 45_000), Span(50_000, 55_000)]
    marks = [*marks_of(0, *STEPS), ("received", 51_000)]
    assert step_medians(spans, marks)[0] == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile")


def test_the_steps_of_real_turns_are_about_the_whole(folder: Path) -> None:
    profile = profile_turns(folder, 20, 512)
    assert len(profile.steps) == 9
    assert profile.turns == 20
    # A median of sums is not the sum of medians; most of it is the disk.
    for of in ("enqueue_us", "ack_us"):
        steps = [getattr(step, of) for step in profile.steps]
        assert min(steps) > 0
        assert sum(steps) == pytest.approx(getattr(profile.whole, of), rel=0.9)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render_profile(profile))
    assert "COMMIT with its fsync" in console.export_text()
    assert list(folder.iterdir()) == []
