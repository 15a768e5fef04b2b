"""A task between two gateways, as the one that requested it sees it."""

from functools import partial
from typing import Any

import msgspec
import pytest

from gatepost.errors import (
    GatepostError,
    IdempotencyConflict,
    InvalidTargets,
    MissingRouteFields,
    NoRoute,
    PolicyDenied,
    TaskQueueFull,
)
from gatepost.events import Envelope, EventKind, TaskInfo
from gatepost.journal import Tx
from gatepost.routing import GatewayEntry, RevokedGateway, RoutingDirectory
from gatepost.tasks.task_request import RequestContent
from gatepost.wire.tasks import NewTask
from tests.delivery.mesh import Gate
from tests.tasks.task_mesh import TaskMesh
from tests.tasks.test_task_routing import entry


def append_report(tx: Tx, gate: Gate, ref: str) -> None:
    """Report the failure of a task, without content."""
    draft = Envelope(
        event_id=gate.node.event_ids.next_id(),
        kind=EventKind.TASK_FAILED,
        source_agent_id="B",
        to_node_id="a",
        ref_event_id=ref,
    )
    tx.append_event(draft)


def test_a_task_goes_to_another_gateway_and_its_result_comes_back() -> None:
    mesh = TaskMesh()
    id = mesh.create(input={"n": 1})
    assert mesh.states(id) == ("pending", "pending")
    mesh.b.accept(id, eta_secs=60)
    mesh.flow()
    assert mesh.states(id) == ("running", "running")
    assert mesh.a.task(id).eta_at == mesh.mesh.clock.now() + 60_000
    assert mesh.a.task(id).executor_node == "b"
    mesh.b.report(id, "update", progress=0.5, note="half")
    mesh.flow()
    assert (mesh.a.task(id).progress, mesh.a.task(id).note) == (0.5, "half")
    mesh.b.complete(id, {"fine": True})
    mesh.flow()
    assert mesh.states(id) == ("completed", "completed")
    assert mesh.a.payload(id).result == b'{"fine":true}'
    assert mesh.a.gate.state(id) == "processed"
    assert mesh.b.kinds() == ["task_accept", "task_update", "task_complete"]


def test_the_content_of_a_task_is_encrypted_and_its_public_part_is_not() -> None:
    mesh = TaskMesh()
    id = mesh.create(description="a secret plan", task_type="review", input="hidden")
    mesh.b.accept(id)
    mesh.b.report(id, "update", progress=0.25, note="a secret note")
    mesh.b.complete(id, "a secret result")
    mesh.flow()
    written = [
        bytes(row[0])
        for gate in (mesh.a.gate, mesh.b.gate)
        for row in gate.rows("SELECT body FROM outbox")
    ]
    assert not any(b"secret" in body or b"hidden" in body for body in written)
    assert any(b'"taskType":"review"' in body for body in written)
    assert any(b'"progress":0.25' in body for body in written)


def test_a_failure_travels_with_its_code_and_sentence() -> None:
    mesh = TaskMesh()
    id = mesh.create()
    mesh.b.accept(id)
    mesh.b.report(id, "fail", error_code="too_hard", error="sorry")
    mesh.flow()
    task = mesh.a.task(id)
    assert (task.state, task.error_code, task.error) == ("failed", "too_hard", "sorry")
    failed = [e.task for e in mesh.b.gate.events() if e.kind == EventKind.TASK_FAILED]
    assert failed == [TaskInfo(failure_class="terminal_error")]


def requests_and_acceptances(gate: Gate, id: str) -> tuple[list[Any], list[Any]]:
    """The traces of a task's requests, and the payloads of its `ack(accepted)`, as others see."""
    written = [msgspec.json.decode(row[0]) for row in gate.rows("SELECT body FROM outbox")]
    traces = [each["trace"] for each in written if each["kind"] == "task_create"]
    acks = [each["payload"] for each in written if each["kind"] == "ack"]
    return traces, [each for each in acks if each["status"] == "accepted"]


