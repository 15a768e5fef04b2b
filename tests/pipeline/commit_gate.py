"""A gate before the commits of a driver, so that a test kills the driver before it is done.

The driver stops before the commit that the gate does not admit, and stays there until the test
admits more. Up to the gate it runs freely: the test may kill it in the middle of its work.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from gatepost.pipeline.delta_tables import CommitResult, TableWrite
from gatepost.pipeline.parquet import WrittenFile

_PAUSE = 0.01


class CommitGate:
    """A file beside the tables with the number of commits that they may have."""

    def __init__(self, tables: Path) -> None:
        self._tables = tables
        self._file = tables.with_name(f"{tables.name}.gate")

    def count_commits(self) -> int:
        """To all tables together, or to the one table that is here."""
        logs = ("_delta_log/*.json", "*/_delta_log/*.json")
        return sum(len(list(self._tables.glob(log))) for log in logs)

    def admit(self, commits: int) -> None:
        """Let the tables have this many commits."""
        written = self._file.with_suffix(".new")
        written.write_text(str(commits))
        written.rename(self._file)

    def open(self) -> None:
        """Admit any number of commits."""
        self._file.unlink(missing_ok=True)

    def is_shut(self) -> bool:
        try:
            return self.count_commits() >= int(self._file.read_text())
        except FileNotFoundError:
            return False

    @contextmanager
    def before_commits(self) -> Iterator[None]:
        """Stop before each commit of this process while the gate is shut."""
        commit = TableWrite.commit

        def commit_admitted(write: TableWrite, files: Sequence[WrittenFile]) -> CommitResult:
            while self.is_shut():
                time.sleep(_PAUSE)
            return commit(write, files)

        with patch.object(TableWrite, "commit", commit_admitted):
            yield
