"""A process that seals and is killed for it: fills a journal once, then seals it."""

import sys
from pathlib import Path

from gatepost.journal import Database
from tests.archive.desk import Desk

GROUPS, SIZE = 300, 10


def main(folder: Path, to_the_end: bool) -> None:
    database = Database.open(folder / "journal.db")
    full = database.writer_connection.execute("SELECT count(*) FROM outbox").get == GROUPS * SIZE
    if not full:
        fill(database)
    desk = Desk.reopened(folder / "archive", database.writer_connection)
    archive = desk.archive(rows=50, age=0)
    print("sealing", flush=True)
    while archive.archive_segment(desk.tx()):
        pass
    if not to_the_end:
        # Whoever comes too late to kill it while it seals kills it here.
        sys.stdin.read()


def fill(database: Database) -> None:
    desk = Desk(Path("unused"), database.writer_connection)
    for _ in range(GROUPS):
        desk.groups(SIZE)


if __name__ == "__main__":
    main(Path(sys.argv[1]), len(sys.argv) > 2)
