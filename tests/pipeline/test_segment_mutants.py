"""`run` takes in or sets aside each mutant of a segment, exactly those, and an audit judges it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gatepost.archive.manifest import ArchiveSegment
from gatepost.archive.schema import EVENT_SCHEMA
from gatepost.pipeline.jobs.audit import audit_archive
from gatepost.pipeline.jobs.pipeline import Pipeline
from gatepost.pipeline.read_plan import SetAside
from gatepost.pipeline.small_tables import read_rows
from gatepost.pipeline.synth import SynthOptions, generate_archive
from gatepost.pipeline.tables import schemas
from gatepost.pipeline.transport import LocalTransport
from tests.conftest import choose
from tests.pipeline import bad_archives as bad
from tests.pipeline.segment_mutants import Effect, Mutant, all_mutants

pytestmark = pytest.mark.timeout(600)

# Of the same mesh as `bad.OPTIONS`, whose keys sign.
OPTIONS = SynthOptions(events=bad.OPTIONS.events, segment_rows=40, seed=bad.OPTIONS.seed)
# So many mutants share an archive, each in a segment of its own; the others are right.
_AT_ONCE = 8


def groups() -> Iterator[tuple[Effect, list[Mutant]]]:
    """Mutants of one effect each: a sample with a fixed seed, or all of them."""
    effects: tuple[Effect, ...] = ("harmless", "aside", "shown", "believed")
    for effect in effects:
        mutants = [each for each in all_mutants() if each.effect == effect]
        Random(24).shuffle(mutants)
        mutants = mutants[: choose(_AT_ONCE, len(mutants))]
        for start in range(0, len(mutants), _AT_ONCE):
            yield effect, mutants[start : start + _AT_ONCE]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("right") / "archive"
    generate_archive(str(root), OPTIONS)
    return root


@pytest.mark.parametrize(
    ("effect", "mutants"),
    list(groups()),
    ids=lambda given: given if isinstance(given, str) else ", ".join(m.name for m in given),
)
def test_each_mutant_is_taken_in_or_set_aside_and_nothing_else(
    right: Path, tmp_path: Path, effect: Effect, mutants: list[Mutant]
) -> None:
    root, tables = tmp_path / "archive", str(tmp_path / "tables")
    shutil.copytree(right, root)
    segments = bad.read_listed(root).segments
    places = range(1, 1 + len(mutants))
    for place, mutant in zip(places, mutants, strict=True):
        bad.resign_segment(root, mutant.write, place)
    mutated = {(segments[place].first, segments[place].last) for place in places}
    everything = sum(bad.read_listed(right, f"node-0{n}").rows for n in range(1, 5))

    ran = Pipeline(LocalTransport(), str(root), tables).run()
    aside = _whole(ran.aside)
    lost = sum(last - first + 1 for first, last in mutated)
    if effect == "aside":
        assert covered(aside) == {n for first, last in mutated for n in range(first, last + 1)}
        assert ran.events == everything - lost
    else:
        assert (aside, ran.events) == ([], everything)

    audited = audit_archive(LocalTransport(), str(root), tables)
    found = read_rows(tables, schemas.VIOLATIONS)
    shown = {place for place in places if _is_shown(found, segments[place], bad.VICTIM)}
    if effect == "harmless":
        assert (audited.verdict, found) == ("kept", [])
    elif effect != "believed":
        assert audited.verdict != "kept"
        assert shown == set(places)
        assert {row["node"] for row in found} == {bad.VICTIM}, "nobody else is accused"

    shutil.copytree(right, root, dirs_exist_ok=True)
    again = Pipeline(LocalTransport(), str(root), tables).run()
    assert (_whole(again.aside), again.events) == ([], lost if effect == "aside" else 0)
    assert audit_archive(LocalTransport(), str(root), tables).verdict == "kept"


def _whole(aside: tuple[SetAside, ...]) -> list[SetAside]:
    """Without the events of odd ids, which are taken in."""
    return [each for each in aside if not each.events]


def covered(aside: list[SetAside]) -> set[int]:
    assert {each.node for each in aside} <= {bad.VICTIM}
    return {n for each in aside for n in range(each.first or 0, (each.last or 0) + 1)}


def _is_shown(found: list[dict[str, Any]], segment: ArchiveSegment, node: str) -> bool:
    """Whether a finding names this segment, or an event of it, also one of an impossible number."""
    return any(
        row["node"] == node
        and (
            segment.path in row["detail"]
            or (
                row["seq"] is not None
                and (segment.first <= row["seq"] <= segment.last or row["seq"] < 0)
            )
        )
        for row in found
    )


def test_every_column_is_dropped_emptied_retyped_and_moved() -> None:
    names = [each.name for each in all_mutants()]
    changes = ("drop", "null", "retype", "widen", "move")
    assert {f"{change} {name}" for change in changes for name in EVENT_SCHEMA.names} <= set(names)
    assert len(names) == len(set(names)) > 300