def test_the_request_of_a_task_carries_its_attempt_and_the_version_of_the_capability_index() -> (
    None
):
    mesh = TaskMesh()
    mesh.a.engine.parts.router.capabilities = {"review": entry("review", "B")}
    (task,) = mesh.a.create_new(NewTask("A", "x", required_capabilities=["review"]))
    mesh.flow()
    ((trace,), _) = requests_and_acceptances(mesh.a.gate, task.id)
    assert (trace["attempt"], trace["policyVersion"]) == (1, 7)


@pytest.mark.parametrize("is_run_by_hub", [False, True])
@pytest.mark.parametrize("is_local", [False, True])
def test_the_acceptance_of_a_task_states_the_eta_of_its_capability(
    is_local: bool, is_run_by_hub: bool
) -> None:
    mesh = TaskMesh()
    executor = mesh.a if is_local else mesh.b
    if is_run_by_hub:
        executor.run_by_hub()
    for gate in (mesh.a, mesh.b):
        agent = executor.agent
        gate.engine.parts.router.capabilities = {"review": entry("review", agent, owner=agent)}
    (task,) = mesh.a.create_new(NewTask("A", "x", required_capabilities=["review"]))
    mesh.flow()
    _, accepted = requests_and_acceptances(executor.gate, task.id)
    assert [(each["etaSeconds"], each["etaAt"] > 60_000) for each in accepted] == [(60, True)]


def test_the_eta_of_an_agents_definition_precedes_that_of_the_capability() -> None:
    mesh = TaskMesh()
    mesh.b.run_by_hub(eta_seconds=5)
    mesh.b.engine.parts.router.capabilities = {"review": entry("review", "B")}
    id = mesh.create()
    _, (accepted,) = requests_and_acceptances(mesh.b.gate, id)
    assert accepted["etaSeconds"] == 5


def test_a_report_of_another_node_does_not_count() -> None:
    """B executes the task; C is a member of the room, and claims that it does."""
    mesh = TaskMesh()
    id = mesh.create()
    mesh.b.accept(id)
    mesh.flow()
    mesh.a.gate.connection.execute("UPDATE task SET executor_node = 'other'")
    mesh.b.gate.do(partial(append_report, gate=mesh.b.gate, ref=id))
    mesh.flow()
    assert mesh.a.task(id).state == "running"
    assert mesh.a.gate.incidents("task_event_ignored") != []


def test_reports_of_unknown_local_or_ended_tasks_are_ignored() -> None:
    mesh = TaskMesh()
    local = mesh.a.create(mesh.a)
    ended = mesh.create()
    mesh.b.accept(ended)
    mesh.b.complete(ended, 1)
    mesh.flow()
    for ref in (local, ended, mesh.a.gate.node.event_ids.next_id()):
        mesh.b.gate.do(partial(append_report, gate=mesh.b.gate, ref=ref))
    mesh.flow()
    assert mesh.a.task(local).state == "pending"
    assert mesh.a.task(ended).state == "completed"


def test_a_cancellation_reaches_the_executor_which_decides() -> None:
    mesh = TaskMesh()
    running, done = mesh.create(), mesh.create()
    mails = {mail.msg_id: mail.receipt for mail in mesh.b.take_mail()}
    for id in (running, done):
        mesh.b.report(id, "accept", receipt=mails[id])
    mesh.flow()
    assert mesh.a.cancel(running).state == "running", "until the executor has answered"
    mesh.b.complete(done, 1)
    mesh.a.cancel(done)
    mesh.flow()
    assert mesh.states(running) == ("cancelled", "cancelled")
    assert mesh.states(done) == ("completed", "completed")
    assert mesh.a.task(running).error == "enough"


def test_a_task_that_was_not_sent_yet_waits_for_its_gateway() -> None:
    mesh = TaskMesh()
    mesh.wire.cut()
    id = mesh.a.create(mesh.b)
    mesh.flow()
    assert mesh.a.task(id).state == "pending" and not mesh.b.knows(id)
    mesh.mesh.link("a", "b")
    mesh.flow()
    assert mesh.states(id) == ("pending", "pending")


