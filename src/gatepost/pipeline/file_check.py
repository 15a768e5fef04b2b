"""Checks the files of segments on executors, before a batch begins."""

from collections.abc import Iterator, Sequence
from typing import Final

from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.jobs.shares import even_share_rows, pack_shares
from gatepost.pipeline.kernels.facts import FACT_COLUMNS, TEXT_COLUMNS
from gatepost.pipeline.read_plan import SegmentFile
from gatepost.pipeline.transport import RESULT_PART, PartBlock, Transport

_CHECKED_ROWS: Final = 1_000_000


def check_files(
    transport: Transport, root: str, segments: Sequence[SegmentFile]
) -> Iterator[tuple[str, str]]:
    """(path, reason) of every file that is not the listed one, or cannot be read."""

    def check(share: list[SegmentFile]) -> Iterator[PartBlock]:
        archive = ArchiveReader(root)
        for segment in share:
            if (reason := archive.find_fault(segment, FACT_COLUMNS, TEXT_COLUMNS)) is not None:
                yield RESULT_PART, f"{segment.path}\n{reason}".encode()

    rows = sum(each.rows for each in segments)
    share_rows = even_share_rows(rows, _CHECKED_ROWS, transport.slots)
    for found in transport.run(pack_shares(segments, share_rows), check):
        path, _, reason = found.decode().partition("\n")
        yield path, reason
