"""One gateway of a simulated mesh: its real journal and core, without sockets or threads.

It can lose power at any commit, run out of disk, have its clock set, be restored from a backup, and
be destroyed.
"""

import shutil
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Literal

import apsw
from msgspec import Struct

from gatepost.config.hub_settings import HubSettings
from gatepost.delivery import LocalNode, RetryPolicy, build_core, restore
from gatepost.delivery.agents import MAX_AGENTS
from gatepost.delivery.assembly import DeliveryCore
from gatepost.errors import GatepostError, StorageFailed
from gatepost.events import NodeKey
from gatepost.journal import Database, JobOutcome, Tx, Writer
from gatepost.journal.writer import WriteOperation
from gatepost.links.blob_ports import FetchLimits
from gatepost.links.peer_links import PeerLinkSettings
from gatepost.links.relay_reader import RelayRetry
from gatepost.mailbox import MailboxPolicy
from gatepost.room.records import SkillRef
from gatepost.tasks.policy import Policy
from gatepost.tasks.registry import AgentRegistry
from gatepost.tasks.task_changes import TaskChanges
from gatepost.tasks.task_engine import TaskEngine
from gatepost.tasks.task_routing import CapabilityEntry
from gatepost.tasks.task_table import Task
from simulation.gateways.virtual_time import SimulatedClock, VirtualLoop, VirtualTimer

SubmitDone = Callable[[Any, GatepostError | None], None]
CrashMoment = Literal["before", "after"]

# How far a restored room record leaps ahead; there is none here.
_LEAP = 1
_SWEEP_MS = 1_000


# A capability whose tasks are tried again if their executor is lost.
RETRIED = CapabilityEntry(
    id="retried",
    version="1",
    owner_agent="a0",
    delegation_skill=SkillRef(ref="ask", version="1"),
    executor_skill_version="1",
    default_eta_secs=5,
    is_active=True,
    eligible=(),
    policy_version=1,
    max_attempts=3,
)


class PowerCut(BaseException):
    """Raised where the power goes. It is no Exception, because nothing may handle it."""


class SimulatedSettings(Struct, frozen=True):
    """The settings of all gateways of a mesh, with times about ten times shorter than usual."""

    retries: RetryPolicy = RetryPolicy(
        accept_timeout=2_000,
        base_backoff=300,
        max_backoff=5_000,
        max_attempts=15,
        sla=15_000,
        ttl=600_000,
        # Longer than clocks jump.
        abandon_after=240_000,
        # Longer than any fault but the loss of a gateway: no sender is told half the truth.
        verdict_wait=150_000,
    )
    policy: MailboxPolicy = MailboxPolicy(
        max_retries=3, base_backoff=300, inflight_timeout=4_000, ttl=600_000, max_pending=1_000
    )
    window: int = 1 << 20
    group_ms: int = 3
    # Small pieces, so that small blobs take several requests.
    fetch: FetchLimits = FetchLimits(
        max_bytes=1 << 20,
        piece_bytes=700,
        answer_ms=1_500,
        first_backoff_ms=100,
        max_backoff_ms=2_000,
    )
    relay_retry: RelayRetry = RelayRetry(first_ban_ms=500, max_ban_ms=4_000, next_relay_ms=500)
    replica_keep_ms: int = 15_000
    prune_every_ms: int = 5_000
    resume_every_ms: int = 15_000
    # Without these, gateways have no hub, and nobody creates tasks.
    hub: HubSettings | None = None

    def link_settings(self) -> PeerLinkSettings:
        return PeerLinkSettings(
            self.window,
            self.fetch,
            self.relay_retry,
            self.replica_keep_ms,
            self.prune_every_ms,
            self.resume_every_ms,
        )


class PendingCall(Struct):
    """`done` is called with the outcome; `lost` instead, if the gateway crashes before."""

    operation: WriteOperation
    done: SubmitDone
    lost: Callable[[], None]


