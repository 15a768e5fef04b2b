"""Group commit: what shares a fate and what does not, and what a bad disk does."""

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from gatepost.errors import GatepostError, InternalError, StorageFailed, Unavailable, UnknownMessage
from gatepost.events import Envelope
from gatepost.journal import Database, JobOutcome, Tx, Writer, open_memory_journal
from gatepost.journal.database import migrate_schema
from gatepost.testing import ManualClock
from tests.journal.disk import Disk

NOW = 1_700_000_000_000


class Watcher:
    """A participant that writes down what it is asked."""

    def __init__(self, due: int | None = None) -> None:
        self.due = due
        self.calls: list[str] = []
        self.appended: list[str] = []
        self.error: Exception | None = None

    def before_commit(self, tx: Tx) -> None:
        self.calls.append("before")
        self.appended += [draft.event_id for draft in tx.appended_drafts]
        if self.error is not None:
            raise self.error

    def after_commit(self) -> list[JobOutcome]:
        self.calls.append("after")
        return [(_ignore, "pushed", None)]

    def rolled_back(self) -> None:
        self.calls.append("rolled back")

    def next_due(self, tx: Tx) -> int | None:
        self.calls.append("due")
        return self.due


def put(name: str, value: object = 1) -> Callable[[Tx], str]:
    def operation(tx: Tx) -> str:
        tx.execute("INSERT INTO fact (name, value) VALUES (?, ?)", (name, value))
        return name

    return operation


def facts(connection: apsw.Connection) -> list[str]:
    query = "SELECT name FROM fact WHERE name <> 'probe' ORDER BY name"
    return [str(row[0]) for row in connection.execute(query)]


def run(writer: Writer, *operations: Callable[[Tx], Any]) -> list[Any]:
    """What each operation came to: its value, or its error."""
    outcomes = writer.run_group([(operation, _ignore) for operation in operations])
    return [value if error is None else error for _, value, error in outcomes]


def make(connection: apsw.Connection | None = None, *participants: Watcher, **more: Any) -> Writer:
    connection = open_memory_journal() if connection is None else connection
    clock = ManualClock(NOW)
    return Writer(connection, clock, lambda outcomes: None, participants=participants, **more)


# -- one group


def test_operations_of_a_group_share_one_commit() -> None:
    connection = open_memory_journal()
    writer = make(connection)
    commits: list[int] = []

    def committed() -> bool:
        commits.append(1)
        return False

    connection.set_commit_hook(committed)
    assert run(writer, put("a"), put("b")) == ["a", "b"]
    assert commits == [1]
    assert (writer.group_count, writer.operation_count) == (1, 2)


def test_operation_that_fails_is_undone_alone() -> None:
    connection = open_memory_journal()
    watcher = Watcher()
    happened: list[str] = []

    def fails(tx: Tx) -> None:
        put("half")(tx)
        tx.append_event(draft("event"))
        tx.add_effect(lambda: happened.append("effect"))
        raise UnknownMessage("no such thing")

    def works(tx: Tx) -> str:
        tx.append_event(draft("other"))
        tx.add_effect(lambda: happened.append("other"))
        return put("c")(tx)

    results = run(make(connection, watcher), put("a"), fails, works)
    assert [results[0], results[2]] == ["a", "c"]
    assert isinstance(results[1], UnknownMessage)
    assert facts(connection) == ["a", "c"]
    assert (watcher.appended, happened) == (["other"], ["other"])


@pytest.mark.parametrize("error", [ValueError("a bug"), apsw.SQLError("a typo"), KeyError("x")])
def test_bug_in_an_operation_is_internal_and_undone_alone(error: Exception) -> None:
    connection = open_memory_journal()

    def fails(tx: Tx) -> None:
        put("half")(tx)
        raise error

    results = run(make(connection), fails, put("b"))
    assert isinstance(results[0], InternalError)
    assert "bug" not in results[0].message
    assert facts(connection) == ["b"]


