"""The archiver: writes outbox segments to the archive, and prunes archived events."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import apsw
from msgspec.structs import replace

from gatepost.config import Settings
from gatepost.core.batch_commit import commit_until_none
from gatepost.core.gateway_core import Core
from gatepost.errors import ArchiveError, ConfigError, GatepostError
from gatepost.journal import Tx, outbox_reads

if TYPE_CHECKING:
    from gatepost.archive.outbox_archive import OutboxArchive
    from gatepost.archive.room_facts import RoomFacts

log = logging.getLogger(__name__)

# Returns the highest seq that may be pruned for one reason; None if there is no bound.
SeqBound = Callable[[Tx], int | None]
RoomFactsSource = Callable[[], "RoomFacts | None"]


class OutboxArchiver:
    """Archives in its own thread with its own journal reader, so that no sender waits for it.

    `read` bounds pruning by the events every active subscriber has taken, `closed` by the first
    open delivery. Nothing is pruned beyond either bound.
    """

    def __init__(
        self, core: Core, *, read: SeqBound, closed: SeqBound, facts: RoomFactsSource
    ) -> None:
        self._core = core
        self._collect_facts = facts
        self._written_facts: RoomFacts | None = None
        self._read_bound = read
        self._closed_bound = closed
        self._opened: tuple[apsw.Connection, OutboxArchive] | None = None
        self._stopping = False
        self._compacting = True
        self.archived_through = 0
        # Message of the last failure; None after a success.
        self.problem: str | None = None
        check_archive_settings(core.settings)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Archive due segments until exit. Without `archive.uri` do nothing."""
        if not self._core.settings.archive.uri:
            yield
            return
        thread = ThreadPoolExecutor(1, "archiver")
        work = asyncio.create_task(
            self._core.background.repeat_forever(
                self._core.settings.archive.every_secs,
                lambda: self._archive_once(thread),
                "the outbox was not archived",
            )
        )
        try:
            yield
        finally:
            self._stopping = True
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            # A segment that was begun is finished, without blocking the event loop.
            thread.submit(self._close_reader)
            await asyncio.to_thread(thread.shutdown)

    async def _archive_once(self, thread: ThreadPoolExecutor) -> None:
        try:
            facts = self._collect_facts()
            await asyncio.get_running_loop().run_in_executor(
                thread, self._archive_due_segments, facts
            )
            await self._prune_archived()
        except Exception as error:
            self.problem = error.message if isinstance(error, GatepostError) else str(error)
            raise
        self.problem = None

    # -- in the archiver thread

    def _archive_due_segments(self, facts: "RoomFacts | None") -> None:
        """Archive all due events, one segment at a time, then merge small segments."""
        connection, archive = self._opened or self._open_archive()
        if facts is not None:
            self._write_room_facts(connection, archive, facts)
        while not self._stopping:
            tx = Tx(connection, self._core.clock.now())
            segment = archive.archive_segment(tx)
            self.archived_through = archive.archived_through(tx)
            if segment is None:
                break
            log.info("archived seq %d to %d", segment.first, segment.last)
        if self._compacting:
            self._merge_small_segments(connection, archive)

    def _merge_small_segments(self, connection: apsw.Connection, archive: "OutboxArchive") -> None:
        """Merge small segments. If that fails they stay as they are, and archiving goes on."""
        try:
            while not self._stopping:
                whole = archive.merge_small_segments(Tx(connection, self._core.clock.now()))
                if whole is None:
                    return
                log.info("merged small segments of seq %d to %d", whole.first, whole.last)
        except ArchiveError as error:
            log.warning("small segments stay as they are until the next start: %s", error.message)
            self._compacting = False

    def _write_room_facts(
        self, connection: apsw.Connection, archive: "OutboxArchive", facts: "RoomFacts"
    ) -> None:
        """Write the room's facts beside the segments, if they changed.

        The heads of other outboxes change constantly, so they are written only as often as
        segments.
        """
        from gatepost.archive import room_facts
        from gatepost.archive.service.seen_heads import read_seen_heads

        written, age = self._written_facts, self._core.settings.archive.max_age_secs * 1000
        if (
            written is not None
            and replace(written, at=0, heads=()) == replace(facts, at=0)
            and facts.at - written.at < age
        ):
            return
        facts = replace(facts, heads=read_seen_heads(Tx(connection, facts.at)))
        if written is not None and replace(written, at=0) == replace(facts, at=0):
            return
        room_facts.write_facts(archive.store, room_facts.sign_facts(facts, self._core.node.key))
        self._written_facts = facts

    def _open_archive(self) -> "tuple[apsw.Connection, OutboxArchive]":
        from gatepost.archive.archive_store import ArchiveStore
        from gatepost.archive.outbox_archive import ArchivePolicy, OutboxArchive

        settings, node = self._core.settings.archive, self._core.node
        policy = ArchivePolicy(
            settings.max_rows, int(settings.max_age_secs * 1000), settings.payloads == "encrypted"
        )
        store = ArchiveStore.open(settings.uri)
        archive = OutboxArchive(store, node.id, node.incarnation, node.key, policy)
        self._opened = (self._core.database.open_reader(), archive)
        return self._opened

    def _close_reader(self) -> None:
        if self._opened is not None:
            self._opened[0].close()

    # -- on the event loop

    async def _prune_archived(self) -> None:
        from gatepost.journal.outbox_pruning import prune_outbox

        through, limit = self.archived_through, self._core.settings.journal.sweep_batch
        keep = int(self._core.settings.archive.keep_secs * 1000)

        def prune_batch(tx: Tx) -> int:
            upto = min(through, outbox_reads.last_seq_before(tx, tx.now - keep) or 0)
            return prune_outbox(
                tx, upto, read=self._read_bound, closed=self._closed_bound, limit=limit
            )

        await commit_until_none(self._core, prune_batch)


def check_archive_settings(settings: Settings) -> None:
    """Raise ConfigError at startup, where the operator sees it, if archiving cannot work."""
    if not settings.archive.uri:
        return
    try:
        import pyarrow  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError(
            "archive.uri is set, but pyarrow is not installed:"
            " pip install 'gatepost[archive]', or set archive.uri back to empty"
        ) from None
    from gatepost.archive.archive_store import ArchiveStore

    ArchiveStore.open(settings.archive.uri)
