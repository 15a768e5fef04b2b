"""Tasks that a gateway executes: in sessions, and by agents that run by themselves."""

import pytest
from msgspec import Raw

from gatepost.delivery.decisions import TaskRequested
from gatepost.errors import Forbidden, IdempotencyConflict, UnknownBlob, WrongState
from gatepost.events import EventKind
from gatepost.journal import Tx
from gatepost.tasks.task_request import TaskRequest
from gatepost.tasks.task_table import Task
from tests.tasks.harness import has_live_token
from tests.tasks.task_mesh import TaskGate, TaskMesh


def is_token_live(gate: TaskGate, id: str) -> bool:
    return bool(gate.gate.do(lambda tx: has_live_token(tx, id)))


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
def test_the_token_of_a_task_ends_with_it_whatever_the_end(end: str) -> None:
    mesh = TaskMesh()
    mesh.b.run_by_hub()
    id = mesh.create()
    (claimed,) = mesh.b.claim()
    mesh.b.note_started(claimed)
    assert is_token_live(mesh.b, id)
    if end == "complete":
        mesh.b.complete(id, 1)
    elif end == "fail":
        mesh.b.report(id, "fail", error="no")
    else:
        mesh.a.cancel(id)
        mesh.flow()
    assert not is_token_live(mesh.b, id)


def test_a_task_of_a_hub_run_agent_needs_no_mailbox() -> None:
    mesh = TaskMesh()
    mesh.b.run_by_hub()
    id = mesh.create()
    assert mesh.b.gate.mail() == []
    assert mesh.a.gate.state(id) == "processed"
    assert mesh.a.task(id).state == "pending"


def test_a_local_task_of_an_agent_that_runs_by_itself() -> None:
    mesh = TaskMesh()
    id = mesh.a.create(mesh.a)
    assert mesh.a.accept(id).state == "running"
    mesh.a.report(id, "update", progress=0.5)
    assert mesh.a.complete(id, [1]).state == "completed"
    assert mesh.a.complete(id, [1]).state == "completed"
    with pytest.raises(IdempotencyConflict):
        mesh.a.complete(id, [2])
    assert mesh.a.kinds() == ["task_create", "task_accept", "task_update", "task_complete"]
    refs = {event.ref_event_id for event in mesh.a.gate.events() if event.kind in _REPORTED}
    assert refs == {id}


_REPORTED = (EventKind.TASK_ACCEPT, EventKind.TASK_UPDATE, EventKind.TASK_COMPLETE)


def test_accepting_again_after_a_lost_answer_changes_nothing() -> None:
    mesh = TaskMesh()
    id = mesh.a.create(mesh.a)
    mesh.a.accept(id)
    events = len(mesh.a.gate.events())
    assert mesh.a.report(id, "accept").state == "running"
    assert len(mesh.a.gate.events()) == events


def test_only_the_agent_of_a_task_reports_about_it() -> None:
    mesh = TaskMesh()
    id = mesh.a.create(mesh.b)
    mesh.flow()
    with pytest.raises(Forbidden):
        mesh.a.report(id, "accept")
    mesh.b.agent = "C"
    with pytest.raises(Forbidden):
        mesh.b.report(id, "complete", result=Raw(b"1"))


def test_an_agent_cannot_accept_what_a_session_is_for() -> None:
    mesh = TaskMesh()
    mesh.a.run_by_hub()
    id = mesh.a.create(mesh.a)
    with pytest.raises(WrongState):
        mesh.a.report(id, "accept")


def test_a_result_must_be_a_blob_that_is_here() -> None:
    mesh = TaskMesh()
    id = mesh.a.create(mesh.a)
    mesh.a.accept(id)
    with pytest.raises(UnknownBlob):
        mesh.a.report(id, "complete", result_ref="sha256:" + "0" * 64)
    assert mesh.a.task(id).state == "running"


def test_a_fault_of_ours_with_a_request_costs_no_other_event_of_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = TaskMesh()
    bad = mesh.a.create(mesh.b)
    honest = mesh.a.gate.send(mesh.b.gate).event_id
    build = mesh.b.engine.executed._build_task

    def fail(tx: Tx, requested: TaskRequested, request: TaskRequest | None) -> Task:
        if requested.envelope.event_id == bad:
            raise KeyError("a bug")
        return build(tx, requested, request)

    monkeypatch.setattr(mesh.b.engine.executed, "_build_task", fail)
    mesh.flow()
    assert honest in mesh.b.gate.mail()
    assert not mesh.b.knows(bad)
    assert mesh.b.gate.incidents("task_event_ignored") == [f"a/{bad}"]
    assert mesh.wire.errors == []


def test_a_stranger_cannot_cancel_a_task() -> None:
    """The cancellation names a task of another requester."""
    mesh = TaskMesh()
    id = mesh.b.create(mesh.b)
    mesh.b.accept(id)
    fake = mesh.create()
    mesh.a.gate.connection.execute("UPDATE task SET id = ? WHERE executor = 'remote'", (_raw(id),))
    mesh.a.cancel(id)
    mesh.flow()
    assert mesh.b.task(id).state == "running"
    assert mesh.b.task(fake).state == "pending"
    assert mesh.b.gate.incidents("task_event_ignored") != []


def _raw(id: str) -> bytes:
    return bytes.fromhex(id.replace("-", ""))


def test_a_local_cancellation_is_an_event_with_its_receipts() -> None:
    mesh = TaskMesh()
    id = mesh.a.create(mesh.a)
    mesh.a.accept(id)
    mesh.a.cancel(id)
    (cancel,) = (e for e in mesh.a.gate.events() if e.kind == EventKind.TASK_CANCEL)
    assert (cancel.ref_event_id, cancel.source_agent_id, cancel.to_agent_id) == (id, "A", "A")
    receipts = [e for e in mesh.a.gate.events() if e.ref_event_id == cancel.event_id]
    assert len(receipts) == 2
