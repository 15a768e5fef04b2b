"""Scripted scenarios that write the same bytes in every run: fixed clock, keys, ids and nonces.

`python -m tests.golden.scenarios` records them anew, for a change that is meant to alter bytes.
The journals of an earlier version stay as they were written; `write_journals` made them.
Values that are absent or NULL are left out of a row, so that a new optional column alters nothing.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from gatepost.archive import manifest
from gatepost.delivery import frames
from gatepost.journal import Tx
from gatepost.mailbox import MailboxPolicy
from gatepost.mailbox.dead_letters import DeadLetterFilter
from gatepost.room.document import RoomDocument
from gatepost.room.room import room_id
from tests.archive.harness import ArchiveHarness
from tests.delivery.mesh import Gate, Mesh, Wire
from tests.delivery.tools import online, wait
from tests.delivery.world import World
from tests.room.sample_records import ROOT, agent, author, claim, coordination, delivery, entry
from tests.tasks.task_mesh import TaskMesh

RECORDED = Path(__file__).parent / "recorded"

Lines = list[str]


class Recorder:
    """The frames of a mesh's links, and what its gateways answered, in their order."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.frames: Lines = []
        self.answers: Lines = []

    def link(self, one: str, other: str) -> Wire:
        wire = self.mesh.link(one, other)
        self.tap(wire)
        return wire

    def tap(self, wire: Wire) -> None:
        """Record the frames of a link; its hellos are in the queues already."""
        for end in (wire.one, wire.other):
            name = f"{end.gate.id}>{end.peer.id}"
            for data in end.out:
                self._record(name, data)
            end.send_frame = self._recorded(name, end.send_frame)  # type: ignore[assignment,method-assign]

    def _recorded(self, name: str, send: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def record_and_send(data: bytes) -> None:
            self._record(name, data)
            send(data)

        return record_and_send

    def _record(self, name: str, data: bytes) -> None:
        tag = type(frames.decode_frame(data)).__name__
        self.frames.append(f"{name} {tag} {data.hex()}")

    def answer(self, what: object) -> None:
        self.answers.append(msgspec.json.encode(what).decode())

    def take(self, gate: Gate, limit: int = 100) -> list[str]:
        """Lease an agent's mail; returns the lease handles."""
        mail = gate.do(lambda tx: gate.dispatcher.dequeue(tx, gate.id.upper(), "c", limit))
        for each in mail:
            self.answer(each)
        return [each.receipt for each in mail]

    def ack(self, gate: Gate, handles: Sequence[str], reply: object = None) -> None:
        raw = msgspec.Raw(msgspec.json.encode(reply))
        replies = {} if reply is None else dict.fromkeys(handles, raw)
        assert gate.do(partial(_ack, gate, handles, replies)).settled == len(handles)

    def nack(self, gate: Gate, handles: Sequence[str], reason: str, retry: bool = True) -> None:
        def act(tx: Tx) -> object:
            return gate.coordinator.nack(
                tx, gate.id.upper(), list(handles), [], reason, retry=retry
            )

        assert gate.do(act).settled == len(handles)


def _ack(gate: Gate, handles: Sequence[str], replies: dict[str, msgspec.Raw], tx: Tx) -> Any:
    return gate.coordinator.ack(tx, gate.id.upper(), list(handles), [], replies)


def play_messages(mesh: Mesh | None = None) -> dict[str, Lines]:
    """Messages with every choice a sender has, replies, holds, dead letters, and their replay."""
    mesh = mesh or Mesh("a", "b")
    a, b = mesh["a"], mesh["b"]
    recorder = Recorder(mesh)
    b.dispatcher.policy = replace(MailboxPolicy(), max_pending=4, max_retries=0)
    first = a.send(b, b'{"plain":true}', event_id=a.node.event_ids.next_id())
    recorder.link("a", "b")
    mesh.flow()
    a.send(b, corr_id="talk", idempotency_key="once", priority=7, traceparent="00-parent")
    a.send(b, order="none", max_retries=2, ttl_secs=3600.0)
    a.send(b, not_before=mesh.clock.now() / 1000 + 60, replies="caller")
    for _ in range(3):
        a.send(b, b'"held"')
    a.send(a, b'"local"', corr_id="self")
    mesh.flow()
    for _ in range(2):
        recorder.ack(a, recorder.take(a, 1), {"local": "reply"})
        recorder.ack(b, recorder.take(b, 1), {"fine": [1, 2]})
        mesh.flow()
    recorder.nack(b, recorder.take(b, 2), "broken", retry=False)
    mesh.flow()
    wait(mesh, 61_000)
    recorder.ack(b, recorder.take(b))
    mesh.flow()
    _replay(recorder, b)
    mesh.flow()
    recorder.answer(a.do(lambda tx: a.coordinator.sent.status(tx, first.event_id)))
    b.send(a, b'"expires"', ttl_secs=1.0)
    wait(mesh, 120_000)
    wait(mesh, 120_000)
    return _lines("messages", recorder, a, b)


def _replay(recorder: Recorder, b: Gate) -> None:
    every = DeadLetterFilter()
    found = b.do(lambda tx: b.coordinator.replay(tx, "B", every, 10, "operator"))
    recorder.answer(found)
    recorder.ack(b, recorder.take(b))


def play_fallback() -> dict[str, Lines]:
    """An offer, a fallback that takes over, an owner that returns, and one that is given up."""
    mesh = Mesh("a", "b", "c")
    a, b, c = (mesh[name] for name in "abc")
    recorder = Recorder(mesh)
    online(mesh, "a", "b", "c", fallback=True)
    recorder.link("a", "c")
    a.send_many(b, 3)
    mesh.flow()
    online(mesh, "a", "c", fallback=True)
    mesh.flow()
    online(mesh, "a", "b", "c", fallback=True)
    wire = recorder.link("a", "b")
    a.send(b, b'"after"')
    mesh.flow()
    wire.cut()
    a.send(b, b'"lost"', ttl_secs=600.0)
    for _ in range(8):
        wait(mesh, 120_000)
    recorder.link("a", "b")
    mesh.flow()
    recorder.ack(b, recorder.take(b))
    mesh.flow()
    return _lines("fallback", recorder, a, b, c)


def play_forwarding() -> dict[str, Lines]:
    """An agent moves away and back while its mail waits; copies and replies follow it."""
    world = World()
    a, b, c = (world.boxes[name] for name in "abc")
    for number in range(3):
        a.send("job", number, corr_id="talk")
    a.send("job", "unordered", order="none", max_retries=5)
    a.send("", "everyone", to_agents=["job", "al", "bo"])
    world.flow()
    world.moves("c")
    c.ack(*c.take(limit=1), reply="from c")
    world.flow()
    world.moves("b")
    journals = {"c-between": list(dump_journal(c.connection))}
    b.ack(*b.take(), reply="from b")
    world.flow()
    journals |= {box.node.id: list(dump_journal(box.connection)) for box in (a, b, c)}
    return {f"forwarding-journal-{name}": lines for name, lines in journals.items()}


def play_tasks() -> dict[str, Lines]:
    """A task that is completed, one that fails, and one that is cancelled."""
    tasks = TaskMesh()
    recorder = Recorder(tasks.mesh)
    recorder.tap(tasks.wire)
    done, failed, cancelled = (tasks.create(input={"n": number}) for number in range(3))
    tasks.b.accept(done, eta_secs=60)
    tasks.flow()
    tasks.b.report(done, "update", progress=0.5, note="half")
    tasks.b.complete(done, {"fine": True})
    tasks.b.accept(failed)
    tasks.b.report(failed, "fail", error="broken", error_code="internal")
    tasks.a.cancel(cancelled)
    tasks.flow()
    return _lines("tasks", recorder, tasks.a.gate, tasks.b.gate)


def play_room() -> dict[str, Lines]:
    """Room updates: records of two writers, and a later version of one."""
    ben = author("ben")
    records = [
        entry(ROOT),
        entry(ben, 5),
        claim(ben, "agents", "job", agent("ben"), 3),
        claim(ben, "delivery", "ben", delivery(9)),
        coordination(1),
    ]
    document = RoomDocument(room_id(1))
    updates = [*document.encode_updates(records), *document.encode_updates([entry(ben, 6)])]
    return {"room-updates": [update.hex() for update in updates]}


def play_archive() -> dict[str, Lines]:
    """The rows, chains and signatures of segments, and the manifest without sizes of files.

    Parquet writes the version of its library into a file, so the bytes of a file are not recorded.
    """
    with TemporaryDirectory() as folder:
        harness = ArchiveHarness(Path(folder))
        harness.groups(4, 4)
        harness.group(harness.message(to_node_id="node-2", max_retries=3, payload=b'{"x":1}'))
        harness.clock.advance(2 * 3_600_000)
        harness.archive_segments()
        listed = manifest.read_manifest(harness.store(), "node-1")
        assert listed is not None
        segments = msgspec.to_builtins(listed.segments)
        sized = ("bytes", "sha256")
        kept = [{k: v for k, v in each.items() if k not in sized} for each in segments]
        rows = [_row("event", event) for event in harness.events()]
        return {"archive": [*map(json.dumps, kept), *rows]}


def _lines(name: str, recorder: Recorder, *gates: Gate) -> dict[str, Lines]:
    found = {f"{name}-journal-{gate.id}": list(dump_journal(gate.connection)) for gate in gates}
    found[f"{name}-frames"] = recorder.frames
    if recorder.answers:
        found[f"{name}-answers"] = recorder.answers
    return found


def dump_journal(connection: apsw.Connection) -> Iterable[str]:
    """Every row of every table, in the order of its columns."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    for (table,) in sorted(connection.execute(query).fetchall()):
        cursor = connection.execute(f"SELECT * FROM {table}")
        columns = None
        lines = []
        for row in cursor:
            columns = columns or [column for column, _ in cursor.get_description()]
            lines.append(_row(str(table), dict(zip(columns, row, strict=True))))
        yield from sorted(lines)


def _row(table: str, row: dict[str, Any]) -> str:
    given = [f"{column}={_shown(value)}" for column, value in row.items() if value is not None]
    return f"{table} {' '.join(given)}"


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return repr(value)


SCENARIOS: tuple[Callable[[], dict[str, Lines]], ...] = (
    play_messages,
    play_fallback,
    play_forwarding,
    play_tasks,
    play_room,
    play_archive,
)


def record_all() -> None:
    for old in RECORDED.glob("*.txt"):
        old.unlink()
    for play in SCENARIOS:
        for name, lines in play().items():
            (RECORDED / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def write_journals() -> None:
    """Keep the journals of two gateways with mail and dead letters, and with open deliveries."""
    mesh = Mesh("a", "b")
    play_messages(mesh)
    mesh["b"].send(mesh["a"], b'"still open"')
    mesh["a"].send(mesh["b"], b'"still waiting"')
    mesh.flow()
    for name, gate in mesh.gates.items():
        data = gzip.compress(gate.connection.serialize("main"), mtime=0)
        (RECORDED / f"journal-{name}.db.gz").write_bytes(data)


if __name__ == "__main__":
    record_all()
