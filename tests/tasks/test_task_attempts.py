"""A task whose executor is lost is tried again as often as its capability permits."""

from typing import Any, cast

import pytest
from msgspec.structs import replace

from gatepost.client import Client
from gatepost.client._message import Message
from gatepost.client._task import AgentTask
from gatepost.config.hub_settings import HubSettings
from gatepost.room.records import SkillRef
from gatepost.routing import AgentHome, GatewayEntry, RevokedGateway, RoutingDirectory
from gatepost.tasks.session_runtime import SessionExit
from gatepost.tasks.task_routing import CapabilityEntry
from gatepost.wire.tasks import NewTask
from tests.tasks.task_mesh import TaskGate, TaskMesh

REVIEW = CapabilityEntry(
    id="review",
    version="1",
    owner_agent="B",
    delegation_skill=SkillRef(ref="ask", version="1"),
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
    records, name, lost = mesh.b.engine.session_tasks, first.session_name, SessionExit("lost")
    for _ in range(2):
        mesh.b.gate.do(lambda tx: records.settle_task(tx, id, name, lost, None, "killed"))
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


def shown_ids(gate: TaskGate, agent: str = "") -> list[str]:
    """The ids that the handler of an agent sees of the tasks that wait for it; it accepts them."""
    gate.agent = agent or gate.agent
    found = []
    for mail in gate.take_mail():
        message = Message(mail, cast(Any, None))
        found.append(AgentTask(message, {}, cast(Client, None), gate.agent).id)
        gate.report(mail.msg_id, "accept", receipt=mail.receipt)
    return found


def silence_agent(mesh: TaskMesh, gate: TaskGate) -> None:
    mesh.mesh.clock.advance(61_000)
    gate.gate.do(gate.engine.reports.end_silent_tasks)
    mesh.flow()


@pytest.mark.parametrize("requester", ["a", "b"])
def test_the_executor_sees_the_id_that_its_requester_knows_at_every_attempt(requester: str) -> None:
    mesh = review_mesh()
    source = getattr(mesh, requester)
    new = NewTask(source.agent, "review it", required_capabilities=["review"])
    (task,) = source.create_new(new)
    mesh.flow()
    for _ in range(3):
        assert shown_ids(mesh.b) == [task.id]
        silence_agent(mesh, mesh.b)
    assert source.task(task.id).state == "failed"


def add_gate(mesh: TaskMesh, name: str, entry: CapabilityEntry) -> TaskGate:
    gate = TaskGate(mesh.mesh[name], HubSettings(agent_silence_secs=60))
    gate.engine.parts.router.capabilities = {entry.id: entry}
    gate.gate.do(gate.engine.reports.end_silent_tasks)
    return gate


def test_an_attempt_elsewhere_and_one_after_it_have_the_id_that_their_requester_knows() -> None:
    entry = replace(REVIEW, eligible=("B", "C"), max_attempts=4)
    mesh = review_mesh(entry, nodes=("a", "b", "c"))
    c = add_gate(mesh, "c", entry)
    mesh.mesh.link("a", "c")
    mesh.flow()
    a, b = mesh.a.gate, mesh.b.gate
    new = NewTask("A", "review", to_agents=["B"], required_capabilities=["review"])
    (task,) = mesh.a.create_new(new)
    mesh.flow()
    assert shown_ids(mesh.b) == [task.id]
    mesh.flow()
    revoked = {"b": RevokedGateway(b.key.public, 10_000)}
    gateways = {each.id: GatewayEntry(each.key.public) for each in (a, c.gate)}
    homes = {"A": AgentHome("a"), "B": AgentHome(None), "C": AgentHome("c")}
    a.see(RoutingDirectory(gateways, homes, {}, revoked))
    a.do(mesh.a.engine.requested.end_lost_tasks)
    mesh.flow()
    assert mesh.a.task(task.id).agent == "C"
    for _ in range(2):
        assert shown_ids(c) == [task.id]
        silence_agent(mesh, c)


def test_a_task_that_was_handed_over_and_is_tried_again_has_the_id_its_requester_knows() -> None:
    mesh = review_mesh(nodes=("a", "b", "c"))
    c = add_gate(mesh, "c", REVIEW)
    for one, other in (("a", "c"), ("b", "c")):
        mesh.mesh.link(one, other)
    mesh.flow()
    id = delegate(mesh)
    c.gate.do(lambda tx: c.gate.agents.register(tx, "B"))
    gateways = {name: GatewayEntry(gate.key.public) for name, gate in mesh.mesh.gates.items()}
    homes = {"A": AgentHome("a"), "B": AgentHome("c", former=("b",))}
    b = mesh.b.gate
    b.see(RoutingDirectory(gateways, homes))
    b.do(lambda tx: b.agents.remove(tx, "B", "transfer"))
    for gate in mesh.mesh.gates.values():
        gate.see(RoutingDirectory(gateways, homes))
    mesh.flow()
    for _ in range(3):
        assert shown_ids(c, "B") == [id]
        silence_agent(mesh, c)
    assert mesh.a.task(id).state == "failed"
