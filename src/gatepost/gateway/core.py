"""One gateway without its doors: journal, mailboxes, messages, blobs, and the way into them."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import apsw

from gatepost.clock import Clock, SystemClock
from gatepost.config import Settings
from gatepost.delivery import Agents, Messages, Node, Patience
from gatepost.delivery.retention import Bounds
from gatepost.errors import ConfigError, GatepostError
from gatepost.events import Blob, BlobStore
from gatepost.gateway.monitoring.observer import CommitObserver
from gatepost.gateway.monitoring.spans import SpanRecorder, create_span_recorder
from gatepost.gateway.state_dir import StateDir
from gatepost.journal import Database, JobOutcome, Tx, Writer
from gatepost.journal.outbox import Outbox
from gatepost.mailbox import Dispatcher, MailboxPolicy

log = logging.getLogger(__name__)

T = TypeVar("T")


class Core:
    """Opened once per process. `commit` and `read` are how everything else reaches storage."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.state = StateDir(settings.node.state_dir)
        self.state.create_folder()
        self.database = Database.open(self.state.journal, settings.journal.integrity_check)
        try:
            self.node = self._identify()
        except BaseException:
            self.database.close()
            raise
        self.agents = Agents()
        self.messages = Messages(self.node, self.agents, patience_of(settings), self._want_blob)
        self.dispatcher = Dispatcher(self.clock, policy_of(settings), self.messages.close)
        self.messages.dispatcher = self.dispatcher
        cut_off = int(settings.delivery.cut_off_secs * 1000)
        self.bounds = Bounds(self.node.id, self.messages.sender, self.messages.incidents, cut_off)
        self.blobs = BlobStore(self.state.blobs, self.clock, settings.limits.max_blob_bytes)
        self.outbox = Outbox(self.node.id, self.node.incarnation, self.node.key)
        self.telemetry: SpanRecorder | None = create_span_recorder(
            settings.telemetry, self.node.id, self.clock
        )
        self.observer = CommitObserver(self.messages, self.telemetry)
        self.on_blob_wanted: Callable[[str, str], None] = _nobody_fetches
        self.writer = Writer(
            self.database.writer_connection,
            self.clock,
            self._deliver,
            participants=(self.dispatcher, self.messages, self.outbox, self.observer),
            group_max=settings.journal.group_max,
        )
        self._loop: asyncio.AbstractEventLoop
        self._readers = ThreadPoolExecutor(2, "journal-reader")
        self.storers = ThreadPoolExecutor(16, "blob-writer")
        self._local = threading.local()

    def _identify(self) -> Node:
        rows: Any = self.database.writer_connection.execute(
            "SELECT name, value FROM fact"
        ).fetchall()
        facts = dict(rows)
        id = self.settings.node.id
        if (known := facts.get("node_id", id)) != id:
            raise ConfigError(
                f"this state directory belongs to node {known!r}, not {id!r};"
                " set node.id back or choose another state_dir"
            )
        incarnation = facts.get("incarnation") or self.clock.random(8).hex()
        self.database.writer_connection.execute(
            "INSERT OR IGNORE INTO fact (name, value) VALUES ('node_id', ?), ('incarnation', ?)",
            (id, incarnation),
        )
        self.database.writer_connection.execute(
            "INSERT OR IGNORE INTO incarnation (id, first_seq) VALUES (?, 1)", (incarnation,)
        )
        return Node(id, incarnation, self.state.load_node_key(self.clock), self.clock)

    def _want_blob(self, digest: str, source: str) -> None:
        """Called in the writer's thread."""
        self._loop.call_soon_threadsafe(self.on_blob_wanted, digest, source)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.writer.start()

    async def stop(self) -> None:
        await asyncio.to_thread(self.writer.stop)
        if self.telemetry is not None:
            await asyncio.to_thread(self.telemetry.stop)
        self._readers.shutdown()
        self.storers.shutdown()
        self.database.close()

    async def commit(self, operation: Callable[[Tx], T]) -> T:
        """Run `operation` in the next commit group; returns once it is on disk."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.writer.submit(operation, partial(_resolve, future))
        return await future

    def submit(self, operation: Callable[[Tx], object]) -> None:
        """Run `operation` though nobody waits for it; a failure is logged."""
        try:
            self.writer.submit(operation, _log_failure)
        except GatepostError as error:
            _log_failure(None, error)

    async def store(self, pieces: Iterable[bytes]) -> tuple[Blob, bytes]:
        """Write a blob, in a thread of its own for as long as its pieces take to come."""
        return await self._loop.run_in_executor(self.storers, self.blobs.store_payload, pieces)

    async def read(self, query: Callable[[Tx], T]) -> T:
        """Run `query` beside the writer, on what is committed."""
        return await self._loop.run_in_executor(self._readers, self._read, query)

    def _read(self, query: Callable[[Tx], T]) -> T:
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self.database.open_reader()
        # A savepoint holds one snapshot for all the statements of a query.
        connection.execute("SAVEPOINT reading")
        try:
            return query(Tx(connection, self.clock.now()))
        finally:
            connection.execute("RELEASE reading")

    def _deliver(self, outcomes: list[JobOutcome]) -> None:
        if outcomes:
            self._loop.call_soon_threadsafe(_tell, outcomes)


def policy_of(settings: Settings) -> MailboxPolicy:
    mailbox = settings.mailbox
    return MailboxPolicy(
        mailbox.max_retries,
        int(mailbox.base_backoff_secs * 1000),
        int(mailbox.inflight_timeout_secs * 1000),
        int(mailbox.ttl_secs * 1000),
        mailbox.max_pending,
    )


def patience_of(settings: Settings) -> Patience:
    delivery = settings.delivery
    return Patience(
        int(delivery.accept_timeout_secs * 1000),
        int(delivery.base_backoff_secs * 1000),
        int(delivery.max_backoff_secs * 1000),
        delivery.max_attempts,
        int(delivery.sla_secs * 1000),
        int(settings.mailbox.ttl_secs * 1000),
    )


def _nobody_fetches(digest: str, source: str) -> None:
    """Until the gateway has links, nothing can be fetched; what waits for it is held."""


def _tell(outcomes: list[JobOutcome]) -> None:
    for done, value, error in outcomes:
        try:
            done(value, error)
        except Exception:
            log.exception("an outcome could not be delivered")


def _log_failure(value: Any, error: GatepostError | None) -> None:
    if error is not None:
        log.warning("an operation nobody waited for failed: %s", error.message)


def _resolve(future: asyncio.Future[Any], value: Any, error: GatepostError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
