"""Segments into tables of events, also those that lack columns or cannot be read."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gatepost.errors import ArchiveError
from gatepost.pipeline.archive_reader import ArchiveReader
from gatepost.pipeline.kernels.facts import FACT_COLUMNS, TEXT_COLUMNS, Facts, facts_from_events
from gatepost.pipeline.kernels.lifecycle import build_deliveries
from gatepost.pipeline.read_plan import Slice
from gatepost.pipeline.synth import SynthOptions, generate_archive


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveReader:
    generate_archive(str(tmp_path), SynthOptions(events=600, nodes=3, segment_rows=100))
    return ArchiveReader(str(tmp_path))


def told(archive: ArchiveReader) -> list[Facts]:
    slices = [Slice(s, s.first, s.last) for s in archive.list_segments()]
    tables = [
        table
        for piece in slices
        for table in archive.read_tables(piece, FACT_COLUMNS, TEXT_COLUMNS)
    ]
    return [facts_from_events(table) for table in tables]


def test_what_an_older_archive_lacks_is_null(archive: ArchiveReader) -> None:
    whole = build_deliveries(Facts.join_parts(told(archive)))
    assert whole["decision"].null_count < len(whole)
    for number, segment in enumerate(archive.list_segments()):
        if number % 2:
            path = Path(archive.uri) / segment.path
            rows = pq.ParquetFile(path).read()
            pq.write_table(rows.drop_columns(["route_decision", "eta_seconds"]), path)
    partly = build_deliveries(Facts.join_parts(told(archive)))
    assert partly["event_id"].equals(whole["event_id"])
    assert partly["state"].equals(whole["state"])
    assert whole["decision"].null_count < partly["decision"].null_count < len(whole)


def test_a_segment_that_cannot_be_read_is_named(archive: ArchiveReader) -> None:
    segment = archive.list_segments()[1]
    path = Path(archive.uri) / segment.path
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ArchiveError, match=f"{segment.path} cannot be read: Parquet magic bytes"):
        told(archive)
    path.unlink()
    with pytest.raises(ArchiveError, match=f"{segment.path} cannot be read"):
        told(archive)
