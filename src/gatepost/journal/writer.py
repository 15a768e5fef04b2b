"""The one writer: a thread that runs operations in groups and commits each group once.

All operations that wait when a group begins go into it. Each runs in its own savepoint, so that
a failing operation undoes only itself. Then follow one COMMIT and one fsync, and only after them
are outcomes delivered. If a group fails as a whole, every operation in it is reported as failed.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import apsw

from gatepost.clock import Clock
from gatepost.errors import GatepostError, InternalError, StorageFailed, Unavailable
from gatepost.journal.facts import save_fact
from gatepost.journal.transaction import STORAGE_ERRORS, Tx, try_operation

log = logging.getLogger(__name__)

T = TypeVar("T")

WriteOperation = Callable[[Tx], Any]
# If the error is not None, the value means nothing.
OutcomeCallback = Callable[[Any, GatepostError | None], None]
JobOutcome = tuple[OutcomeCallback, Any, GatepostError | None]
WriteJob = tuple[WriteOperation, OutcomeCallback]

_PROBE_INTERVAL_SECS = 2.0
_PROBE_BYTES = 65_536
_IDLE_MAX_SECS = 3600.0
_RETRY_DELAY_MS = 1000
_STOPPING_MESSAGE = "the gateway is stopping; try again shortly"


class Participant(Protocol):
    """A component that takes part in every commit group. All calls come from the writer thread."""

    def before_commit(self, tx: Tx) -> None:
        """Add rows that belong to the same transaction."""

    def after_commit(self) -> list[JobOutcome]:
        """Return outcomes to deliver, now that the group is on disk."""

    def rolled_back(self) -> None:
        """Forget the changes `before_commit` made."""

    def next_due(self, tx: Tx) -> int | None:
        """Return when to run a group even if no operation waits (epoch ms), or None."""


class Writer:
    """Owns the writing connection. Calls `deliver` once per group with all its outcomes."""

    def __init__(
        self,
        connection: apsw.Connection,
        clock: Clock,
        deliver: Callable[[list[JobOutcome]], None],
        *,
        participants: tuple[Participant, ...] = (),
        group_max: int = 4096,
        queue_max: int = 65_536,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._deliver = deliver
        self._participants = participants
        self._group_max = group_max
        self._queue_max = queue_max
        self._queue: queue.SimpleQueue[tuple[WriteJob, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_loop, name="journal-writer", daemon=True)
        self._next_due_at: int | None = 0
        self.failure: str | None = None
        self._failed_for_good = False
        self._stopped = False
        self._busy_since: float | None = None
        self.group_count = 0
        self.operation_count = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Commit the waiting operations, then end the thread."""
        self._stopped = True
        self._queue.put(None)
        self._thread.join()
        # Answer operations that were submitted while the thread stopped.
        late = [item[0] for item in _drain_queue(self._queue) if item is not None]
        self._deliver(_refuse_jobs(late, Unavailable(_STOPPING_MESSAGE)))

    def queued_jobs(self) -> int:
        return self._queue.qsize()

    def busy_secs(self) -> float:
        """How long the current commit group has been running; None if none is."""
        since = self._busy_since
        if since is not None:
            return time.monotonic() - since
        # A thread that died unexpectedly never finishes anything.
        has_died = self._thread.ident is not None and not self._thread.is_alive()
        return math.inf if has_died and not self._stopped else 0.0

    def submit(self, operation: WriteOperation, done: OutcomeCallback, weight: int = 1) -> None:
        """Run `operation` in one of the next groups; `weight` counts against `group_max`."""
        if self.failure is not None:
            raise StorageFailed(self.failure)
        if self._stopped:
            raise Unavailable(_STOPPING_MESSAGE)
        if self._queue.qsize() >= self._queue_max:
            raise Unavailable("the journal is behind; try again shortly", retry_after=1.0)
        self._queue.put(((operation, done), weight))

    def _run_loop(self) -> None:
        running = True
        while running:
            jobs, running = self._collect_group()
            self._busy_since = time.monotonic()
            try:
                self._deliver(self.run_group(jobs))
            except Exception:
                log.exception("the outcomes of a commit group could not be delivered")
            self._busy_since = None

    def _collect_group(self) -> tuple[list[WriteJob], bool]:
        jobs: list[WriteJob] = []
        capacity = self._group_max
        try:
            item = self._queue.get(timeout=self.idle_timeout())
            while item is not None:
                jobs.append(item[0])
                capacity -= item[1]
                if capacity <= 0:
                    return jobs, True
                item = self._queue.get_nowait()
        except queue.Empty:
            return jobs, True
        return jobs, False

    def idle_timeout(self) -> float:
        """Return how many seconds to wait for an operation before a group runs without one."""
        if self.failure is not None:
            return _PROBE_INTERVAL_SECS
        if self._next_due_at is None:
            return _IDLE_MAX_SECS
        return min(max((self._next_due_at - self._clock.now()) / 1000, 0.0), _IDLE_MAX_SECS)

    def run_group(self, jobs: list[WriteJob]) -> list[JobOutcome]:
        """Run one transaction. Public so that a simulation can drive it without a thread."""
        if self._failed_for_good:
            return _refuse_jobs(jobs, StorageFailed(self.failure or ""))
        tx = Tx(self._connection, self._clock.now())
        try:
            outcomes = self._run_transaction(tx, jobs)
        except Exception as error:
            return _refuse_jobs(jobs, self._fail_group(tx, error))
        if self.failure is not None:
            log.warning("the journal accepts operations again")
            self.failure = None
        self.group_count += 1
        self.operation_count += len(jobs)
        for participant in self._participants:
            outcomes += participant.after_commit()
        return outcomes

    def _run_transaction(self, tx: Tx, jobs: list[WriteJob]) -> list[JobOutcome]:
        tx.begin()
        if self.failure is not None:
            save_fact(tx, "probe", bytes(_PROBE_BYTES))
        outcomes = [_run_operation(tx, operation, done) for operation, done in jobs]
        for participant in self._participants:
            participant.before_commit(tx)
            tx.run_effects()
        due = [participant.next_due(tx) for participant in self._participants]
        tx.commit()
        self._next_due_at = min((d for d in due if d is not None), default=None)
        return outcomes

    def _fail_group(self, tx: Tx, error: Exception) -> GatepostError:
        """Undo the group; return the error for each of its operations."""
        self._next_due_at = tx.now + _RETRY_DELAY_MS
        undone = self._roll_back(tx)
        if isinstance(error, STORAGE_ERRORS) or not undone:
            self._stop_accepting(error, undone)
            return StorageFailed(self.failure or "")
        log.error("a commit group failed unexpectedly", exc_info=error)
        return InternalError("an internal error; the gateway's log has the details")

    def _roll_back(self, tx: Tx) -> bool:
        try:
            tx.rollback()
        except apsw.Error:
            log.exception("rollback failed")
            return False
        finally:
            for participant in self._participants:
                participant.rolled_back()
        return True

    def _stop_accepting(self, error: Exception, undone: bool) -> None:
        """Refuse operations after a disk error; no operation of the group was reported as done.

        A full disk can be freed, so writing is tried again. After a failed fsync the kernel may
        have dropped dirty pages without a further error, so only a restart helps: it reads the
        file again.
        """
        self._failed_for_good = not (undone and isinstance(error, apsw.FullError))
        advice = "restart the gateway" if self._failed_for_good else "free some space"
        if self.failure is None:
            log.error("the journal stops accepting operations: %s", error)
        self.failure = f"the journal cannot write ({error}); {advice}"


def _drain_queue(items: "queue.SimpleQueue[T]") -> list[T]:
    return [items.get_nowait() for _ in range(items.qsize())]


def _refuse_jobs(jobs: list[WriteJob], error: GatepostError) -> list[JobOutcome]:
    # One exception per job, because each may be raised in a different task.
    return [(done, None, type(error)(error.message)) for _, done in jobs]


def _run_operation(tx: Tx, operation: WriteOperation, done: OutcomeCallback) -> JobOutcome:
    value, error = try_operation(tx, operation)
    if error is None:
        tx.run_effects()
    return done, value, error
