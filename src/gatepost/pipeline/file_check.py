"""Checks the files of segments on executors, before a batch begins."""

from collections.abc import Iterator, Sequence
from typing import Final

from gatepost.errors import ArchiveError
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.jobs.executors import run_on_executors
from gatepost.pipeline.jobs.shares import even_share_rows, pack_shares
from gatepost.pipeline.kernels.facts import FACT_COLUMNS, TEXT_COLUMNS, facts_from_events
from gatepost.pipeline.read_plan import SegmentFile, Slice
from gatepost.pipeline.segment_check import SegmentCheck, check_content
from gatepost.pipeline.transport import Transport

_CHECKED_ROWS: Final = 1_000_000


def check_files(
    transport: Transport, root: str, segments: Sequence[SegmentFile], id_age: int
) -> dict[str, SegmentCheck]:
    """Path → the finding, for every file with a fault or with odd events."""

    def check(share: list[SegmentFile]) -> Iterator[tuple[str, SegmentCheck]]:
        archive = ArchiveReader(root)
        for segment in share:
            found = _check_file(archive, segment, id_age)
            if found != SegmentCheck():
                yield segment.path, found

    return dict(run_on_executors(transport, _share_segments(transport, segments), check))


def read_trial(
    transport: Transport, root: str, segments: Sequence[SegmentFile], id_age: int
) -> dict[str, SegmentCheck]:
    """As `check_files`, but each segment is also read as a batch reads it.

    So an error while reading it is a fault of this segment, and does not end the batch.
    """

    def read(share: list[SegmentFile]) -> Iterator[tuple[str, SegmentCheck]]:
        archive = ArchiveReader(root)
        for segment in share:
            found = _check_file(archive, segment, id_age)
            if found.fault is None and (error := _try_reading(archive, segment, id_age)):
                found = SegmentCheck(f"its events cannot be read: {error}")
            if found != SegmentCheck():
                yield segment.path, found

    return dict(run_on_executors(transport, _share_segments(transport, segments), read))


def _check_file(archive: ArchiveReader, segment: SegmentFile, id_age: int) -> SegmentCheck:
    try:
        return check_content(archive.read_content(segment), segment, id_age)
    except ArchiveError as error:
        return SegmentCheck(error.message)


def _try_reading(archive: ArchiveReader, segment: SegmentFile, id_age: int) -> str | None:
    piece = Slice(segment, segment.first, segment.last)
    try:
        for events in archive.read_tables(piece, FACT_COLUMNS, TEXT_COLUMNS):
            facts_from_events(events, id_age)
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return None


def _share_segments(
    transport: Transport, segments: Sequence[SegmentFile]
) -> list[list[SegmentFile]]:
    rows = sum(each.rows for each in segments)
    return pack_shares(segments, even_share_rows(rows, _CHECKED_ROWS, transport.slots))
