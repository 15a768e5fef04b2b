"""Tasks that sessions execute: claims, launches, and the ends of both."""

import msgspec
import pytest

from gatepost.errors import InvalidToken, LaunchFailed, Revoked
from gatepost.events import EventKind
from gatepost.journal.transaction import Tx
from gatepost.tasks.session_runtime import SessionExit
from gatepost.tasks.session_tasks import ClaimedTask
from gatepost.tasks.sessions import find_session, open_sessions
from gatepost.tasks.task_table import TaskPayload
from gatepost.tasks.task_tokens import authenticate_task_token, renew_task_token
from tests.tasks.harness import has_live_token
from tests.tasks.task_mesh import TaskGate, TaskMesh

RESULT = TaskPayload(result=b"1", mark=b"1")


def claimed_task() -> tuple[TaskMesh, ClaimedTask]:
    """A task that `a` requested and `b` claimed."""
    mesh = TaskMesh()
    mesh.b.run_by_hub()
    mesh.create()
    (claimed,) = mesh.b.claim()
    return mesh, claimed


def record_end(gate: TaskGate, claimed: ClaimedTask, ended: SessionExit) -> None:
    id, name = claimed.task.id, claimed.session_name
    gate.gate.do(lambda tx: gate.engine.session_tasks.record_end(tx, id, name, ended))


def settle(gate: TaskGate, claimed: ClaimedTask, ended: SessionExit) -> None:
    id, name, result = claimed.task.id, claimed.session_name, RESULT if ended.is_success else None
    records = gate.engine.session_tasks
    gate.gate.do(lambda tx: records.settle_task(tx, id, name, ended, result, "it went wrong"))


def release(gate: TaskGate, claimed: ClaimedTask) -> None:
    id, name = claimed.task.id, claimed.session_name
    gate.gate.do(lambda tx: gate.engine.session_tasks.release_claim(tx, id, name))


def test_tasks_are_claimed_oldest_first_each_once_and_with_a_token() -> None:
    mesh = TaskMesh()
    mesh.b.run_by_hub()
    ids = []
    for gate in (mesh.a, mesh.b, mesh.a):
        ids.append(gate.create(mesh.b))
        mesh.flow()
        mesh.mesh.clock.advance(1)
    claimed = mesh.b.claim(2)
    assert [each.task.id for each in claimed] == ids[:2]
    assert [each.token.token.task_id for each in claimed] == ids[:2]
    assert [each.task.id for each in mesh.b.claim()] == ids[2:]
    assert mesh.b.claim() == []


def test_a_claimed_task_waits_like_any_other() -> None:
    mesh, claimed = claimed_task()
    mesh.flow()
    assert mesh.states(claimed.task.id) == ("pending", "pending")
    assert mesh.b.kinds() == []
    assert mesh.b.gate.do(lambda tx: find_session(tx, claimed.task.id)) is None


def test_a_task_is_accepted_and_runs_once_its_session_does() -> None:
    mesh, claimed = claimed_task()
    assert mesh.b.note_started(claimed) is False
    mesh.flow()
    assert mesh.states(claimed.task.id) == ("running", "running")
    assert mesh.b.kinds() == [EventKind.TASK_ACCEPT]


def test_a_task_begins_with_the_first_report_of_its_session() -> None:
    mesh, claimed = claimed_task()
    id, records = claimed.task.id, mesh.b.engine.session_tasks

    def report(tx: Tx) -> None:
        records.admit_report(tx, claimed.token.token)
        mesh.b.engine.executed.update_task(tx, id, 0.5, None, None)

    mesh.b.gate.do(report)
    assert mesh.b.note_started(claimed) is False, "its session goes on"
    mesh.b.gate.do(report)
    mesh.flow()
    assert mesh.states(id) == ("running", "running")
    assert mesh.a.task(id).progress == 0.5
    assert mesh.b.kinds().count(EventKind.TASK_ACCEPT) == 1


def test_a_session_whose_token_died_begins_no_task() -> None:
    mesh, claimed = claimed_task()
    release(mesh.b, claimed)
    token, records = claimed.token.token, mesh.b.engine.session_tasks
    with pytest.raises(Revoked):
        mesh.b.gate.do(lambda tx: records.admit_report(tx, token))
    assert mesh.b.task(claimed.task.id).state == "pending"


