"""Reports of agents that run by themselves, in batches."""

import pytest

from gatepost.errors import Forbidden
from gatepost.tasks.task_states import TaskState
from gatepost.wire.tasks import TaskReport
from tests.tasks.task_mesh import TaskGate, TaskMesh


def accept_all(gate: TaskGate, ids: list[str], agent: str = "") -> None:
    """Take the mail of all tasks, and accept them in one operation."""
    handles = {mail.msg_id: mail.receipt for mail in gate.take_mail()}
    reports = [TaskReport(id, agent or gate.agent, "accept", handles[id]) for id in ids]
    gate.gate.do(lambda tx: gate.engine.reports.apply_reports(tx, reports))


def create_together(gate: TaskGate, to: TaskGate, count: int) -> list[str]:
    return [gate.create(to, f"task {number}") for number in range(count)]


def test_tasks_are_accepted_together_and_their_mail_is_settled() -> None:
    mesh = TaskMesh()
    ids = create_together(mesh.a, mesh.b, 3)
    mesh.flow()
    accept_all(mesh.b, ids)
    mesh.flow()
    for id in ids:
        assert mesh.states(id) == (TaskState.RUNNING, TaskState.RUNNING)
        task = mesh.a.task(id)
        assert task.accepted_at is not None
        assert task.started_at is not None
        assert mesh.a.gate.state(id) == "processed"
    mesh.mesh.clock.advance(3_600_000)
    assert mesh.b.take_mail() == []


def test_a_refused_report_leaves_the_mail_of_the_others_leased() -> None:
    mesh = TaskMesh()
    ids = create_together(mesh.b, mesh.b, 2)
    with pytest.raises(Forbidden):
        accept_all(mesh.b, ids, agent="somebody-else")
    assert {mesh.b.task(id).state for id in ids} == {TaskState.PENDING}
    # The lease stands: the same consumer gets the same mail again.
    assert {mail.msg_id for mail in mesh.b.take_mail()} == set(ids)


def test_mail_that_is_acked_without_an_acceptance_refuses_its_task() -> None:
    mesh = TaskMesh()
    id = mesh.b.create(mesh.b)
    (mail,) = mesh.b.take_mail()
    mesh.b.gate.do(
        lambda tx: mesh.b.gate.core.coordinator.ack(tx, mesh.b.agent, [mail.receipt], [], {})
    )
    assert mesh.b.task(id).state is TaskState.FAILED
    assert mesh.b.task(id).error_code == "rejected"