class SimulatedGateway:
    """`up` while it runs. `on_up` and `on_down` are called when that changes, `on_appended` with
    the incarnation and last seq of every commit group on disk.
    """

    def __init__(
        self, loop: VirtualLoop, folder: Path, id: str, seed: int, settings: SimulatedSettings
    ) -> None:
        self.id = id
        self.loop = loop
        self.settings = settings
        self.clock = SimulatedClock(loop, f"{seed}/{id}")
        self.key = NodeKey.generate(self.clock)
        self.path = folder / id / "journal.db"
        self.blob_folder = folder / id / "blobs"
        self.backbone: frozenset[str] = frozenset()
        self.disk_is_full = False
        self.on_blob_wanted: Callable[[str, str], None] = lambda digest, source: None
        self.backups: list[Path] = []
        self.up = False
        self.destroyed = False
        self.commits = 0
        self.on_up: list[Callable[[], None]] = []
        self.on_down: list[Callable[[], None]] = []
        self.on_appended: Callable[[str, int], None] = lambda incarnation, last: None
        self.hub = SimulatedHub(self)
        self._random = Random(f"{seed}/{id}/groups")
        self._queue: list[PendingCall] = []
        self._running: list[PendingCall] = []
        self._group: VirtualTimer | None = None
        self._wake: VirtualTimer | None = None
        self._cut_at: CrashMoment | None = None
        self._frozen_until = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_empty_journal(), self.path)

    # -- start, crash, restore

    def start(self) -> None:
        """Start, unless the machine is gone for good."""
        if self.destroyed:
            return
        self.disk_is_full = False
        self._database = Database.open(self.path, "off")
        self.connection = self._database.writer_connection
        self.node = self._identify()
        core = build_core(self.node, self.settings.retries, self.settings.policy)
        self.agents = core.agents
        self.dispatcher = core.dispatcher
        self.coordinator = core.coordinator
        self.coordinator.observe(on_blob_wanted=self._want_blob)
        self.outbox = core.outbox
        watch = CommitWatch(self, self.node.incarnation)
        hub = self.hub.build_engine(core)
        self.writer = core.build_writer(self.connection, _deliver_nothing, *hub, watch)
        self.up = True
        for hear in self.on_up:
            hear()
        self._plan_group(0)

    def _identify(self) -> LocalNode:
        row = self.connection.execute("SELECT value FROM fact WHERE name = 'incarnation'")
        found: Any = row.fetchone()
        incarnation = found[0] if found else _begin_incarnation(self)
        return LocalNode(self.id, str(incarnation), self.key, self.clock)

    def crash(self) -> None:
        """Lose power, with everything that was not committed."""
        if not self.up:
            return
        self.up = False
        self._cut_at = None
        for timer in (self._group, self._wake):
            if timer is not None:
                timer.cancel()
        self._group = self._wake = None
        lost, self._queue, self._running = self._running + self._queue, [], []
        self._database.close()
        for hear in self.on_down:
            hear()
        for call in lost:
            call.lost()

    def destroy(self) -> None:
        """The machine burns down. Its disk is still there for the checker."""
        self.crash()
        self.destroyed = True

    def crash_at_commit(self, moment: CrashMoment) -> None:
        """Lose power in the next group that has work: just before it is on disk, or just after."""
        self._cut_at = moment

    def cancel_crash(self) -> None:
        self._cut_at = None

    def back_up(self) -> None:
        """Keep a copy of the journal as it is now."""
        copy = self.path.with_name(f"backup{len(self.backups)}.db")
        target = apsw.Connection(str(copy))
        with target.backup("main", self.connection, "main") as backup:
            backup.step()
        target.close()
        self.backups.append(copy)

    def restore(self, backup: Path) -> None:
        """Crash, and put the backup in place under a new incarnation. `start` it afterwards."""
        self.crash()
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        shutil.copy(backup, self.path)
        _begin_restored_incarnation(self, self.clock.random(8).hex())

    def freeze(self, ms: int) -> None:
        """The process stands still, as one that was stopped or swapped out. Frames wait for it."""
        self._frozen_until = self.loop.now + ms

    def fill_disk(self) -> None:
        """From now on the journal cannot grow."""
        self.disk_is_full = True
        self.connection.pragma("max_page_count", 1)

    def free_disk(self) -> None:
        self.disk_is_full = False
        if self.up:
            self.connection.pragma("max_page_count", 1 << 30)

    # -- the gateway as its links see it

    def now(self) -> int:
        return self.clock.now()

    def uptime(self) -> int:
        return self.loop.now

    def commit(self, operation: WriteOperation, done: SubmitDone, weight: int = 1) -> None:
        self.submit(operation, done)

    def is_backbone(self, node: str) -> bool:
        return node in self.backbone

    def _want_blob(self, digest: str, source: str) -> None:
        """Called inside a commit group; the fetch starts after it."""
        self.loop.call_after(0, lambda: self.up and self.on_blob_wanted(digest, source))

    # -- operations

    def submit(
        self, operation: WriteOperation, done: SubmitDone, lost: Callable[[], None] = lambda: None
    ) -> None:
        """Run `operation` in the next commit group."""
        if not self.up:
            lost()
        elif self.writer.failure is not None:
            error = StorageFailed(self.writer.failure)
            self.loop.call_after(1, lambda: done(None, error))
        else:
            self._queue.append(PendingCall(operation, done, lost))
            self._plan_group(self._random.randint(1, self.settings.group_ms))

    def run_now(self, operation: WriteOperation) -> Any:
        """Run `operation` at once, in one group with all waiting operations; return its outcome."""
        results: list[tuple[Any, GatepostError | None]] = []
        self.submit(operation, lambda value, error: results.append((value, error)))
        self._run_group()
        return _unwrap_outcome(results)

    def query(self, sql: str, *params: Any) -> list[Any]:
        return self.connection.execute(sql, params).fetchall()

    def pending_work(self) -> int:
        """How many operations wait, and one more while the journal cannot write."""
        return len(self._queue) + (self.writer.failure is not None)

    def _plan_group(self, ms: int) -> None:
        if self._group is None:
            self._group = self.loop.call_after(ms, self._run_group)

    def _run_group(self) -> None:
        if self._group is not None:
            self._group.cancel()
            self._group = None
        if self.loop.now < self._frozen_until:
            self._plan_group(self._frozen_until - self.loop.now)
            return
        self._running, self._queue = self._queue, []
        cut = self._cut_at if self._running else None
        try:
            jobs = [(call.operation, call.done) for call in self._running]
            outcomes = self.writer.run_group(jobs)
            if cut == "after":
                raise PowerCut
        except PowerCut:
            self.crash()
            return
        self._running = []
        self.commits += 1
        self._deliver_outcomes(outcomes)
        if self.up:
            self._plan_wake()

    def _deliver_outcomes(self, outcomes: list[JobOutcome]) -> None:
        for done, value, error in outcomes:
            if self.up:
                done(value, error)

    def _plan_wake(self) -> None:
        """Run a group when the core is due, as the writer's thread would."""
        if self._wake is not None:
            self._wake.cancel()
        wait = int(self.writer.idle_timeout() * 1000)
        self._wake = self.loop.call_after(max(wait, 1), self._run_group)

    def about_to_commit(self) -> None:
        if self._cut_at == "before" and self._running:
            raise PowerCut