def test_a_session_that_completed_its_task_before_its_start_was_noted_must_stop() -> None:
    mesh, claimed = claimed_task()
    id, records = claimed.task.id, mesh.b.engine.session_tasks

    def complete(tx: Tx) -> None:
        records.admit_report(tx, claimed.token.token)
        mesh.b.engine.executed.complete_task(tx, id, RESULT)

    mesh.b.gate.do(complete)
    assert mesh.b.note_started(claimed) is True
    settle(mesh.b, claimed, SessionExit("stopped", -15))
    mesh.flow()
    assert mesh.states(id) == ("completed", "completed")


def test_the_eta_and_the_token_count_from_the_start() -> None:
    mesh = TaskMesh()
    mesh.b.run_by_hub()
    definition = {"name": mesh.b.agent, "command": ["true"], "eta_seconds": 60}
    mesh.b.registry.load_files({"a.json": msgspec.json.encode(definition)})
    id = mesh.create()
    (claimed,) = mesh.b.claim()
    ttl = claimed.token.token.expiry - claimed.token.token.issued
    mesh.mesh.clock.advance(30_000)
    mesh.b.note_started(claimed)
    now = mesh.mesh.clock.now()
    token = mesh.b.gate.do(lambda tx: authenticate_task_token(tx, claimed.token.text))
    assert (mesh.b.task(id).eta_at, token.expiry) == (now + 60_000, now + ttl)


def test_a_claim_that_is_released_leaves_a_dead_token_and_a_task_that_can_be_claimed() -> None:
    mesh, claimed = claimed_task()
    release(mesh.b, claimed)
    with pytest.raises((Revoked, InvalidToken)):
        mesh.b.gate.do(lambda tx: authenticate_task_token(tx, claimed.token.text))
    (again,) = mesh.b.claim()
    assert (again.task.id, again.session_name) == (claimed.task.id, claimed.session_name)
    mesh.b.note_started(again)
    release(mesh.b, claimed)
    assert mesh.b.gate.do(lambda tx: has_live_token(tx, claimed.task.id)), "it runs by now"


def test_a_session_of_a_task_that_was_cancelled_in_time_must_stop() -> None:
    mesh, claimed = claimed_task()
    mesh.b.cancel(claimed.task.id)
    assert mesh.b.note_started(claimed) is True
    settle(mesh.b, claimed, SessionExit("stopped", -15))
    mesh.flow()
    assert mesh.states(claimed.task.id) == ("cancelled", "cancelled")
    assert mesh.b.gate.do(open_sessions) == []


@pytest.mark.parametrize(
    ("ended", "state", "code"),
    [
        (SessionExit("exited", 0), "completed", None),
        (SessionExit("exited", 3), "failed", "session_failed"),
        (SessionExit("exited", -9), "failed", "executor_lost"),
        (SessionExit("lost"), "failed", "executor_lost"),
        (SessionExit("time_limit", -15), "failed", "time_limit"),
    ],
)
@pytest.mark.parametrize("is_start_noted", [True, False])
def test_a_task_ends_with_its_session(
    ended: SessionExit, state: str, code: str | None, is_start_noted: bool
) -> None:
    mesh, claimed = claimed_task()
    if is_start_noted:
        mesh.b.note_started(claimed)
    settle(mesh.b, claimed, ended)
    settle(mesh.b, claimed, SessionExit("lost"))
    mesh.flow()
    task = mesh.a.task(claimed.task.id)
    assert (task.state, task.error_code) == (state, code)
    assert not mesh.b.gate.do(lambda tx: has_live_token(tx, task.id))


