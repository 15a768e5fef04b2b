"""Sweeps end what is left over, whatever is wrong with one of the tasks or its agent."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gatepost.events import parse_event_id
from gatepost.tasks.session_runtime import SessionExit
from gatepost.tasks.session_tasks import ClaimedTask
from gatepost.wire.tasks import NewTask
from tests.tasks.harness import has_live_token
from tests.tasks.task_mesh import TaskGate, TaskMesh
from tests.tasks.test_task_attempts import REVIEW, review_mesh, take_again

Harm = Callable[[TaskGate, str], None]


def remove_agent(gate: TaskGate, task: str) -> None:
    """As `gatepost agent remove`: it leaves the room too."""
    gate.gate.do(lambda tx: gate.gate.agents.remove(tx, "B", "operator"))
    homes = {name: home for name, home in gate.gate.directory.agents.items() if name != "B"}
    gate.gate.see(replace(gate.gate.directory, agents=homes))


def garble_task(gate: TaskGate, task: str) -> None:
    sql = "UPDATE task SET info = 'no JSON' WHERE id = ?"
    gate.gate.do(lambda tx: tx.execute(sql, (parse_event_id(task),)))


HARMS = pytest.mark.parametrize("harm", [remove_agent, garble_task])


def reviewing() -> TaskMesh:
    return review_mesh(replace(REVIEW, eligible=("B", "X")))


def claim_review(gate: TaskGate, requester: TaskGate, flow: Callable[[], None]) -> ClaimedTask:
    """A task of a capability, whose session runs."""
    new = NewTask(requester.agent, "review", to_agents=["B"], required_capabilities=["review"])
    requester.create_new(new)
    flow()
    (claimed,) = gate.claim()
    gate.note_started(claimed)
    return claimed


@HARMS
@pytest.mark.parametrize("requester", ["a", "b"])
def test_a_silent_task_that_cannot_be_tried_again_keeps_no_other_open(
    harm: Harm, requester: str
) -> None:
    mesh = reviewing()
    b, source = mesh.b, getattr(mesh, requester)
    b.gate.do(lambda tx: b.gate.agents.register(tx, "X"))
    new = NewTask(source.agent, "review", to_agents=["B"], required_capabilities=["review"])
    (broken,) = source.create_new(new)
    mesh.flow()
    take_again(b)
    (other,) = b.create_new(NewTask("B", "something else", to_agents=["X"]))
    b.agent = "X"
    take_again(b)
    harm(b, broken.id)
    mesh.mesh.clock.advance(61_000)
    b.gate.do(b.engine.reports.end_silent_tasks)
    for id in (broken.id, other.id):
        task = b.task(id)
        assert (task.state, task.error_code) == ("failed", "executor_lost")
    assert b.gate.do(b.engine.reports.end_silent_tasks) == 0


@HARMS
def test_a_stray_task_that_cannot_be_tried_again_leaves_no_live_token(harm: Harm) -> None:
    mesh = reviewing()
    b, records = mesh.b, mesh.b.engine.session_tasks
    b.run_by_hub()
    claimed = claim_review(b, mesh.a, mesh.flow)
    b.gate.do(lambda tx: tx.execute("DELETE FROM session"))
    harm(b, claimed.task.id)
    b.gate.do(records.revoke_stray_tokens)
    assert not b.gate.do(lambda tx: has_live_token(tx, claimed.task.id))
    assert b.gate.do(records.end_stray_tasks) == [claimed.task.id]
    assert b.task(claimed.task.id).state == "failed"


def test_a_lost_session_whose_agent_is_gone_ends_with_its_task_and_its_token() -> None:
    mesh = reviewing()
    b, records = mesh.b, mesh.b.engine.session_tasks
    b.run_by_hub()
    claimed = claim_review(b, mesh.a, mesh.flow)
    id, name, lost = claimed.task.id, claimed.session_name, SessionExit("lost")
    remove_agent(b, id)
    b.gate.do(lambda tx: records.settle_task(tx, id, name, lost, None, "it vanished"))
    assert not b.gate.do(lambda tx: has_live_token(tx, id))
    assert (b.task(id).state, b.task(id).error_code) == ("failed", "executor_lost")
    assert b.gate.rows("SELECT state FROM session") == [("recycled",)]


def test_a_task_that_cannot_be_settled_is_stopped_with_its_session() -> None:
    mesh = reviewing()
    b, records = mesh.b, mesh.b.engine.session_tasks
    b.run_by_hub()
    claimed = claim_review(b, mesh.b, mesh.flow)
    id, name, lost = claimed.task.id, claimed.session_name, SessionExit("lost")
    garble_task(b, id)
    with pytest.raises(Exception, match="internal error"):
        b.gate.do(lambda tx: records.settle_task(tx, id, name, lost, None, "it vanished"))
    b.gate.do(lambda tx: records.stop_task(tx, id, name, "it vanished"))
    assert not b.gate.do(lambda tx: has_live_token(tx, id))
    assert (b.task(id).state, b.task(id).error) == ("failed", "it vanished")
    assert b.gate.rows("SELECT state FROM session") == [("recycled",)]


@HARMS
def test_what_a_revoked_gateway_requested_ends_whatever_is_wrong_with_one_task(harm: Harm) -> None:
    mesh = reviewing()
    b = mesh.b
    ids = [mesh.create() for _ in range(3)]
    harm(b, ids[0])
    b.gate.do(lambda tx: b.engine.executed.end_tasks_of(tx, "a"))
    assert all(b.task(id).has_ended for id in ids)


@HARMS
def test_a_restored_gateway_ends_its_tasks_whatever_is_wrong_with_one(harm: Harm) -> None:
    mesh = reviewing()
    b = mesh.b
    ids = [b.create(b) for _ in range(3)]
    harm(b, ids[0])
    assert b.gate.do(b.engine.restored.end_restored_tasks) == 3
    assert b.gate.do(b.engine.restored.end_restored_tasks) == 0
    assert {b.task(id).error_code for id in ids} == {"executor_lost"}