class SimulatedHub:
    """The hub of a simulated gateway. It runs the agents in `definitions`: file → content.

    `listeners` are called with every change of a task. `catalog` are the capabilities that its room
    shows.
    """

    engine: TaskEngine

    def __init__(self, gateway: SimulatedGateway) -> None:
        self._gateway = gateway
        self.listeners: list[Callable[[Task], None]] = []
        self.definitions: dict[str, bytes] = {}
        self.catalog: dict[str, CapabilityEntry] = {RETRIED.id: RETRIED}
        self._distributes = False

    def build_engine(self, core: DeliveryCore) -> list[TaskChanges]:
        """The engine, if this mesh has tasks; returns its part in commit groups."""
        if self._gateway.settings.hub is None:
            return []
        self.engine = TaskEngine(core, AgentRegistry(), Policy(), self._gateway.settings.hub)
        parts = self.engine.parts
        parts.router.capabilities = self.catalog
        parts.changes.on_changed = self._tell_listeners
        self.load_agents()
        self._gateway.loop.call_after(_SWEEP_MS, partial(self._sweep, self.engine))
        return [parts.changes]

    def show_capabilities(self, entries: Iterable[CapabilityEntry]) -> None:
        """The room has these capabilities too from now on."""
        self.catalog = self.catalog | {entry.id: entry for entry in entries}
        self.engine.parts.router.capabilities = self.catalog

    def begin_distribution(self) -> None:
        """From now on this gateway looks for skills to distribute, as its service does."""
        self._distributes = True

    def end_distribution(self) -> None:
        self._distributes = False

    def load_agents(self) -> None:
        registry = self.engine.parts.registry
        registry.load_files(self.definitions)
        self._gateway.agents.hub_run = frozenset(registry.agents)

    def _tell_listeners(self, task: Task) -> None:
        for hear in self.listeners:
            hear(task)

    def _sweep(self, engine: TaskEngine) -> None:
        """End the tasks whose executors are lost, as the hub's service does, until a crash."""
        if self._gateway.up and self.engine is engine:
            for look in (
                engine.report_requests.ask_of_silent_tasks,
                engine.requested.end_lost_tasks,
                engine.reports.end_silent_tasks,
                engine.session_tasks.revoke_stray_tokens,
                engine.session_tasks.end_stray_tasks,
            ):
                self._gateway.submit(look, lambda value, error: None)
            if self._distributes:
                self._gateway.submit(engine.skills.distribute, lambda value, error: None)
            self._gateway.loop.call_after(_SWEEP_MS, partial(self._sweep, engine))


