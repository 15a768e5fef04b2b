from pathlib import Path

import pytest

from tests.archive.harness import ArchiveHarness


@pytest.fixture
def harness(tmp_path: Path) -> ArchiveHarness:
    return ArchiveHarness(tmp_path / "archive")
