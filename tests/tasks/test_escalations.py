"""The escalation policy of a capability: somebody is told, and a hopeless task is cancelled."""

from typing import Any

import msgspec
from msgspec.structs import replace

from gatepost.room.records import EscalationPolicy
from gatepost.tasks.capabilities.misfires import note_late_tasks
from tests.tasks.task_mesh import TaskMesh
from tests.tasks.test_task_attempts import REVIEW, delegate, review_mesh, take_again

TOLD = EscalationPolicy(notify="lead", after_seconds=30)
CANCELLED = EscalationPolicy(notify="lead", after_seconds=30, cancel_after_seconds=100)


def escalating_mesh(policy: EscalationPolicy) -> TaskMesh:
    mesh = review_mesh(replace(REVIEW, max_attempts=1, escalation=policy))
    mesh.a.gate.do(lambda tx: mesh.a.gate.agents.register(tx, "lead"))
    return mesh


def pass_time(mesh: TaskMesh, secs: int) -> None:
    mesh.mesh.clock.advance(secs * 1000)
    mesh.a.gate.do(note_late_tasks)
    mesh.a.gate.do(mesh.a.engine.escalate_late_tasks)
    mesh.flow()


def mail_of_lead(mesh: TaskMesh) -> list[dict[str, Any]]:
    take = mesh.a.gate.dispatcher.dequeue
    mail = mesh.a.gate.do(lambda tx: take(tx, "lead", "c", 100))
    return [msgspec.json.decode(each.payload) for each in mail]


def begin_task(mesh: TaskMesh) -> str:
    id = delegate(mesh)
    (mail,) = mesh.b.take_mail()
    mesh.b.report(id, "accept", receipt=mail.receipt, eta_secs=10)
    mesh.flow()
    return id


def test_a_late_task_is_told_to_the_agent_that_the_policy_names_once() -> None:
    mesh = escalating_mesh(TOLD)
    id = begin_task(mesh)
    pass_time(mesh, 20)
    assert mail_of_lead(mesh) == [], "it is late, but not by 30 seconds"
    pass_time(mesh, 21)
    (told,) = mail_of_lead(mesh)
    assert told["event"] == "task.escalated"
    assert (told["task_id"], told["failure_class"]) == (id, "eta_breach")
    pass_time(mesh, 3600)
    assert mail_of_lead(mesh) == []
    assert mesh.states(id) == ("running", "running")


def test_an_executor_that_misses_two_reports_is_told_of_once() -> None:
    policy = EscalationPolicy(notify="lead", after_seconds=30)
    mesh = review_mesh(replace(REVIEW, max_attempts=1, progress_secs=10, escalation=policy))
    mesh.a.gate.do(lambda tx: mesh.a.gate.agents.register(tx, "lead"))
    id = begin_task(mesh)
    for _ in range(3):
        look_for_silence(mesh, 15)
        mesh.b.report(id, "update", progress=0.5)
        mesh.flow()
    assert mail_of_lead(mesh) == [], "it reports often enough"
    look_for_silence(mesh, 15)
    mesh.b.report(id, "update")
    mesh.flow()
    look_for_silence(mesh, 6)
    (told,) = mail_of_lead(mesh)
    assert (told["task_id"], told["failure_class"]) == (id, "progress_missed")
    assert mesh.a.gate.incidents("progress_missed") == [id]
    look_for_silence(mesh, 3600)
    assert mail_of_lead(mesh) == []
    assert mesh.states(id) == ("running", "running")


def test_without_a_promise_nobody_has_to_report() -> None:
    mesh = escalating_mesh(TOLD)
    begin_task(mesh)
    look_for_silence(mesh, 3600)
    assert mail_of_lead(mesh) == []


def look_for_silence(mesh: TaskMesh, secs: int) -> None:
    mesh.mesh.clock.advance(secs * 1000)
    mesh.a.gate.do(mesh.a.engine.escalations.escalate_silent_tasks)
    mesh.flow()


def test_a_task_that_is_much_too_late_is_cancelled() -> None:
    mesh = escalating_mesh(CANCELLED)
    id = begin_task(mesh)
    pass_time(mesh, 41)
    assert mesh.states(id) == ("running", "running")
    pass_time(mesh, 70)
    assert mesh.states(id) == ("cancelled", "cancelled")
    assert mesh.a.task(id).error == "it is much later than its ETA"


def test_a_failure_is_told_at_once() -> None:
    mesh = escalating_mesh(TOLD)
    id = delegate(mesh)
    take_again(mesh.b)
    mesh.b.report(id, "fail", error_code="too_hard", error="sorry")
    mesh.flow()
    (told,) = mail_of_lead(mesh)
    assert (told["failure_class"], told["error_code"]) == ("terminal_error", "too_hard")


def test_a_task_that_ends_in_time_or_has_no_policy_is_told_to_nobody() -> None:
    mesh = escalating_mesh(TOLD)
    id = begin_task(mesh)
    mesh.b.complete(id, {"verdict": "fine"})
    mesh.flow()
    pass_time(mesh, 100)
    assert mail_of_lead(mesh) == []
    plain = mesh.a.create(mesh.b)
    mesh.flow()
    mesh.b.accept(plain, eta_secs=1)
    mesh.flow()
    pass_time(mesh, 100)
    assert mail_of_lead(mesh) == []


def test_a_policy_that_names_nobody_known_is_an_incident_and_no_failure() -> None:
    mesh = escalating_mesh(EscalationPolicy(notify="nobody"))
    id = begin_task(mesh)
    pass_time(mesh, 20)
    assert mesh.states(id) == ("running", "running")
    assert mesh.a.gate.incidents("escalation_failed") or mesh.a.gate.incidents("dead_letter")
