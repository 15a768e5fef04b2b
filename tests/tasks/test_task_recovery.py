"""Tasks when something is lost, late or restored: leases, cancellations, gateways, journals."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gatepost.delivery.decisions import JournalLost
from gatepost.errors import GatepostError, WrongState
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory
from tests.tasks.task_mesh import TaskMesh


def test_a_lease_that_timed_out_begins_no_task() -> None:
    mesh = TaskMesh()
    id = mesh.create()
    (stale,) = (mail.receipt for mail in mesh.b.take_mail())
    mesh.mesh.clock.advance(31_000)
    mesh.b.gate.do(lambda tx: None)
    mesh.mesh.clock.advance(10_000)
    mesh.b.take_mail()
    with pytest.raises(GatepostError) as raised:
        mesh.b.report(id, "accept", receipt=stale)
    assert raised.value.code == "stale_receipt"
    assert mesh.b.task(id).state == "pending"


def test_the_silence_of_an_agent_begins_with_its_gateway() -> None:
    mesh = TaskMesh(agent_silence_secs=60)
    id = mesh.create()
    mesh.b.accept(id)
    end_silent = mesh.b.engine.reports.end_silent_tasks
    mesh.mesh.clock.advance(600_000)
    assert mesh.b.gate.do(end_silent) == 0, "the gateway was away, and not the agent"
    mesh.mesh.clock.advance(61_000)
    assert mesh.b.gate.do(end_silent) == 1


def test_a_cancellation_that_overtakes_its_task_counts() -> None:
    mesh = TaskMesh()
    mesh.wire.cut()
    id = mesh.a.create(mesh.b)
    mesh.a.cancel(id)
    held = mesh.b.engine.executed
    requests = []

    def hold(tx: object, requested: object) -> None:
        requests.append(requested)

    held.apply_request, honest = hold, held.apply_request  # type: ignore[method-assign]
    mesh.mesh.link("a", "b")
    mesh.flow()
    assert not mesh.b.knows(id)
    mesh.b.gate.do(lambda tx: honest(tx, requests[0]))
    mesh.flow()
    assert mesh.states(id) == ("cancelled", "cancelled")


def test_early_cancellations_of_one_gateway_are_bounded() -> None:
    mesh = TaskMesh()
    sql = "INSERT INTO early_cancel (source, task, reason, at) VALUES ('a', randomblob(16), '', 0)"
    mesh.b.gate.do(lambda tx: tx.execute_many(sql, [()] * 1000))
    id = mesh.create()
    executed = mesh.b.engine.executed
    with pytest.raises(WrongState, match="too many"):
        mesh.b.gate.do(lambda tx: executed.keep_early_cancel(tx, "a", id, ""))


def test_a_task_ends_although_its_requesters_gateway_has_left() -> None:
    mesh = TaskMesh()
    id = mesh.create()
    mesh.b.accept(id)
    b = mesh.b.gate
    b.see(RoutingDirectory({"b": GatewayEntry(b.key.public)}, b.directory.agents, {}))
    assert mesh.b.complete(id, 1).state == "completed"


def test_a_restored_gateway_has_no_open_tasks() -> None:
    mesh = TaskMesh()
    pending, running = mesh.create(), mesh.create()
    mesh.b.report(running, "accept")
    assert mesh.b.gate.do(mesh.b.engine.restored.end_restored_tasks) == 2
    for id in (pending, running):
        assert mesh.b.task(id).error_code == "executor_lost"
    assert mesh.b.gate.do(mesh.b.engine.restored.end_restored_tasks) == 0


def test_tasks_of_a_gateway_that_lost_its_journal_have_failed() -> None:
    mesh = TaskMesh()
    id = mesh.create()
    mesh.b.accept(id)
    mesh.flow()
    mesh.a.gate.do(lambda tx: mesh.a.engine.apply_notice(tx, JournalLost("b")))
    task = mesh.a.task(id)
    assert (task.state, task.error_code) == ("failed", "executor_lost")
    assert "restored" in (task.error or "")


def test_ends_are_reported_again_to_a_gateway_that_lost_its_journal() -> None:
    mesh = TaskMesh()
    done, failed = mesh.create(), mesh.create()
    mails = {mail.msg_id: mail.receipt for mail in mesh.b.take_mail()}
    for id in (done, failed):
        mesh.b.report(id, "accept", receipt=mails[id])
    mesh.flow()
    backup = mesh.a.gate.connection.execute("SELECT * FROM task").fetchall()
    mesh.b.complete(done, {"fine": True})
    mesh.b.report(failed, "fail", error_code="too_hard", error="sorry")
    mesh.flow()
    restore = mesh.a.gate.connection.execute
    restore("DELETE FROM task")
    for row in backup:
        restore(f"INSERT INTO task VALUES ({', '.join('?' * len(row))})", row)
    assert mesh.a.task(done).state == "running"
    mesh.b.gate.do(lambda tx: mesh.b.engine.apply_notice(tx, JournalLost("a")))
    mesh.flow()
    assert mesh.states(done) == ("completed", "completed")
    assert msgspec.json.decode(mesh.a.payload(done).result or b"") == {"fine": True}
    assert (mesh.a.task(failed).state, mesh.a.task(failed).error_code) == ("failed", "too_hard")


def test_a_cancellation_that_comes_home_before_its_task_counts() -> None:
    """Neither was sent before the agent got a home behind the requester's gateway."""
    mesh = TaskMesh()
    mesh.wire.cut()
    a = mesh.a.gate
    away = replace(a.directory.gateways["b"], online=False)
    a.see(replace(a.directory, gateways=a.directory.gateways | {"b": away}))
    id = mesh.a.create(mesh.b)
    mesh.a.cancel(id)
    executed = mesh.a.engine.executed
    requests: list[Any] = []

    def hold(tx: object, requested: object) -> None:
        requests.append(requested)

    executed.apply_request, honest = hold, executed.apply_request  # type: ignore[method-assign]
    a.do(lambda tx: a.agents.register(tx, "B"))
    a.see(replace(a.directory, agents=a.directory.agents | {"B": AgentHome("a")}))
    mesh.flow()
    assert mesh.a.task(id).state == "pending"
    a.do(lambda tx: honest(tx, requests[0]))
    assert mesh.a.task(id).state == "cancelled"
