"""A process that archives an outbox and is killed: fills a journal once, then archives it."""

import sys
from pathlib import Path

from gatepost.journal import Database
from tests.archive.harness import ArchiveHarness

GROUPS, SIZE = 300, 10


def main(folder: Path, to_the_end: bool) -> None:
    database = Database.open(folder / "journal.db")
    full = database.writer_connection.execute("SELECT count(*) FROM outbox").get == GROUPS * SIZE
    if not full:
        fill(database)
    harness = ArchiveHarness.reopened(folder / "archive", database.writer_connection)
    archive = harness.archive(rows=50, age=0)
    print("archiving", flush=True)
    while archive.archive_segment(harness.tx()):
        pass
    if not to_the_end:
        # A killer that comes too late finds it here.
        sys.stdin.read()


def fill(database: Database) -> None:
    harness = ArchiveHarness(Path("unused"), database.writer_connection)
    for _ in range(GROUPS):
        harness.groups(SIZE)


if __name__ == "__main__":
    main(Path(sys.argv[1]), len(sys.argv) > 2)