def test_nested_marks_undo_the_inner_only() -> None:
    connection = open_memory_journal()

    def operation(tx: Tx) -> None:
        put("outer")(tx)
        mark = tx.begin_operation()
        put("inner")(tx)
        tx.append_event(draft("inner"))
        tx.undo_operation(mark)
        tx.append_event(draft("outer"))

    watcher = Watcher()
    run(make(connection, watcher), operation)
    assert (facts(connection), watcher.appended) == (["outer"], ["outer"])


def test_effects_happen_as_soon_as_their_operation_is_kept() -> None:
    seen: list[str] = []

    def first(tx: Tx) -> None:
        tx.add_effect(lambda: seen.append("effect of first"))
        seen.append("first")

    run(make(), first, lambda tx: seen.append("second"))
    assert seen == ["first", "effect of first", "second"]


def test_effects_of_effects_and_of_participants_happen_too() -> None:
    seen: list[str] = []

    class Late(Watcher):
        def before_commit(self, tx: Tx) -> None:
            tx.add_effect(lambda: tx.add_effect(lambda: seen.append("late")))

    run(make(None, Late()))
    assert seen == ["late"]


def test_outcomes_come_in_the_order_of_operations_and_then_those_of_participants() -> None:
    writer = make(None, Watcher(), Watcher())
    assert run(writer, put("a"), put("b")) == ["a", "b", "pushed", "pushed"]


def test_participants_are_called_around_the_commit() -> None:
    watcher = Watcher()
    run(make(None, watcher))
    assert watcher.calls == ["before", "due", "after"]


def test_next_due_is_the_earliest_of_all_participants() -> None:
    writer = make(None, Watcher(None), Watcher(NOW + 500), Watcher(NOW + 900))
    run(writer)
    assert writer.idle_timeout() == 0.5
    writer._clock.advance(700)  # type: ignore[attr-defined]
    assert writer.idle_timeout() == 0.0


def test_nothing_due_means_patience() -> None:
    writer = make(None, Watcher(None))
    run(writer)
    assert writer.idle_timeout() == 3600.0


# -- groups that fail as a whole


def test_bug_in_a_participant_fails_the_group_and_not_the_next() -> None:
    connection = open_memory_journal()
    watcher = Watcher()
    writer = make(connection, watcher)
    undone: list[str] = []

    def operation(tx: Tx) -> None:
        tx.on_rollback(lambda: undone.append("first"))
        tx.on_rollback(lambda: undone.append("second"))

    watcher.error = ValueError("a bug")
    (result,) = run(writer, operation)
    assert isinstance(result, InternalError)
    assert (writer.failure, facts(connection)) == (None, [])
    assert undone == ["second", "first"]
    assert watcher.calls == ["before", "rolled back"]
    assert writer.idle_timeout() == 1.0
    watcher.error = None
    assert run(writer, put("b"))[0] == "b"
    assert facts(connection) == ["b"]


def test_everyone_in_a_failed_group_has_an_error_of_their_own() -> None:
    watcher = Watcher()
    watcher.error = apsw.FullError("full")
    first, second = run(make(None, watcher), put("a"), put("b"))
    assert isinstance(first, StorageFailed)
    assert first is not second


def test_full_disk_fails_the_group_and_is_tried_again(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "journal.db")
    connection = database.writer_connection
    writer = make(connection)
    assert run(writer, put("before")) == ["before"]
    connection.pragma("max_page_count", connection.pragma("page_count"))
    results = run(writer, put("small"), put("big", bytes(1_000_000)))
    assert [type(result) for result in results] == [StorageFailed] * 2
    assert "free some space" in results[0].message
    with pytest.raises(StorageFailed):
        writer.submit(put("refused"), _ignore)
    assert isinstance(run(writer, put("still full"))[0], StorageFailed)
    assert facts(connection) == ["before"]
    connection.pragma("max_page_count", 1 << 30)
    assert run(writer) == []
    assert writer.failure is None
    assert run(writer, put("after")) == ["after"]
    assert facts(connection) == ["after", "before"]
    database.close()


