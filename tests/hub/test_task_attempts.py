"""A task whose executor is lost is tried again as often as its capability permits."""

from typing import Any

import pytest
from msgspec.structs import replace

from gatepost.hub.task_routing import CapabilityEntry
from gatepost.routing import AgentHome, GatewayEntry, RevokedGateway, RoutingDirectory
from gatepost.task_wire import NewTask
from tests.hub.task_mesh import TaskGate, TaskMesh

REVIEW = CapabilityEntry(
    id="review",
    version="1",
    owner_agent="B",
    delegation_skill_version="1",
    executor_skill_version="1",
    default_eta_secs=60,
    is_active=True,
    eligible=("B",),
    policy_version=1,
    max_attempts=3,
)


def review_mesh(entry: CapabilityEntry = REVIEW, **settings: Any) -> TaskMesh:
    mesh = TaskMesh(agent_silence_secs=60, **settings)
    for gate in (mesh.a, mesh.b):
        gate.engine.parts.router.capabilities = {entry.id: entry}
    mesh.b.gate.do(mesh.b.engine.reports.end_silent_tasks)
    return mesh


def delegate(mesh: TaskMesh) -> str:
    (task,) = mesh.a.create_new(NewTask("A", "review it", required_capabilities=["review"]))
    mesh.flow()
    return task.id


def lose_agent(mesh: TaskMesh) -> None:
    """The agent of B is silent for so long that its tasks are lost."""
    mesh.mesh.clock.advance(61_000)
    mesh.b.gate.do(mesh.b.engine.reports.end_silent_tasks)
    mesh.flow()


def take_again(gate: TaskGate) -> str:
    """Take the one task that waits, and accept it; returns the id that its mail has."""
    (mail,) = gate.take_mail()
    gate.report(mail.msg_id, "accept", receipt=mail.receipt)
    return str(mail.msg_id)


def test_a_silent_agent_gets_the_task_again_and_can_complete_it() -> None:
    mesh = review_mesh()
    id = delegate(mesh)
    assert take_again(mesh.b) == id
    lose_agent(mesh)
    assert mesh.states(id) == ("pending", "pending")
    assert mesh.a.task(id).attempt == 2
    assert "attempt 2: its agent has not reported" in (mesh.a.task(id).note or "")
    again = take_again(mesh.b)
    assert again != id
    mesh.flow()
    assert mesh.states(id) == ("running", "running")
    mesh.b.complete(again, {"verdict": "fine"})
    mesh.flow()
    assert mesh.states(id) == ("completed", "completed")
    assert mesh.a.payload(id).result == b'{"verdict":"fine"}'


def test_after_the_last_attempt_the_task_has_failed_with_the_reason() -> None:
    mesh = review_mesh()
    id = delegate(mesh)
    for _ in range(3):
        take_again(mesh.b)
        lose_agent(mesh)
    task = mesh.a.task(id)
    assert (task.state, task.error_code) == ("failed", "executor_lost")
    assert "at attempt 3" in (task.error or "")
    assert mesh.b.take_mail() == []


def test_without_a_capability_that_permits_it_a_lost_executor_ends_the_task() -> None:
    mesh = review_mesh(replace(REVIEW, max_attempts=1))
    id = delegate(mesh)
    take_again(mesh.b)
    lose_agent(mesh)
    assert mesh.states(id) == ("failed", "failed")
    assert mesh.a.task(id).error_code == "executor_lost"


def test_a_lost_session_is_launched_again() -> None:
    mesh = review_mesh()
    mesh.b.run_by_hub()
    id = delegate(mesh)
    (first,) = mesh.b.claim()
    mesh.b.note_started(first)
    records, name = mesh.b.engine.session_tasks, first.session_name
    for _ in range(2):
        mesh.b.gate.do(lambda tx: records.lose_session(tx, id, name, "killed"))
    tokens = mesh.b.gate.rows("SELECT 1 FROM task_token WHERE revoked_at IS NULL")
    assert tokens == [], "the token of the lost session is dead"
    (second,) = mesh.b.claim()
    assert (first.task.id, first.task.attempt) == (id, 1)
    assert (second.task.id, second.task.attempt) == (id, 2)


def test_an_agent_that_was_taken_for_lost_cannot_report_updates_any_more() -> None:
    mesh = review_mesh()
    id = delegate(mesh)
    take_again(mesh.b)
    lose_agent(mesh)
    with pytest.raises(Exception, match="is pending"):
        mesh.b.report(id, "update", progress=0.5)


def test_a_cancellation_reaches_another_attempt() -> None:
    mesh = review_mesh()
    id = delegate(mesh)
    take_again(mesh.b)
    lose_agent(mesh)
    take_again(mesh.b)
    mesh.a.cancel(id)
    mesh.flow()
    assert mesh.states(id) == ("cancelled", "cancelled")


def test_the_task_of_a_revoked_gateway_goes_to_another_eligible_agent() -> None:
    mesh = review_mesh(replace(REVIEW, eligible=("A", "B")))
    a, b = mesh.a.gate, mesh.b.gate
    (task,) = mesh.a.create_new(
        NewTask("A", "review", to_agents=["B"], required_capabilities=["review"])
    )
    mesh.flow()
    take_again(mesh.b)
    mesh.flow()
    revoked = {"b": RevokedGateway(b.key.public, 10_000)}
    homes = {"A": AgentHome("a"), "B": AgentHome(None)}
    a.see(RoutingDirectory({"a": GatewayEntry(a.key.public)}, homes, {}, revoked))
    a.do(mesh.a.engine.requested.end_lost_tasks)
    task = mesh.a.task(task.id)
    assert (task.agent, task.executor, task.state, task.attempt) == ("A", "agent", "pending", 2)
    again = take_again(mesh.a)
    mesh.a.complete(again, 1)
    assert mesh.a.task(task.id).state == "completed"
