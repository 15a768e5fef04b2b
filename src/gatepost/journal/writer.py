"""The one writer: a thread that runs operations in groups and commits each group once.

Whatever waits when a group begins goes into it. Each operation runs in its own savepoint, so one
that fails undoes only itself; then one COMMIT, one fsync, and only after it does anyone hear
of the outcome. A group whose COMMIT fails is heard of as failed, whole.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import apsw

from gatepost.clock import Clock
from gatepost.errors import GatepostError, Internal, StorageFailed, Unavailable
from gatepost.journal.tx import Tx

log = logging.getLogger(__name__)

Operation = Callable[[Tx], Any]
# Exactly one of value and error means something: the error, when it is not None.
Done = Callable[[Any, GatepostError | None], None]
Outcome = tuple[Done, Any, GatepostError | None]
Job = tuple[Operation, Done]

_PROBE_EVERY = 2.0
_PROBE = "INSERT OR REPLACE INTO fact VALUES ('probe', zeroblob(65536))"
_IDLE_MAX = 3600.0


class Participant(Protocol):
    """Something that has a say in every commit group. All calls come from the writer thread."""

    def before_commit(self, tx: Tx) -> None:
        """Add what must be part of the same transaction."""

    def after_commit(self) -> list[Outcome]:
        """What others may hear of, now that it is on disk."""

    def rolled_back(self) -> None:
        """Forget what before_commit did."""

    def next_due(self, tx: Tx) -> int | None:
        """When to be called again, if nothing else happens (epoch ms)."""


class Writer:
    """Owns the writing connection. `deliver` is called once per group with all its outcomes."""

    def __init__(
        self,
        connection: apsw.Connection,
        clock: Clock,
        deliver: Callable[[list[Outcome]], None],
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
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="journal-writer", daemon=True)
        self._due: int | None = 0
        self.failure: str | None = None
        self._final = False
        self.groups = 0
        self.operations = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Commit what waits, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def waiting(self) -> int:
        return self._queue.qsize()

    def submit(self, operation: Operation, done: Done) -> None:
        if self.failure is not None:
            raise StorageFailed(self.failure)
        if self._queue.qsize() >= self._queue_max:
            raise Unavailable("the journal is behind; try again shortly", retry_after=1.0)
        self._queue.put((operation, done))

    def wake(self) -> None:
        """Run a group even if nothing waits, so that participants look at the clock."""
        self._queue.put((lambda tx: None, _ignore))

    def _loop(self) -> None:
        running = True
        while running:
            jobs, running = self._collect()
            try:
                self._deliver(self.run_group(jobs))
            except Exception:
                log.exception("the journal's writer met an error and goes on")

    def _collect(self) -> tuple[list[Job], bool]:
        jobs: list[Job] = []
        try:
            job = self._queue.get(timeout=self._patience())
            while job is not None:
                jobs.append(job)
                if len(jobs) >= self._group_max:
                    return jobs, True
                job = self._queue.get_nowait()
        except queue.Empty:
            return jobs, True
        return jobs, False

    def _patience(self) -> float:
        if self.failure is not None:
            return _PROBE_EVERY
        if self._due is None:
            return _IDLE_MAX
        return min(max((self._due - self._clock.now()) / 1000, 0.0), _IDLE_MAX)

    def run_group(self, jobs: list[Job]) -> list[Outcome]:
        """One transaction. Public so that a simulation can drive it without a thread."""
        tx = Tx(self._connection, self._clock.now())
        if self._final:
            return _refuse(jobs, self.failure or "")
        try:
            outcomes = self._transact(tx, jobs)
        except apsw.Error as error:
            self._fail(tx, error)
            return _refuse(jobs, self.failure or "")
        if self.failure is not None:
            log.warning("the journal accepts again")
            self.failure = None
        self.groups += 1
        self.operations += len(jobs)
        return outcomes

    def _transact(self, tx: Tx, jobs: list[Job]) -> list[Outcome]:
        tx.begin()
        if self.failure is not None:
            tx.run(_PROBE)
        outcomes = [_attempt(tx, operation, done) for operation, done in jobs]
        tx.settle()
        for participant in self._participants:
            participant.before_commit(tx)
        due = [participant.next_due(tx) for participant in self._participants]
        tx.commit()
        self._due = min((d for d in due if d is not None), default=None)
        for participant in self._participants:
            outcomes += participant.after_commit()
        return outcomes

    def _fail(self, tx: Tx, error: apsw.Error) -> None:
        """The disk refused the group. Nobody was told it succeeded, and nobody will be.

        A full disk may be freed, so it is tried again; after a failed fsync the kernel may have
        dropped pages it will not mention again, so only a restart, which re-reads the file, helps.
        """
        try:
            tx.rollback()
        except apsw.Error:
            log.exception("rollback failed")
        for participant in self._participants:
            participant.rolled_back()
        self._final = not isinstance(error, apsw.FullError)
        advice = "restart the gateway" if self._final else "free some space"
        self.failure = f"the journal cannot write ({error}); {advice}"
        log.error("the journal stops accepting: %s", error)


def _refuse(jobs: list[Job], why: str) -> list[Outcome]:
    return [(done, None, StorageFailed(why)) for _, done in jobs]


def _attempt(tx: Tx, operation: Operation, done: Done) -> Outcome:
    mark = tx.mark()
    try:
        value = operation(tx)
    except GatepostError as error:
        tx.undo(mark)
        return done, None, error
    except apsw.Error as error:
        if isinstance(error, apsw.FullError | apsw.IOError | apsw.CorruptError):
            raise
        return _internal(tx, mark, done, error)
    except Exception as error:
        return _internal(tx, mark, done, error)
    tx.keep()
    return done, value, None


def _internal(tx: Tx, mark: tuple[int, int], done: Done, error: Exception) -> Outcome:
    log.error("an operation failed unexpectedly", exc_info=error)
    tx.undo(mark)
    return done, None, Internal("an internal error; the gateway's log has the details")


def _ignore(value: Any, error: GatepostError | None) -> None:
    """The outcome of a job nobody waits for."""