def test_probe_keeps_a_disk_that_is_nearly_full_closed(tmp_path: Path) -> None:
    """One page is free, which an empty group could write: no reason to accept again."""
    database = Database.open(tmp_path / "journal.db")
    writer = make(database.writer_connection)
    database.writer_connection.pragma(
        "max_page_count", database.writer_connection.pragma("page_count") + 1
    )
    run(writer, put("big", bytes(1_000_000)))
    run(writer)
    assert writer.failure is not None
    database.close()


@contextmanager
def tmpfs(path: Path, size: str) -> Iterator[None]:
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "gatepost-test", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_really_full_disk_loses_nothing_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    with tmpfs(folder, "4m"):
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        database = Database.open(folder / "journal.db")
        writer = make(database.writer_connection)
        acknowledged: list[str] = []
        while writer.failure is None:
            name = f"f{len(acknowledged):05}"
            acknowledged += [r for r in run(writer, put(name, bytes(20_000))) if r == name]
        assert "free some space" in writer.failure
        assert facts(database.writer_connection) == acknowledged
        ballast.unlink()
        run(writer)
        assert run(writer, put("z")) == ["z"]
        database.close()
        database = Database.open(folder / "journal.db", "full")
        assert facts(database.writer_connection) == [*acknowledged, "z"]
        database.close()


def test_failed_fsync_is_final(tmp_path: Path) -> None:
    disk = Disk("failing")
    connection = apsw.Connection(str(tmp_path / "journal.db"), vfs=disk.name)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")
    migrate_schema(connection, tmp_path)
    watcher = Watcher()
    writer = make(connection, watcher)
    assert run(writer, put("a"))[0] == "a"
    assert disk.syncs > 0
    disk.broken = True
    result = run(writer, put("b"))[0]
    assert isinstance(result, StorageFailed)
    assert "restart the gateway" in result.message
    disk.broken = False
    groups = writer.group_count
    assert isinstance(run(writer, put("c"))[0], StorageFailed)
    assert writer.group_count == groups
    connection.close()
    connection = apsw.Connection(str(tmp_path / "journal.db"))
    assert "c" not in facts(connection)
    assert "a" in facts(connection)
    connection.close()


def test_answers_wait_for_the_fsync(tmp_path: Path) -> None:
    disk = Disk("counting")
    connection = apsw.Connection(str(tmp_path / "journal.db"), vfs=disk.name)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")
    migrate_schema(connection, tmp_path)
    syncs: list[int] = []

    class After(Watcher):
        def before_commit(self, tx: Tx) -> None:
            syncs.append(disk.syncs)

        def after_commit(self) -> list[JobOutcome]:
            syncs.append(disk.syncs)
            return []

    run(make(connection, After()), put("a"), put("b"))
    assert syncs[1] == syncs[0] + 1
    connection.close()


# -- the thread


class Thread:
    """A writer in its thread, and everything it delivered."""

    def __init__(self, *participants: Watcher, clock: Any = None, **more: Any) -> None:
        self.heard: queue.SimpleQueue[tuple[Any, GatepostError | None]] = queue.SimpleQueue()
        self.groups: list[int] = []
        self.connection = open_memory_journal()
        clock = clock or ManualClock(NOW)
        self.writer = Writer(
            self.connection, clock, self._deliver, participants=participants, **more
        )

    def _deliver(self, outcomes: list[JobOutcome]) -> None:
        self.groups.append(len(outcomes))
        for done, value, error in outcomes:
            done(value, error)

    def submit(self, operation: Callable[[Tx], Any], **more: Any) -> None:
        self.writer.submit(operation, lambda *outcome: self.heard.put(outcome), **more)

    def hear(self) -> Any:
        value, error = self.heard.get(timeout=10)
        return value if error is None else error


@pytest.fixture
def thread() -> Thread:
    return Thread()


def test_whatever_waits_shares_the_next_group_in_order(thread: Thread) -> None:
    for n in range(10):
        thread.submit(put(f"f{n}"))
    assert thread.writer.queued_jobs() == 10
    thread.writer.start()
    assert [thread.hear() for _ in range(10)] == [f"f{n}" for n in range(10)]
    thread.writer.stop()
    assert thread.groups[0] == 10


