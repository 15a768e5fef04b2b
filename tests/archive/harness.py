"""A journal that fills, and the archive of its outbox."""

from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pyarrow.parquet as pq

from gatepost.archive import manifest
from gatepost.archive.archive_store import ArchiveStore
from gatepost.archive.outbox_archive import ArchivePolicy, OutboxArchive
from gatepost.events import Envelope, EventIdGenerator, NodeKey, Receipt, encode_payload
from gatepost.journal import Tx, Writer, open_memory_journal
from gatepost.journal.outbox import Outbox
from gatepost.journal.writer import WriteJob
from gatepost.testing import ManualClock

NODE = "node-1"
NOW = 1_772_490_600_000  # 2026-03-02 22:30 UTC
HOUR = 3_600_000


class ArchiveHarness:
    def __init__(self, root: Path, connection: apsw.Connection | None = None) -> None:
        self.root = root
        self.clock = ManualClock(NOW)
        self.key = NodeKey.generate(self.clock)
        self.ids = EventIdGenerator(self.clock)
        self.connection = connection or open_memory_journal()
        self.start_incarnation("first")

    @classmethod
    def reopened(cls, root: Path, connection: apsw.Connection) -> "ArchiveHarness":
        """The harness of a journal that is there already; its key is always the same."""
        harness = cls.__new__(cls)
        harness.root, harness.connection, harness.clock = root, connection, ManualClock(NOW)
        harness.key, harness.ids = NodeKey.generate(harness.clock), EventIdGenerator(harness.clock)
        harness.incarnation = "first"
        harness.restart()
        return harness

    def start_incarnation(self, incarnation: str, first: int = 1) -> None:
        """Start an incarnation of the journal at this seq."""
        self.incarnation = incarnation
        self.connection.execute(
            "INSERT INTO incarnation (id, first_seq) VALUES (?, ?)", (incarnation, first)
        )
        self.restart()

    def restart(self) -> None:
        """Restart the gateway."""
        outbox = Outbox(NODE, self.incarnation, self.key)
        self.writer = Writer(self.connection, self.clock, lambda _: None, participants=(outbox,))

    def group(self, *drafts: Envelope) -> None:
        """One commit group."""
        jobs: list[WriteJob] = [(partial(_append, draft), lambda *_: None) for draft in drafts]
        assert not [error for _, _, error in self.writer.run_group(jobs) if error]

    def groups(self, *sizes: int) -> None:
        for size in sizes:
            self.group(*(self.message() for _ in range(size)))

    def message(self, **fields: Any) -> Envelope:
        id = self.ids.next_id()
        given = {"kind": "message", "source_agent_id": "al", "to_agent_id": "bob", "corr_id": id}
        return Envelope(**{"event_id": id, **given, **fields})

    def ack(self, ref: Envelope, receipt: Receipt) -> Envelope:
        return Envelope(
            event_id=self.ids.next_id(),
            kind="ack",
            source_agent_id="bob",
            to_node_id="node-2",
            ref_event_id=ref.event_id,
            payload=encode_payload(receipt),
        )

    def tx(self) -> Tx:
        return Tx(self.connection, self.clock.now())

    def archive(
        self,
        rows: int = 10,
        age: int = HOUR,
        bodies: bool = True,
        store: ArchiveStore | None = None,
    ) -> OutboxArchive:
        store = store or ArchiveStore.open(str(self.root))
        return OutboxArchive(
            store, NODE, self.incarnation, self.key, ArchivePolicy(rows, age, bodies)
        )

    def archive_segments(self, archive: OutboxArchive | None = None) -> list[tuple[int, int]]:
        """Archive all segments that are due; return their ranges."""
        archive = archive or self.archive()
        archived = []
        while segment := archive.archive_segment(self.tx()):
            archived.append((segment.first, segment.last))
        return archived

    def store(self) -> ArchiveStore:
        return ArchiveStore.open(str(self.root))

    def events(self) -> list[dict[str, Any]]:
        """Everything the archive holds, in the order of the manifest."""
        listed = manifest.read_manifest(self.store(), NODE)
        assert listed is not None
        folder = self.root / manifest.node_folder(NODE)
        tables = [pq.ParquetFile(folder / segment.path).read() for segment in listed.segments]
        return pa.concat_tables(tables).to_pylist() if tables else []

    def files(self) -> set[str]:
        return {str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file()}


def _append(draft: Envelope, tx: Tx) -> None:
    tx.append_event(draft)