def test_a_task_that_its_agent_rejects_has_failed_at_both_ends() -> None:
    mesh = TaskMesh()
    id = mesh.create()
    (handle,) = (mail.receipt for mail in mesh.b.take_mail())
    coordinator = mesh.b.gate.coordinator
    mesh.b.gate.do(lambda tx: coordinator.nack(tx, "B", [handle], [], "no", retry=False))
    mesh.flow()
    assert mesh.states(id) == ("failed", "failed")
    assert mesh.a.task(id).error_code in ("rejected", "undeliverable")


def test_a_request_that_expires_has_failed() -> None:
    mesh = TaskMesh()
    id = mesh.create(ttl_secs=10)
    mesh.mesh.clock.advance(11_000)
    for gate in (mesh.a.gate, mesh.b.gate):
        gate.do(lambda tx: None)
    mesh.flow()
    assert mesh.states(id) == ("failed", "failed")


def test_an_executor_that_begins_after_the_task_has_ended_is_told_to_stop() -> None:
    mesh = TaskMesh()
    id = mesh.create()
    requested, task = mesh.a.engine.requested, mesh.a.task(id)
    mesh.a.gate.do(lambda tx: requested.presume_failed(tx, task, "expired", "too late"))
    mesh.b.accept(id)
    mesh.flow()
    assert mesh.states(id) == ("cancelled", "cancelled"), "the word of the executor"
    assert mesh.b.task(id).error == "it had ended for its requester: expired"


def test_the_tasks_of_a_revoked_gateway_are_lost() -> None:
    mesh = TaskMesh()
    id = mesh.create()
    mesh.b.accept(id)
    mesh.flow()
    a, b = mesh.a.gate, mesh.b.gate
    revoked = {"b": RevokedGateway(b.key.public, 10_000)}
    a.see(RoutingDirectory({"a": GatewayEntry(a.key.public)}, a.directory.agents, {}, revoked))
    assert a.do(mesh.a.engine.requested.end_lost_tasks) == 1
    task = mesh.a.task(id)
    assert (task.state, task.error_code) == ("failed", "executor_lost")


def test_a_gateway_that_is_silent_for_too_long_has_lost_its_tasks() -> None:
    mesh = TaskMesh(abandon_secs=100)
    id = mesh.create()
    mesh.b.accept(id)
    mesh.flow()
    mesh.mesh.clock.advance(99_000)
    assert mesh.a.gate.do(mesh.a.engine.requested.end_lost_tasks) == 0
    mesh.mesh.clock.advance(2_000)
    assert mesh.a.gate.do(mesh.a.engine.requested.end_lost_tasks) == 1
    assert mesh.a.task(id).error_code == "executor_lost"


def test_a_repeated_call_makes_one_task() -> None:
    mesh = TaskMesh()
    first = mesh.a.create(mesh.b, idempotency_key="k")
    assert mesh.a.create(mesh.b, idempotency_key="k") == first
    assert mesh.a.create(mesh.b, task_id=first) == first
    for fields in ({"idempotency_key": "k"}, {"task_id": first}):
        with pytest.raises(IdempotencyConflict):
            mesh.a.create(mesh.b, "another", **fields)
    assert mesh.a.kinds() == ["task_create"]


def test_a_task_for_several_agents_is_one_task_for_each_of_them() -> None:
    mesh = TaskMesh()
    made = mesh.a.create_new(NewTask("A", "do it", to_agents=["B", "A", "nobody"]))
    assert [task.agent for task in made] == ["B", "A"]
    assert len({task.id for task in made}) == 2
    mesh.flow()
    assert mesh.b.knows(made[0].id)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"to_agents": ["nobody"]}, InvalidTargets),
        ({"to_agents": []}, InvalidTargets),
        ({}, MissingRouteFields),
        ({"required_capabilities": []}, MissingRouteFields),
        ({"required_capabilities": ["fly"]}, NoRoute),
        ({"to_agents": ["B"], "description": ""}, PolicyDenied),
    ],
)
def test_a_task_that_cannot_be_routed_is_refused_and_changes_nothing(
    fields: dict[str, object], error: type[GatepostError]
) -> None:
    mesh = TaskMesh()
    with pytest.raises(error):
        mesh.a.create_new(NewTask("A", **{"description": "x", **fields}))  # type: ignore[arg-type]
    assert mesh.a.kinds() == []
    assert mesh.a.gate.rows("SELECT 1 FROM task") == []