def test_group_is_bounded_by_weight() -> None:
    thread = Thread(group_max=4)
    for n, weight in enumerate([1, 1, 1, 1, 1, 3, 9, 1]):
        thread.submit(put(f"f{n}"), weight=weight)
    thread.writer.start()
    thread.writer.stop()
    assert thread.groups[:4] == [4, 2, 1, 1]


def test_stop_commits_what_waits(thread: Thread) -> None:
    thread.submit(put("a"))
    thread.writer.start()
    thread.writer.stop()
    assert facts(thread.connection) == ["a"]


def test_submit_after_stop_is_refused(thread: Thread) -> None:
    thread.writer.start()
    thread.writer.stop()
    with pytest.raises(Unavailable):
        thread.submit(put("a"))


def test_submit_that_races_with_stop_is_answered(thread: Thread) -> None:
    thread.writer.start()

    def late(tx: Tx) -> None:
        thread.writer._queue.put(None)
        thread.submit(put("too late"))

    thread.submit(late)
    assert thread.hear() is None
    thread.writer.stop()
    assert isinstance(thread.hear(), Unavailable)


def test_queue_is_bounded() -> None:
    thread = Thread(queue_max=2)
    thread.submit(put("a"))
    thread.submit(put("b"))
    with pytest.raises(Unavailable, match="behind") as caught:
        thread.submit(put("c"))
    assert caught.value.retry_after == 1.0


def test_thread_runs_a_group_when_one_is_due() -> None:
    looked = threading.Semaphore(0)

    class Twice(Watcher):
        def next_due(self, tx: Tx) -> int | None:
            looked.release()
            return NOW + 20 if len(self.calls) < 3 else None

    thread = Thread(Twice())
    thread.writer.start()
    assert looked.acquire(timeout=10)
    assert looked.acquire(timeout=10)
    thread.writer.stop()


def test_deliver_that_fails_does_not_end_the_thread(thread: Thread) -> None:
    def explode(value: Any, error: GatepostError | None) -> None:
        raise RuntimeError("a bug in a callback")

    thread.writer.start()
    thread.writer.submit(put("a"), explode)
    thread.submit(put("b"))
    thread.writer.stop()
    assert facts(thread.connection) == ["a", "b"]


# -- crashes

_CHILD = """
import sys
from pathlib import Path
from gatepost.clock import SystemClock
from gatepost.journal import Database, Writer

def deliver(outcomes):
    names = [value for _, value, error in outcomes if error is None]
    sys.stdout.write("".join(f"{name}\\n" for name in names if name))
    sys.stdout.flush()

def put(name):
    def operation(tx):
        tx.execute("INSERT INTO fact (name, value) VALUES (?, zeroblob(2000))", (name,))
        return name
    return operation

database = Database.open(Path(sys.argv[1]))
writer = Writer(database.writer_connection, SystemClock(), deliver, group_max=16)
writer.start()
n = 0
while True:
    while writer.queued_jobs() > 64:
        pass
    writer.submit(put(f"{sys.argv[2]}-{n}"), None)
    n += 1
"""


def test_kill_9_loses_nothing_acknowledged(
    tmp_path: Path, count: Callable[[int, int], int]
) -> None:
    path = tmp_path / "journal.db"
    acknowledged: set[str] = set()
    for round in range(count(3, 25)):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(path), str(round)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(100 + 57 * round):
            acknowledged.add(child.stdout.readline().strip())
        child.kill()
        acknowledged |= {line.strip() for line in child.stdout if line.endswith("\n")}
        child.wait()
        child.stdout.close()
        database = Database.open(path, "full")
        assert acknowledged <= set(facts(database.writer_connection))
        database.close()
    assert len(acknowledged) > 300


def draft(event_id: str) -> Envelope:
    return Envelope(event_id=event_id, kind="message", source_agent_id="alice")


def _ignore(value: Any, error: GatepostError | None) -> None:
    """Outcomes are read from what run_group returns."""
