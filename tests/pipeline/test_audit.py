"""An audit finds what was planted, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gatepost.pipeline.audit.rules import RULES
from gatepost.pipeline.jobs.audit import audit, violations
from gatepost.pipeline.synth import FAULTS, Options, Truth, generate

# Whole runs of Spark, on machines that do other things too.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Truth]:
    root = str(tmp_path_factory.mktemp("planted"))
    return root, generate(root, Options(events=12_000, faults=tuple(FAULTS), segment_rows=2000))


def test_every_planted_violation_is_found_and_nothing_else(
    spark: SparkSession, planted: tuple[str, Truth]
) -> None:
    root, truth = planted
    found = violations(spark, root).collect()
    left = list(found)
    for known in truth.violations:
        shown = [row for row in left if row.rule == known.rule and row.node == known.node]
        assert shown, known
        for row in shown:
            inside = range(known.group_first or 0, (known.group_last or 0) + 1)
            assert row.seq is None or row.seq in known.seqs or row.seq in inside, known
            assert row.incarnation == known.incarnation
            assert row.sentence == RULES[row.rule]
            left.remove(row)
    assert left == []
    assert {row.seq for row in found if row.rule == "revoked_node"} == {
        seq for known in truth.violations if known.rule == "revoked_node" for seq in known.seqs
    }


def test_a_right_archive_passes_and_one_flipped_byte_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    root, tables = tmp_path / "archive", str(tmp_path / "tables")
    generate(str(root), Options(events=3000, bodies=True))
    first = audit(spark, str(root), tables)
    assert first.clean
    assert first.events > 2500
    _alter(next(iter(sorted(root.glob("node=*/date=*/*.parquet")))))
    again = audit(spark, str(root), tables)
    assert set(again.violations) == {"altered_segment", "altered_event"}


def _alter(path: Path) -> None:
    """Change one event's bytes, and leave its digest as it was."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path, partitioning=None)
    bodies: list[Any] = table.column("body").to_pylist()
    bodies[0] = bytes([bodies[0][0] ^ 1]) + bodies[0][1:]
    place = table.schema.get_field_index("body")
    pq.write_table(table.set_column(place, "body", pa.array(bodies, pa.binary())), path)