@pytest.mark.parametrize("is_start_noted", [True, False])
def test_the_token_is_dead_once_the_end_is_on_record_and_its_task_waits_for_the_verdict(
    is_start_noted: bool,
) -> None:
    mesh, claimed = claimed_task()
    id = claimed.task.id
    if is_start_noted:
        mesh.b.note_started(claimed)
    token = mesh.b.gate.do(lambda tx: authenticate_task_token(tx, claimed.token.text))
    record_end(mesh.b, claimed, SessionExit("exited", 0))
    with pytest.raises(Revoked):
        mesh.b.gate.do(lambda tx: authenticate_task_token(tx, claimed.token.text))
    if is_start_noted:
        with pytest.raises(Revoked):
            mesh.b.gate.do(lambda tx: renew_task_token(tx, token, 1000))
    assert mesh.b.task(id).state == ("running" if is_start_noted else "pending")
    assert mesh.b.claim() == [], "its result may still be judged"
    assert mesh.b.gate.do(mesh.b.engine.session_tasks.end_stray_tasks) == []
    settle(mesh.b, claimed, SessionExit("exited", 0))
    assert mesh.b.task(id).state == "completed"


def test_a_verdict_that_comes_without_the_end_records_it_too() -> None:
    mesh, claimed = claimed_task()
    mesh.b.note_started(claimed)
    settle(mesh.b, claimed, SessionExit("exited", 0))
    assert mesh.b.gate.do(open_sessions) == []
    assert not mesh.b.gate.do(lambda tx: has_live_token(tx, claimed.task.id))


def test_the_sweep_ends_a_task_without_a_session_and_its_token() -> None:
    mesh, claimed = claimed_task()
    mesh.b.note_started(claimed)
    sweep = mesh.b.engine.session_tasks.end_stray_tasks
    assert mesh.b.gate.do(sweep) == [], "its session runs"
    mesh.b.gate.do(lambda tx: tx.execute("DELETE FROM session"))
    assert mesh.b.gate.do(sweep) == [claimed.task.id]
    mesh.flow()
    task = mesh.a.task(claimed.task.id)
    assert (task.state, task.error_code) == ("failed", "executor_lost")
    assert task.error == "no session works on it any more"
    assert not mesh.b.gate.do(lambda tx: has_live_token(tx, task.id))


def test_the_sweep_ends_the_token_of_a_task_that_waits_without_a_session() -> None:
    mesh, claimed = claimed_task()
    mesh.b.gate.do(lambda tx: tx.execute("DELETE FROM session"))
    mesh.b.gate.do(mesh.b.engine.session_tasks.revoke_stray_tokens)
    assert not mesh.b.gate.do(lambda tx: has_live_token(tx, claimed.task.id))
    (again,) = mesh.b.claim()
    assert again.task.id == claimed.task.id


def test_a_session_that_may_have_been_launched_is_lost_with_its_task() -> None:
    mesh, claimed = claimed_task()
    id = claimed.task.id
    settle(mesh.b, claimed, SessionExit("lost"))
    mesh.flow()
    assert mesh.states(id) == ("failed", "failed")
    assert mesh.a.task(id).error_code == "executor_lost"
    assert mesh.b.claim() == []


def test_a_task_whose_session_cannot_be_launched_is_refused() -> None:
    mesh, claimed = claimed_task()
    id, name, error = claimed.task.id, claimed.session_name, LaunchFailed("no such command")
    records = mesh.b.engine.session_tasks
    mesh.b.gate.do(lambda tx: records.fail_launch(tx, id, name, error))
    mesh.flow()
    assert mesh.states(id) == ("failed", "failed")
    assert mesh.a.task(id).error_code == "launch_failed"
    assert mesh.b.gate.do(open_sessions) == []


def test_a_claim_is_current_until_its_token_is_old_or_its_agent_another() -> None:
    mesh, claimed = claimed_task()
    records, token = mesh.b.engine.session_tasks, claimed.token.token
    middle = (token.issued + token.expiry) // 2
    assert records.is_current(claimed, middle - 1)
    assert not records.is_current(claimed, middle)
    mesh.b.run_by_hub()
    assert records.is_current(claimed, token.issued), "the same definition was read again"
    mesh.b.registry.load_files({})
    assert not records.is_current(claimed, token.issued)


def test_a_task_whose_definition_is_gone_is_refused() -> None:
    mesh = TaskMesh()
    mesh.b.run_by_hub()
    id = mesh.create()
    mesh.b.registry.load_files({})
    assert mesh.b.claim() == []
    mesh.flow()
    assert mesh.a.task(id).error_code == "unknown_agent"
