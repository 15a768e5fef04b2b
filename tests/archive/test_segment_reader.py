"""Archived events are read again: a reader's own, as they were signed, and an event by its id."""

import pytest

from gatepost.archive import segment_reader
from gatepost.archive.segment_reader import ArchivedStretch, SegmentReader
from gatepost.errors import ArchiveError
from gatepost.events import NodeKey, Receipt, parse_event_id
from tests.archive.harness import HOUR, NODE, ArchiveHarness


def _never() -> bool:
    return False


@pytest.fixture
def reader(harness: ArchiveHarness) -> SegmentReader:
    return SegmentReader(harness.store(), NODE, harness.key.public)


def _fill(harness: ArchiveHarness, *nodes: str) -> list[bytes]:
    """One event for each node, in groups of their own; returns their bodies."""
    for node in nodes:
        harness.group(harness.message(to_node_id=node))
    found = harness.tx().fetch_all("SELECT body FROM outbox ORDER BY seq")
    return [row[0] for row in found]


def test_a_reader_gets_its_own_events_as_they_were_signed(
    harness: ArchiveHarness, reader: SegmentReader
) -> None:
    bodies = _fill(harness, "b", "c", "b", "b")
    harness.archive_segments(harness.archive(rows=4))
    found = reader.read_stretch("first", "b", 0, 3)
    assert found == ArchivedStretch(3, [(1, bodies[0]), (3, bodies[2])])


def test_a_stretch_is_read_segment_by_segment(
    harness: ArchiveHarness, reader: SegmentReader
) -> None:
    _fill(harness, *"bbbb")
    harness.archive_segments(harness.archive(rows=2))
    assert [seq for seq, _ in reader.read_stretch("first", "b", 0, 4).rows] == [1, 2]
    assert [seq for seq, _ in reader.read_stretch("first", "b", 2, 4).rows] == [3, 4]


def test_a_page_ends_when_it_is_full(
    harness: ArchiveHarness, reader: SegmentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = _fill(harness, *"bbb")
    harness.archive_segments(harness.archive(rows=3))
    monkeypatch.setattr(segment_reader, "PAGE_BYTES", len(bodies[0] + bodies[1]))
    assert reader.read_stretch("first", "b", 0, 3).upto == 2
    assert reader.read_stretch("first", "b", 2, 3) == ArchivedStretch(3, [(3, bodies[2])])


def test_events_without_bodies_are_missing_up_to_the_first_that_has_one(
    harness: ArchiveHarness, reader: SegmentReader
) -> None:
    _fill(harness, *"bbbb")
    harness.archive_segments(harness.archive(rows=2, bodies=False))
    bodies = _fill(harness, *"bb")
    harness.archive_segments(harness.archive(rows=2))
    assert reader.read_stretch("first", "b", 0, 6) == ArchivedStretch(4, [], missing=True)
    assert [body for _, body in reader.read_stretch("first", "b", 4, 6).rows] == bodies[4:]


def test_events_for_others_without_bodies_are_not_missed(
    harness: ArchiveHarness, reader: SegmentReader
) -> None:
    _fill(harness, *"cc")
    harness.archive_segments(harness.archive(rows=2, bodies=False))
    assert reader.read_stretch("first", "b", 0, 2) == ArchivedStretch(2, [])


def test_a_stretch_that_no_segment_holds_is_missing(
    harness: ArchiveHarness, reader: SegmentReader
) -> None:
    assert reader.read_stretch("first", "b", 0, 6) == ArchivedStretch(6, [], missing=True)
    _fill(harness, *"bb")
    harness.archive_segments(harness.archive(rows=2))
    assert reader.read_stretch("other", "b", 0, 2).missing
    assert reader.read_stretch("first", "b", 2, 5) == ArchivedStretch(5, [], missing=True)


def test_a_changed_segment_is_not_sent_to_anybody(
    harness: ArchiveHarness, reader: SegmentReader
) -> None:
    _fill(harness, *"bb")
    harness.archive_segments(harness.archive(rows=2))
    (file,) = harness.root.rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ArchiveError, match="not the file"):
        reader.read_stretch("first", "b", 0, 2)


def test_a_manifest_of_somebody_else_is_not_read(harness: ArchiveHarness) -> None:
    _fill(harness, "b")
    harness.archive_segments(harness.archive(rows=1))
    stranger = SegmentReader(harness.store(), NODE, NodeKey.generate(harness.clock).public)
    with pytest.raises(ArchiveError, match="not signed by this node"):
        stranger.read_stretch("first", "b", 0, 1)


def test_an_event_is_found_with_what_refers_to_it(
    harness: ArchiveHarness, reader: SegmentReader
) -> None:
    message = harness.message(to_node_id="b")
    harness.group(harness.message(), message)
    harness.clock.advance(30 * HOUR)
    harness.group(harness.ack(message, Receipt(status="processed", outcome="ok")))
    harness.clock.advance(2 * HOUR)
    harness.archive_segments(harness.archive(bodies=False))
    assert len(list(harness.root.rglob("*.parquet"))) == 2
    found = reader.find_events(parse_event_id(message.event_id), _never)
    assert [(e.kind, e.outcome) for e in found.events] == [("message", None), ("ack", "ok")]
    assert found.complete
    assert reader.find_events(bytes(16), _never).events == []


def test_a_search_that_takes_too_long_says_so(
    harness: ArchiveHarness, reader: SegmentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(harness, *"bb")
    harness.archive_segments(harness.archive(rows=2))
    assert not reader.find_events(bytes(16), lambda: True).complete
    monkeypatch.setattr(segment_reader, "SEARCH_BYTES", 10)
    assert not reader.find_events(bytes(16), _never).complete
