"""One gateway without its network: journal, delivery core and blobs, and access to them."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import apsw

from gatepost.clock import Clock, SystemClock
from gatepost.config import Settings, default_node_id
from gatepost.core.background_loops import BackgroundLoops
from gatepost.core.commit_observer import CommitObserver
from gatepost.core.health import GatewayHealth, JournalWatch
from gatepost.core.ledger_counter import LedgerCounter
from gatepost.core.mail_watch import MailWatch
from gatepost.core.mailbox_admission import MailboxAdmission
from gatepost.core.mirror_queue import MirrorQueue
from gatepost.core.own_archive import OwnArchiveReader
from gatepost.core.repeated_warnings import RepeatedWarnings
from gatepost.core.spans import SpanRecorder, create_span_recorder
from gatepost.core.state_dir import StateDir
from gatepost.delivery import LocalNode, RetryPolicy, build_core
from gatepost.delivery.abuse import AbuseKind
from gatepost.delivery.aliases import AgentAliases
from gatepost.delivery.blob_records import keep_uploaded_blob
from gatepost.delivery.inbox.source_quota import SourceLimits
from gatepost.delivery.retention import OutboxBounds
from gatepost.errors import ConfigError, GatepostError
from gatepost.events import Blob, BlobStore, NodeKey
from gatepost.journal import Database, JobOutcome, Tx
from gatepost.journal.facts import add_facts, load_facts
from gatepost.journal.incarnations import add_first_incarnation
from gatepost.mailbox import MailboxPolicy
from gatepost.tasks.capabilities.contract import load_contract_body
from gatepost.tasks.contract_checks.contract_pool import ContractPool
from gatepost.tasks.policy import Policy
from gatepost.tasks.registry import AgentRegistry
from gatepost.tasks.task_engine import TaskEngine
from gatepost.wire.operations import AnyAnswer

log = logging.getLogger(__name__)

T = TypeVar("T")
# The one transaction of an operation.
TransactionPlan = Callable[[Tx], AnyAnswer]


class Core:
    """Opened once per process. All access to storage goes through `commit`, `submit` and `read`."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self._warnings = RepeatedWarnings(self.clock)
        self.state = StateDir(settings.node.state_dir)
        self.state.create_folder()
        self.database = Database.open(self.state.journal, settings.journal.integrity_check)
        try:
            node = self._identify()
        except BaseException:
            self.database.close()
            raise
        self.delivery = delivery = build_core(
            node, retry_policy(settings), mailbox_policy(settings), source_limits(settings)
        )
        self.node = node
        self.agents = delivery.agents
        self.agents.max_agents = settings.limits.max_agents
        self.admission = MailboxAdmission(self.agents, settings.limits.max_mailboxes)
        self.dispatcher = delivery.dispatcher
        self.coordinator = delivery.coordinator
        self.outbox = delivery.outbox
        self.abuse = delivery.abuse
        self.abuse.wake_writer = lambda: self.submit(_do_nothing)
        self.coordinator.observe(on_blob_wanted=self._want_blob)
        cut_off = int(settings.delivery.cut_off_secs * 1000)
        self.bounds = OutboxBounds(node.id, delivery.routes, delivery.incidents, cut_off)
        self.mirror = MirrorQueue()
        self.aliases = AgentAliases(delivery.agents, delivery.routes)
        self.archive = OwnArchiveReader(settings.archive, node)
        self.blobs = BlobStore(self.state.blobs, self.clock, settings.limits.max_blob_bytes)
        self.telemetry: SpanRecorder | None = create_span_recorder(
            settings.telemetry, self.node.id, self.clock
        )
        self.ledger = LedgerCounter(self.read, self.clock)
        self.mail_watch = MailWatch(delivery.dispatcher)
        self.observer = CommitObserver(delivery, self.telemetry)
        self.on_blob_wanted: Callable[[str, str], None] = _fetch_later
        self.background = BackgroundLoops(self._report_failing_loop)
        self.health = GatewayHealth(self.clock)
        self.health.add_check(self._find_problems)
        self.registry, self.policy = AgentRegistry(), Policy()
        self.tasks = TaskEngine(delivery, self.registry, self.policy, settings.hub)
        self.contracts = ContractPool(self.clock, self._load_contract, self._report_slow_contract)
        self.writer = delivery.build_writer(
            self.database.writer_connection,
            self._deliver_outcomes,
            self.tasks.parts.changes,
            self.mail_watch,
            self.observer,
            group_max=settings.journal.group_max,
        )
        # Set when the gateway is to stop and start again, to serve under another node id.
        self.restart_wanted = asyncio.Event()
        self.journal_watch = JournalWatch(self.writer, settings.journal.stall_secs)
        self._loop: asyncio.AbstractEventLoop
        self._readers = ThreadPoolExecutor(2, "journal-reader")
        self.storers = ThreadPoolExecutor(16, "blob-writer")
        self._local = threading.local()

    def _identify(self) -> LocalNode:
        tx = Tx(self.database.writer_connection, self.clock.now())
        facts = load_facts(tx)
        id, key = self._choose_node_id(facts), self._load_key(facts)
        incarnation = facts.get("incarnation") or self.clock.random(8).hex()
        add_facts(tx, {"node_id": id, "incarnation": incarnation, "public_key": key.public})
        add_first_incarnation(tx, incarnation)
        return LocalNode(id, incarnation, key, self.clock)

    def _choose_node_id(self, facts: dict[str, Any]) -> str:
        """Return the journal's node id; raise ConfigError if the settings name another."""
        wanted: str = self.settings.node.id
        known: str = facts.get("node_id") or wanted or default_node_id()
        if wanted not in {"", known}:
            raise ConfigError(
                f"this state directory belongs to node {known!r}, not {wanted!r};"
                " set node.id back or choose another state_dir"
            )
        return known

    def _load_key(self, facts: dict[str, Any]) -> NodeKey:
        """Return the node key; raise ConfigError if it is not the one of the journal."""
        if "node_id" in facts:
            self.state.require_node_key()
        key = self.state.load_node_key(self.clock)
        if facts.get("public_key", key.public) != key.public:
            raise ConfigError(
                f"{self.state.key} is not the key of the journal beside it; put the right key back,"
                " or restore both from a backup (`gatepost restore FILE`)"
            )
        return key

    def _find_problems(self) -> list[str]:
        failing = [f"{failure}: {error}" for failure, error in self.background.failing.items()]
        return self.journal_watch.find_problems() + failing

    def _report_failing_loop(self, failure: str, error: str) -> None:
        incidents = self.delivery.incidents
        self.submit(
            lambda tx: incidents.raise_(tx, "background_failure", f"{failure}@{tx.now}", error)
        )

    def _want_blob(self, digest: str, source: str) -> None:
        """Called in the writer's thread."""
        self._loop.call_soon_threadsafe(self.on_blob_wanted, digest, source)

    async def _load_contract(self, digest: str) -> bytes | None:
        return await self.read(lambda tx: load_contract_body(tx, digest))

    def _report_slow_contract(self, source: tuple[str, str], why: str) -> None:
        """Report a slow contract with the node that sent it or its content."""
        bringer, sender = source
        detail = f"contents of {sender} under a contract of {bringer or 'this gateway'}: {why}"
        self.abuse.report_abuse(bringer or sender, AbuseKind.SLOW_CONTRACT, detail)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.mirror.start(Tx(self.database.writer_connection, self.clock.now()), self._loop)
        self.writer.start()

    async def stop(self) -> None:
        await self.contracts.stop()
        await asyncio.to_thread(self.writer.stop)
        if self.telemetry is not None:
            await asyncio.to_thread(self.telemetry.stop)
        self._readers.shutdown()
        self.archive.close()
        self.storers.shutdown()
        self.database.close()

    async def commit(self, operation: Callable[[Tx], T]) -> T:
        """Run `operation` in the next commit group; returns its result once that is on disk."""
        return await self.begin_commit(operation)

    def begin_commit(self, operation: Callable[[Tx], T]) -> "asyncio.Future[T]":
        """Run `operation` in the next commit group, after those that were begun earlier."""
        future: asyncio.Future[T] = self._loop.create_future()
        try:
            self.writer.submit(operation, partial(_resolve_future, future))
        except GatepostError as error:
            future.set_exception(error)
        return future

    def submit(self, operation: Callable[[Tx], object]) -> None:
        """Run `operation` without waiting for it; a failure is logged."""
        try:
            self.writer.submit(operation, self._warn_of_failure)
        except GatepostError as error:
            self._warn_of_failure(None, error)

    def _warn_of_failure(self, value: Any, error: GatepostError | None) -> None:
        if error is not None:
            self._warnings.warn(f"an operation without a caller failed: {error.message}")

    async def save_activity(self) -> None:
        """Save which agents were active; an idle gateway writes nothing."""
        if not (self.agents.has_activity or self.dispatcher.consumed_mailboxes()):
            return

        def save(tx: Tx) -> None:
            self.agents.save_activity(tx, self.dispatcher.consumed_mailboxes())

        await self.commit(save)

    @contextlib.asynccontextmanager
    async def watching_mail(self, mailbox: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set whenever mail may have come; the caller clears it."""
        event = asyncio.Event()

        def join(tx: Tx) -> int:
            self.admission.require_capacity(tx, mailbox)
            return self.mail_watch.join(tx, mailbox, event)

        id = await self.commit(join)
        try:
            yield event
        finally:
            self.submit(lambda _: self.mail_watch.leave(id, event))

    async def store_blob(self, pieces: Iterable[bytes]) -> tuple[Blob, bytes]:
        """Write a blob, in a separate thread while its pieces keep coming."""
        return await self._loop.run_in_executor(self.storers, self.blobs.store_payload, pieces)

    async def keep_payload(self, pieces: Iterable[bytes], uploader: str | None = None) -> Blob:
        """Store a payload as a blob, and its key in the journal."""
        blob, key = await self.store_blob(pieces)
        await self.commit(lambda tx: keep_uploaded_blob(tx, blob, key, uploader))
        return blob

    async def read(self, query: Callable[[Tx], T]) -> T:
        """Run `query` beside the writer, on committed data."""
        return await self._loop.run_in_executor(self._readers, self._run_query, query)

    def _run_query(self, query: Callable[[Tx], T]) -> T:
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self.database.open_reader()
        # A savepoint holds one snapshot for all the statements of a query.
        connection.execute("SAVEPOINT reading")
        try:
            return query(Tx(connection, self.clock.now()))
        finally:
            connection.execute("RELEASE reading")

    def _deliver_outcomes(self, outcomes: list[JobOutcome]) -> None:
        if outcomes:
            self._loop.call_soon_threadsafe(_call_back, outcomes)


def mailbox_policy(settings: Settings) -> MailboxPolicy:
    mailbox = settings.mailbox
    return MailboxPolicy(
        mailbox.max_retries,
        int(mailbox.base_backoff_secs * 1000),
        int(mailbox.inflight_timeout_secs * 1000),
        int(mailbox.ttl_secs * 1000),
        mailbox.max_pending,
        settings.limits.max_body_bytes,
    )


def source_limits(settings: Settings) -> SourceLimits:
    delivery = settings.delivery
    return SourceLimits(delivery.max_held_events, delivery.max_held_bytes)


def retry_policy(settings: Settings) -> RetryPolicy:
    delivery = settings.delivery
    return RetryPolicy(
        int(delivery.accept_timeout_secs * 1000),
        int(delivery.base_backoff_secs * 1000),
        int(delivery.max_backoff_secs * 1000),
        delivery.max_attempts,
        int(delivery.sla_secs * 1000),
        int(settings.mailbox.ttl_secs * 1000),
        int(delivery.abandon_after_days * 86_400_000),
        int(delivery.verdict_wait_secs * 1000),
    )


def _fetch_later(digest: str, source: str) -> None:
    """Does nothing: before the gateway has links, events that need a blob stay held."""


def _do_nothing(tx: Tx) -> None:
    """An empty operation, for a commit group that only its participants need."""


def _call_back(outcomes: list[JobOutcome]) -> None:
    for done, value, error in outcomes:
        try:
            done(value, error)
        except Exception:
            log.exception("an outcome could not be delivered")


def _resolve_future(future: asyncio.Future[Any], value: Any, error: GatepostError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
