"""The queue of sessions: each source has a share, sources take turns, and the operator gets in."""

from typing import Any

import pytest

from gatepost.errors import TaskQueueFull
from gatepost.events import EventIdGenerator
from gatepost.journal import Tx
from gatepost.routing import GatewayEntry, RevokedGateway, RoutingDirectory
from gatepost.tasks.task_table import Task, TaskPayload, add_task, count_waiting_tasks
from tests.tasks.task_mesh import TaskGate, TaskMesh

_PLACES = 96


class Queue:
    """The queue of the gate `b`, whose agent sessions run, and those who ask for tasks."""

    def __init__(self, **settings: Any) -> None:
        self.mesh = TaskMesh(**{"max_sessions": 2, "max_queued": _PLACES} | settings)
        self.gate: TaskGate = self.mesh.b
        self.gate.run_by_hub()
        self.queue = self.gate.engine.parts.queue
        self._ids = EventIdGenerator(self.mesh.mesh.clock)

    def ask(self, node: str | None, requester: str = "al", *, by_operator: bool = False) -> str:
        """Add a task if there is a place for it."""
        task = Task(self._ids.next_id(), self.gate.agent, requester, node)

        def add(tx: Tx) -> None:
            self.queue.require_place(tx, None if by_operator else task.source)
            add_task(tx, task, TaskPayload(b'{"x":1}'))

        self.gate.gate.do(add)
        return task.id

    def flood(self, node: str, most: int = 1000) -> list[str]:
        """What a node gets in before it is refused."""
        ids: list[str] = []
        try:
            while len(ids) < most:
                ids.append(self.ask(node))
        except TaskQueueFull:
            pass
        return ids

    def claim(self, count: int) -> list[str]:
        return [each.task.id for each in self.gate.claim(count)]

    def count_waiting(self, source: str | None = None) -> int:
        count: int = self.gate.gate.do(lambda tx: count_waiting_tasks(tx, source))
        return count

    def incidents(self) -> list[Any]:
        return self.gate.gate.rows("SELECT subject FROM incident WHERE class = 'abuse'")


def test_a_node_that_floods_gets_a_third_and_others_still_find_a_place() -> None:
    queue = Queue()
    got = len(queue.flood("mallory"))
    assert _PLACES / 4 < got < _PLACES / 2
    for node in ("ann", "bea"):
        for _ in range(5):
            queue.ask(node)
    for _ in range(5):
        queue.ask(None, "al")


def test_the_last_places_are_the_operators() -> None:
    queue = Queue()
    for n in range(200):
        queue.flood(f"mallory{n}", 1)
    with pytest.raises(TaskQueueFull):
        queue.ask("ann")
    for _ in range(_PLACES // 16):
        queue.ask(None, "operator", by_operator=True)
    with pytest.raises(TaskQueueFull):
        queue.ask(None, "operator", by_operator=True)


def test_as_many_tasks_as_there_are_sessions_need_no_share() -> None:
    queue = Queue(max_sessions=8, max_queued=0)
    assert len(queue.flood("ann")) == 8


def test_one_incident_names_the_source_that_floods() -> None:
    queue = Queue()
    queue.flood("mallory")
    for _ in range(10):
        assert queue.flood("mallory") == []
    queue.ask("ann")
    (incident,) = queue.incidents()
    assert incident[0].startswith("mallory/task_flood")


def test_sources_take_turns_and_each_is_first_in_first_out() -> None:
    queue = Queue()
    flood = queue.flood("mallory")
    first, second = queue.ask("ann"), queue.ask("ann")
    own = queue.ask(None, "operator", by_operator=True)
    claimed = queue.claim(8)
    assert [id for id in claimed if id in flood] == flood[:5]
    assert set(claimed[:3]) == {flood[0], first, own}
    assert claimed.index(second) <= 4


def test_turns_go_on_where_they_were_also_with_one_place() -> None:
    queue = Queue(max_sessions=1)
    flood = queue.flood("mallory")
    waiting = [queue.ask(node) for node in ("ann", "bea", "cleo")]
    taken = []
    for _ in range(4):
        (id,) = queue.claim(1)
        taken.append(id)
        queue.gate.cancel(id)
    assert set(waiting) <= set(taken), "each of them has had its turn"
    assert len(set(flood) & set(taken)) == 1


def test_the_source_with_the_fewest_sessions_is_next() -> None:
    queue = Queue(max_sessions=4)
    queue.flood("mallory")
    queue.claim(4)
    mine = [queue.ask("ann"), queue.ask("ann")]
    assert queue.claim(2) == mine


def test_a_revocation_ends_what_the_node_requested_at_once() -> None:
    queue = Queue()
    mesh = queue.mesh
    ids = [mesh.create() for _ in range(10)]
    claimed = mesh.b.claim(2)
    mesh.b.note_started(claimed[0])
    other = queue.ask(None, "al")
    b, a = mesh.b.gate, mesh.a.gate
    revoked = {"a": RevokedGateway(a.key.public, 10_000)}
    b.see(RoutingDirectory({"b": GatewayEntry(b.key.public)}, b.directory.agents, {}, revoked))
    for id in ids:
        task = mesh.b.task(id)
        assert (task.state, task.error) == ("cancelled", "gateway a was revoked")
    assert queue.count_waiting() == 1
    assert mesh.b.task(other).state == "pending"


def test_a_sweep_ends_what_a_revoked_node_requested_and_arrived_late() -> None:
    queue = Queue()
    b, a = queue.mesh.b.gate, queue.mesh.a.gate
    revoked = {"a": RevokedGateway(a.key.public, 10_000)}
    b.see(RoutingDirectory({"b": GatewayEntry(b.key.public)}, b.directory.agents, {}, revoked))
    late, other = queue.ask("a"), queue.ask(None, "al")
    b.do(queue.mesh.b.engine.executed.end_revoked_tasks)
    assert queue.mesh.b.task(late).error == "gateway a was revoked"
    assert queue.mesh.b.task(other).state == "pending"