def test_the_policy_of_the_executors_gateway_counts_too() -> None:
    mesh = TaskMesh()
    mesh.b.policy.replace_rules(
        "permit (principal, action, resource)"
        ' unless { principal is Agent && principal.gateway == "a" };'
    )
    id = mesh.create()
    assert mesh.states(id) == ("failed", "failed")
    assert mesh.a.task(id).error_code == "policy_denied"


def test_the_queue_of_sessions_is_bounded_for_remote_tasks_too() -> None:
    mesh = TaskMesh(max_sessions=1, max_queued=1)
    mesh.b.run_by_hub()
    for_a_place, for_the_queue, beyond = mesh.create(), mesh.create(), mesh.create()
    for id in (for_a_place, for_the_queue):
        assert mesh.states(id) == ("pending", "pending")
    assert mesh.a.task(beyond).error_code == TaskQueueFull.code
    with pytest.raises(TaskQueueFull):
        mesh.b.create(mesh.b)


def test_a_large_result_completes_the_task_when_its_blob_is_here() -> None:
    mesh = TaskMesh()
    id = mesh.create()
    mesh.b.accept(id)
    digest = "sha256:" + "1" * 64
    sql = "INSERT INTO blob (digest, key, size, created_at) VALUES (?, ?, 9, 0)"
    mesh.b.gate.do(lambda tx: tx.execute(sql, (digest, b"k" * 32)))
    mesh.b.report(id, "complete", result_ref=digest)
    mesh.flow()
    assert mesh.states(id) == ("running", "completed")
    assert mesh.a.gate.blobs_wanted == [(digest, "b")]
    mesh.a.gate.do(lambda tx: mesh.a.gate.coordinator.blob_arrived(tx, digest))
    assert mesh.a.task(id).state == "completed"
    assert mesh.a.payload(id).result_ref == digest
    assert mesh.a.gate.rows("SELECT key, size FROM blob") == [(b"k" * 32, 9)]


@pytest.mark.parametrize("result", [b'1,"status":"failed"', b"\xff", b"", b"[" * 300 + b"]" * 300])
def test_a_result_that_clients_could_not_read_fails_the_task(result: bytes) -> None:
    """Clients get it inside a JSON document, which its executor could otherwise write on."""
    mesh = TaskMesh()
    id = mesh.create()
    mesh.b.accept(id)
    task = mesh.b.task(id)
    events = mesh.b.engine.executed._events
    mesh.b.gate.do(lambda tx: events.report(tx, task, EventKind.TASK_COMPLETE, TaskInfo(), result))
    mesh.flow()
    assert (mesh.a.task(id).state, mesh.a.task(id).error_code) == ("failed", "invalid_request")
    assert mesh.a.payload(id).result is None
    assert mesh.a.gate.core.abuse.counts() == {("b", "unreadable_payload"): 1}


def test_a_result_that_is_the_blob_of_another_fails_the_task() -> None:
    mesh = TaskMesh()
    id = mesh.create()
    mesh.b.accept(id)
    digest = "sha256:" + "1" * 64
    sql = "INSERT INTO blob (digest, key, size, created_at) VALUES (?, ?, 9, 0)"
    mesh.a.gate.do(lambda tx: tx.execute(sql, (digest, b"secret".ljust(32))))
    mesh.b.gate.do(lambda tx: tx.execute(sql, (digest, b"guessed".ljust(32))))
    mesh.b.report(id, "complete", result_ref=digest)
    mesh.flow()
    assert (mesh.a.task(id).state, mesh.a.payload(id).result_ref) == ("failed", None)
    assert mesh.a.gate.core.abuse.counts() == {("b", "foreign_blob"): 1}


def test_a_request_that_cannot_be_read_has_failed() -> None:
    mesh = TaskMesh()
    new = NewTask("A", "x", to_agents=["B"])
    content = RequestContent(b"mark", b"[1, 2]")
    requested = mesh.a.engine.requested
    (task,) = mesh.a.gate.do(lambda tx: requested.create_tasks(tx, new, content))
    mesh.flow()
    assert mesh.a.task(task.id).error_code == "invalid_request"
