"""Archiving: whole groups, each event once, whatever is killed when."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import gatepost
from gatepost.archive import manifest, outbox_archive
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.verification import verify_archive
from gatepost.errors import ArchiveError, ChainError, StorageFailed
from gatepost.events import NodeKey
from gatepost.journal.outbox_pruning import prune_outbox
from gatepost.pipeline import read_plan
from gatepost.pipeline.archive_reader import ArchiveReader as Reader
from gatepost.testing import ManualClock
from tests.archive.harness import HOUR, NODE, ArchiveHarness

ROOT = Path(__file__).parents[2]
# The largest segment where small ones are merged.
ROOM = 80


def _nobody(tx: object) -> None:
    """Somebody who does not mind."""


def _prune(harness: ArchiveHarness, through: int, limit: int = 1000, **bounds: Any) -> int:
    given = {"read": _nobody, "closed": _nobody} | bounds
    return prune_outbox(harness.tx(), through, limit=limit, **given)


def _seqs(harness: ArchiveHarness) -> list[int]:
    return [event["seq"] for event in harness.events()]


# -- which events are archived, and when


def test_nothing_is_archived_before_it_is_due(harness: ArchiveHarness) -> None:
    assert harness.archive_segments() == []
    harness.groups(4, 5)
    assert harness.archive_segments() == []
    harness.clock.advance(HOUR)
    assert harness.archive_segments() == [(1, 9)], "its oldest event is an hour old"


def test_a_segment_holds_whole_groups_up_to_its_size(harness: ArchiveHarness) -> None:
    harness.groups(4, 4, 4, 10, 3, 25, 1)
    assert harness.archive_segments() == [(1, 8), (9, 12), (13, 22), (23, 25), (26, 50)]
    assert _seqs(harness) == list(range(1, 51))
    ends = [event["seq"] for event in harness.events() if event["group_first"]]
    assert ends == [4, 8, 12, 22, 25, 50]


def test_a_segment_ends_at_midnight(harness: ArchiveHarness) -> None:
    harness.groups(2)
    harness.clock.advance(2 * HOUR)
    harness.groups(2)
    assert harness.archive_segments(harness.archive(age=4 * HOUR)) == [(1, 2)], (
        "the day before cannot grow any more"
    )
    harness.clock.advance(4 * HOUR)
    assert harness.archive_segments() == [(3, 4)]
    assert {name.split("/")[1] for name in harness.files() if name.endswith("parquet")} == {
        "date=2026-03-02",
        "date=2026-03-03",
    }


def test_archiving_goes_on_where_it_stopped(harness: ArchiveHarness) -> None:
    harness.groups(10)
    assert harness.archive_segments() == [(1, 10)]
    harness.groups(10)
    assert harness.archive_segments() == [(11, 20)]
    assert list(verify_archive(harness.store())) == []


def test_large_bodies_make_smaller_segments(
    harness: ArchiveHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_archive, "MAX_SEGMENT_BYTES", 1000)
    harness.groups(*[2] * 10)
    archived = harness.archive_segments()
    assert len(archived) > 1
    assert _seqs(harness) == list(range(1, archived[-1][1] + 1))


def test_a_journal_that_was_tampered_with_is_not_archived(harness: ArchiveHarness) -> None:
    harness.groups(5, 5)
    harness.connection.execute("DELETE FROM outbox WHERE seq = 3")
    with pytest.raises(ChainError, match="missing"):
        harness.archive_segments()
    assert harness.files() == set()


def test_changed_events_are_not_archived(harness: ArchiveHarness) -> None:
    harness.groups(10)
    harness.connection.execute("DROP TRIGGER outbox_is_append_only")
    harness.connection.execute("UPDATE outbox SET body = CAST(body || ' ' AS BLOB) WHERE seq = 3")
    with pytest.raises(ChainError, match="changed"):
        harness.archive_segments()


def test_an_archive_of_another_key_is_left_alone(harness: ArchiveHarness) -> None:
    harness.groups(10)
    harness.archive_segments()
    before = harness.files()
    harness.key = NodeKey.generate(ManualClock(seed=9))
    with pytest.raises(ArchiveError, match="not signed by this node"):
        harness.archive_segments()
    assert harness.files() == before


# -- archives that lost something


def test_a_lost_manifest_does_not_cost_the_segments(harness: ArchiveHarness) -> None:
    harness.groups(10, 10)
    harness.archive_segments()
    _prune(harness, 20)
    (harness.root / manifest.manifest_path(NODE)).unlink()
    before = harness.files()
    harness.groups(10)
    with pytest.raises(ArchiveError, match=r"restore _manifest\.json"):
        harness.archive_segments()
    assert harness.files() == before


def test_an_old_manifest_does_not_cost_the_segments(harness: ArchiveHarness) -> None:
    harness.groups(10)
    harness.archive_segments()
    old = (harness.root / manifest.manifest_path(NODE)).read_bytes()
    harness.groups(10)
    harness.archive_segments()
    _prune(harness, 20)
    (harness.root / manifest.manifest_path(NODE)).write_bytes(old)
    before = harness.files()
    with pytest.raises(ArchiveError, match="no longer in the journal"):
        harness.archive_segments()
    assert harness.files() == before


def test_an_archive_that_misses_something_is_not_continued(harness: ArchiveHarness) -> None:
    harness.groups(10)
    harness.archive_segments()
    harness.groups(10)
    _prune(harness, 20)
    harness.groups(10)
    with pytest.raises(ArchiveError, match="ends at seq 10, but the journal begins at seq 21"):
        harness.archive_segments()


def test_a_new_archive_begins_where_the_journal_does(harness: ArchiveHarness) -> None:
    harness.groups(10, 10)
    _prune(harness, 10)
    assert harness.archive_segments() == [(11, 20)]
    (finding,) = verify_archive(harness.store())
    assert "seq 1 to 10 are missing" in finding.detail


def test_files_that_are_not_ours_are_left_alone(harness: ArchiveHarness) -> None:
    harness.store().write_file(f"node={NODE}/notes.txt", b"mine")
    harness.groups(10)
    harness.archive_segments()
    assert f"node={NODE}/notes.txt" in harness.files()


# -- restored journals


def test_a_restored_journal_archives_its_new_events(harness: ArchiveHarness) -> None:
    harness.groups(10, 10)
    assert harness.archive_segments() == [(1, 10), (11, 20)]
    # A backup from before seq 11 comes back, and goes on under a new name.
    harness.connection.execute("DELETE FROM outbox WHERE seq > 10")
    harness.connection.execute("DELETE FROM head WHERE last_seq > 10")
    harness.start_incarnation("second", first=11)
    assert harness.archive().archived_through(harness.tx()) == 10
    harness.groups(10)
    assert harness.archive_segments() == [(11, 20)]
    assert harness.archive().archived_through(harness.tx()) == 20
    listed = manifest.read_manifest(harness.store(), NODE)
    assert listed is not None
    assert [(life.id, life.first_seq) for life in listed.incarnations] == [
        ("first", 1),
        ("second", 11),
    ]
    assert list(verify_archive(harness.store())) == []


def test_the_rest_of_an_old_incarnation_is_archived_under_its_name(harness: ArchiveHarness) -> None:
    harness.groups(4)
    harness.start_incarnation("second", first=5)
    harness.groups(10)
    harness.clock.advance(HOUR)
    assert harness.archive_segments() == [(1, 4), (5, 14)]
    assert [event["incarnation"] for event in harness.events()] == ["first"] * 4 + ["second"] * 10
    assert list(verify_archive(harness.store())) == []


# -- crashes


class Killed(Exception):
    """The end of the process, as far as the test goes."""


class Mortal(ArchiveStore):
    """A store on which the process dies at a given step."""

    def __init__(self, root: Path, step: int) -> None:
        other = ArchiveStore.open(str(root))
        super().__init__(other.filesystem, other.root)
        self._left = step

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed

    def _write_atomically(self, path: str, content: Any) -> None:
        self._step()
        temporary = Path(path).with_name(f".{Path(path).name}.tmp")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(bytes(content)[: len(bytes(content)) // 2])
        self._step()
        super()._write_atomically(path, content)
        self._step()

    def delete_file(self, name: str) -> None:
        self._step()
        super().delete_file(name)
        self._step()


def _killed_at(harness: ArchiveHarness, step: int) -> bool:
    try:
        harness.archive_segments(harness.archive(store=Mortal(harness.root, step)))
    except Killed:
        return True
    return False


@pytest.mark.parametrize("second", [None, 0, 1, 3])
def test_killed_between_any_two_steps_nothing_is_lost_doubled_or_left(
    tmp_path: Path, second: int | None
) -> None:
    """Killed once, or killed again while it recovers."""
    for step in range(100):
        harness = ArchiveHarness(tmp_path / str(step))
        harness.groups(3, 9, 4, 4)
        died = _killed_at(harness, step)
        harness.groups(2, 8)
        if second is not None:
            _killed_at(harness, second)
            harness.groups(5)
        harness.clock.advance(HOUR)
        harness.archive_segments()
        total = harness.connection.execute("SELECT max(seq) FROM outbox").get
        assert _seqs(harness) == list(range(1, total + 1))
        assert list(verify_archive(harness.store())) == []
        listed = manifest.read_manifest(harness.store(), NODE)
        assert listed is not None
        named = {f"node={NODE}/{segment.path}" for segment in listed.segments}
        assert harness.files() == named | {manifest.manifest_path(NODE)}
        if not died:
            assert step > 5
            return
    pytest.fail("it never came to its end")


def test_a_failed_write_is_made_good_without_a_restart(harness: ArchiveHarness) -> None:
    harness.groups(3, 9)
    archive = harness.archive(store=Mortal(harness.root, 4))
    with pytest.raises(Killed):
        archive.archive_segment(harness.tx())
    archive.store = harness.store()
    harness.groups(9)
    harness.clock.advance(HOUR)
    harness.archive_segments(archive)
    assert _seqs(harness) == list(range(1, 22))
    assert list(verify_archive(harness.store())) == []


def test_a_disk_that_refuses_says_so(harness: ArchiveHarness) -> None:
    harness.groups(10)
    harness.root.parent.mkdir(exist_ok=True)
    harness.root.write_bytes(b"no folder")
    with pytest.raises(StorageFailed):
        harness.archive_segments()


def test_a_real_process_is_killed_again_and_again(tmp_path: Path) -> None:
    """SIGKILL at arbitrary moments; what is left is whole each time, and complete in the end."""
    command = [sys.executable, str(Path(__file__).with_name("archiver_process.py")), str(tmp_path)]
    source = Path(gatepost.__file__).parents[1]
    env = os.environ | {"PYTHONPATH": f"{source}:{ROOT}"}
    cut_short = 0
    for attempt in range(4):
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        # The moments of the kills are the subject.
        time.sleep(0.004 * attempt)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        left = ArchiveStore.open(str(tmp_path / "archive"))
        assert list(verify_archive(left)) == []
        listed = manifest.read_manifest(left, NODE)
        cut_short += listed is None or listed.rows < 3000
    assert cut_short, "it was never killed while it archived"
    subprocess.run([*command, "to the end"], env=env, check=True, capture_output=True)
    store = ArchiveStore.open(str(tmp_path / "archive"))
    listed = manifest.read_manifest(store, NODE)
    assert listed is not None
    assert (listed.rows, listed.archived_through) == (3000, 3000)
    assert list(verify_archive(store)) == []


# -- merging small segments


def _small(harness: ArchiveHarness, count: int, rows: int = 3) -> None:
    """So many small segments."""
    for _ in range(count):
        harness.groups(rows)
        harness.archive_segments(harness.archive(rows=ROOM, age=0))


def _merge(
    harness: ArchiveHarness, archive: outbox_archive.OutboxArchive | None = None
) -> list[tuple[int, int]]:
    archive = archive or harness.archive(rows=ROOM)
    merged = []
    while whole := archive.merge_small_segments(harness.tx()):
        merged.append((whole.first, whole.last))
    return merged


def _ranges(harness: ArchiveHarness) -> list[tuple[int, int]]:
    listed = manifest.read_manifest(harness.store(), NODE)
    assert listed is not None
    return [(segment.first, segment.last) for segment in listed.segments]


def _named(harness: ArchiveHarness) -> set[str]:
    """The files that are meant to be there."""
    listed = manifest.read_manifest(harness.store(), NODE)
    assert listed is not None
    return {f"node={NODE}/{s.path}" for s in listed.segments} | {manifest.manifest_path(NODE)}


def test_small_neighbours_become_one_segment_with_the_same_events(harness: ArchiveHarness) -> None:
    _small(harness, 7)
    assert _merge(harness) == [], "seven are not worth it"
    _small(harness, 1)
    before, old = harness.events(), _named(harness)
    archive = harness.archive(rows=ROOM)
    assert _merge(harness, archive) == [(1, 24)]
    assert _ranges(harness) == [(1, 24)]
    assert harness.events() == before
    assert list(verify_archive(harness.store())) == []
    assert old < harness.files(), "a reader may be in the middle of them"
    harness.clock.advance(2 * HOUR)
    assert _merge(harness, archive) == []
    assert harness.files() == _named(harness)


def test_archiving_goes_on_behind_merged_segments(harness: ArchiveHarness) -> None:
    _small(harness, 8)
    archive = harness.archive(rows=ROOM, age=0)
    assert _merge(harness, archive) == [(1, 24)]
    harness.groups(5)
    assert harness.archive_segments(archive) == [(25, 29)]
    assert archive.archived_through(harness.tx()) == 29
    assert list(verify_archive(harness.store())) == []


def test_what_is_large_or_of_another_day_is_not_merged(harness: ArchiveHarness) -> None:
    _small(harness, 5)
    _small(harness, 1, rows=11)
    _small(harness, 5)
    harness.clock.advance(2 * HOUR)
    _small(harness, 5)
    assert _merge(harness) == [], "no eight neighbours of one day are small"
    _small(harness, 3)
    assert _merge(harness) == [(42, 65)]


def test_a_merged_segment_is_no_larger_than_any_other(harness: ArchiveHarness) -> None:
    _small(harness, 10, rows=9)
    assert _merge(harness) == [(1, 72)], "nine of nine rows would be more than eighty"
    assert _ranges(harness) == [(1, 72), (73, 81), (82, 90)]


def test_lives_are_not_mixed_even_if_their_numbers_are_the_same(harness: ArchiveHarness) -> None:
    _small(harness, 10)
    harness.connection.execute("DELETE FROM outbox WHERE seq > 6")
    harness.connection.execute("DELETE FROM head WHERE last_seq > 6")
    harness.start_incarnation("second", first=7)
    _small(harness, 8)
    assert _merge(harness) == [(1, 30), (7, 30)]
    assert list(verify_archive(harness.store())) == []


def test_a_damaged_segment_is_not_merged_into_a_good_one(harness: ArchiveHarness) -> None:
    _small(harness, 8)
    damaged = sorted(harness.root.rglob("*.parquet"))[3]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    before = harness.files()
    with pytest.raises(ArchiveError, match="not the file that was archived"):
        _merge(harness)
    assert harness.files() == before


def test_killed_while_merging_nothing_is_lost_doubled_or_left(tmp_path: Path) -> None:
    """Even if the journal has forgotten all of it."""
    harness = ArchiveHarness(tmp_path / "archived")
    _small(harness, 8)
    before = harness.events()
    _prune(harness, 24)
    for step in range(100):
        harness.root = shutil.copytree(tmp_path / "archived", tmp_path / str(step))
        died = _killed_merging(harness, step)
        assert harness.events() == before
        _merge_and_forget(harness, harness.archive(rows=ROOM))
        assert harness.events() == before
        assert _ranges(harness) == [(1, 24)]
        assert harness.files() == _named(harness)
        assert list(verify_archive(harness.store())) == []
        if not died:
            assert step > 10
            return
    pytest.fail("it never came to its end")


def _merge_and_forget(harness: ArchiveHarness, archive: outbox_archive.OutboxArchive) -> None:
    _merge(harness, archive)
    harness.clock.advance(2 * HOUR)
    _merge(harness, archive)


def _killed_merging(harness: ArchiveHarness, step: int) -> bool:
    try:
        _merge_and_forget(harness, harness.archive(rows=ROOM, store=Mortal(harness.root, step)))
    except Killed:
        return True
    return False


def test_readers_go_on_where_they_were(harness: ArchiveHarness) -> None:
    """A reader stopped in the middle of what is one segment now."""
    _small(harness, 8)
    reader = Reader(str(harness.root))
    start, end = {NODE: {"first": 8}}, {NODE: {"first": 24}}
    before = read_plan.slices_between(reader.list_segments(), start, end, read_plan.Selection())
    _merge(harness)
    after = read_plan.slices_between(reader.list_segments(), start, end, read_plan.Selection())
    assert [(piece.first, piece.last) for piece in before][:2] == [(9, 9), (10, 12)]
    assert [(piece.first, piece.last) for piece in after] == [(9, 24)]
    rows = [batch.to_pylist() for piece in after for batch in reader.read_batches(piece, ["seq"])]
    assert [row["seq"] for batch in rows for row in batch] == list(range(9, 25))


# -- pruning


def _outbox(harness: ArchiveHarness) -> list[int]:
    return [int(row[0]) for row in harness.tx().fetch_all("SELECT seq FROM outbox ORDER BY seq")]


def _heads(harness: ArchiveHarness) -> list[int]:
    return [
        int(row[0]) for row in harness.tx().fetch_all("SELECT last_seq FROM head ORDER BY last_seq")
    ]


@pytest.mark.parametrize(
    ("through", "read", "closed", "left"),
    [
        (12, None, None, []),
        (8, None, None, [9, 10, 11, 12]),
        (12, 8, None, [9, 10, 11, 12]),
        (12, None, 4, [5, 6, 7, 8, 9, 10, 11, 12]),
        (8, 12, 12, [9, 10, 11, 12]),
        (12, 0, None, list(range(1, 13))),
        (0, None, None, list(range(1, 13))),
        (7, None, None, [5, 6, 7, 8, 9, 10, 11, 12]),
    ],
)
def test_only_what_nobody_needs_goes_and_only_whole_groups(
    harness: ArchiveHarness, through: int, read: int | None, closed: int | None, left: list[int]
) -> None:
    harness.groups(4, 4, 4)
    gone = _prune(harness, through, read=lambda tx: read, closed=lambda tx: closed)
    assert _outbox(harness) == left
    assert gone == 12 - len(left)
    ends = [end for end in (4, 8, 12) if end in left]
    assert _heads(harness) == (ends or [12]), "the latest head always stays"


def test_pruning_goes_in_steps(harness: ArchiveHarness) -> None:
    harness.groups(4, 4, 4, 30, 4)
    steps = []
    while gone := _prune(harness, 46, limit=9):
        steps.append(gone)
    assert steps == [8, 4, 30, 4], "a group larger than a step goes in one"


def test_the_chain_goes_on_after_everything_was_pruned(harness: ArchiveHarness) -> None:
    harness.groups(10)
    harness.archive_segments()
    _prune(harness, 10)
    assert _prune(harness, 10) == 0
    harness.restart()
    harness.groups(10)
    assert harness.archive_segments() == [(11, 20)]
    assert list(verify_archive(harness.store())) == []


def test_an_empty_outbox_has_nothing_to_prune(harness: ArchiveHarness) -> None:
    assert _prune(harness, 100) == 0