class CommitWatch:
    """The last participant of every group: it reports appended events, or cuts the power."""

    def __init__(self, gateway: SimulatedGateway, incarnation: str) -> None:
        self._gateway = gateway
        self._life = incarnation
        self._last = 0

    def before_commit(self, tx: Tx) -> None:
        self._last = 0
        if tx.appended_drafts:
            ((self._last,),) = tx.fetch_all("SELECT max(last_seq) FROM head")

    def next_due(self, tx: Tx) -> int | None:
        self._gateway.about_to_commit()
        return None

    def after_commit(self) -> list[JobOutcome]:
        if self._last:
            self._gateway.on_appended(self._life, self._last)
        return []

    def rolled_back(self) -> None:
        self._last = 0


def _begin_incarnation(gateway: SimulatedGateway) -> str:
    incarnation = gateway.clock.random(8).hex()
    with gateway.connection:
        gateway.connection.execute(
            "INSERT INTO incarnation (id, first_seq) VALUES (?, 1)", (incarnation,)
        )
        facts = "INSERT INTO fact (name, value) VALUES ('node_id', ?), ('incarnation', ?)"
        gateway.connection.execute(facts, (gateway.id, incarnation))
    return incarnation


def _begin_restored_incarnation(gateway: SimulatedGateway, incarnation: str) -> None:
    """Begin the incarnation and quarantine mail that the lost journal may have dealt with."""
    database = Database.open(gateway.path, "off")
    node = LocalNode(gateway.id, incarnation, gateway.key, gateway.clock)
    core = build_core(node, gateway.settings.retries, gateway.settings.policy)
    part = (core.outbox, CommitWatch(gateway, incarnation))
    settings = gateway.settings.hub
    hub = None if settings is None else TaskEngine(core, AgentRegistry(), Policy(), settings)
    bare = Writer(database.writer_connection, gateway.clock, _deliver_nothing)
    writer = Writer(database.writer_connection, gateway.clock, _deliver_nothing, participants=part)
    run_operation(bare, lambda tx: restore.begin_incarnation(tx, incarnation, _LEAP))
    while run_operation(writer, lambda tx: restore.quarantine(tx, core, 1000)):
        pass
    while hub is not None and run_operation(writer, hub.restored.end_restored_tasks):
        pass
    database.close()


@cache
def _template() -> TemporaryDirectory[str]:
    """A migrated, empty journal, made once: migrating takes longer than copying."""
    folder = TemporaryDirectory(prefix="gatepost-simulation-")
    Database.open(Path(folder.name) / "journal.db", "off").close()
    return folder


def _empty_journal() -> Path:
    return Path(_template().name) / "journal.db"


def run_operation(writer: Writer, operation: WriteOperation) -> Any:
    """One group with one operation; its outcome."""
    results: list[tuple[Any, GatepostError | None]] = []
    outcomes = writer.run_group([(operation, lambda value, error: results.append((value, error)))])
    for done, value, error in outcomes:
        done(value, error)
    return _unwrap_outcome(results)


def _unwrap_outcome(results: list[tuple[Any, GatepostError | None]]) -> Any:
    ((value, error),) = results
    if error is not None:
        raise error
    return value


def _deliver_nothing(outcomes: list[JobOutcome]) -> None:
    """Without a thread there is nobody to deliver to."""


def make_room(gateway: SimulatedGateway) -> None:
    """More agents fit again."""
    if gateway.up:
        gateway.agents.max_agents = MAX_AGENTS
