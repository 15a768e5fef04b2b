from gatepost.tasks.session_runtime import SessionHandle
from gatepost.tasks.session_states import SessionState
from gatepost.tasks.sessions import (
    claim_session,
    end_session,
    find_session,
    forget_claim,
    has_open_session,
    note_running,
    open_sessions,
    recycle_session,
    session_name,
)
from tests.tasks.harness import HubHarness


def test_a_session_is_found_by_its_task_with_its_handle(hub: HubHarness) -> None:
    task = hub.add_task()
    name = session_name(task)
    assert name.isalnum()
    hub.run(lambda tx: claim_session(tx, name, task, "reviewer", "process"))
    handle = SessionHandle(name, {"pid": 5, "boot": "x"})
    hub.run(lambda tx: note_running(tx, name, handle))
    found = hub.run(lambda tx: find_session(tx, task))
    assert found is not None
    assert (found.task_id, found.handle, found.state) == (task, handle, SessionState.RUNNING)
    assert hub.run(open_sessions) == [found]
    hub.run(lambda tx: end_session(tx, name, 3, "exited"))
    (ended,) = hub.run(open_sessions)
    assert (ended.exit_code, ended.state) == (3, SessionState.RECYCLING)
    assert hub.run(lambda tx: recycle_session(tx, name))
    assert hub.run(open_sessions) == []
    recycled = hub.run(lambda tx: find_session(tx, task))
    assert recycled is not None and recycled.state is SessionState.RECYCLED


def test_a_claim_is_no_session_yet_and_can_be_forgotten(hub: HubHarness) -> None:
    task = hub.add_task()
    hub.run(lambda tx: claim_session(tx, "s1", task, "reviewer", "process"))
    assert hub.run(lambda tx: find_session(tx, task)) is None
    assert hub.run(lambda tx: has_open_session(tx, task))
    assert hub.run(lambda tx: forget_claim(tx, "s1"))
    assert hub.run(open_sessions) == []
    assert not hub.run(lambda tx: has_open_session(tx, task))


def test_a_session_that_runs_is_not_forgotten_and_ends_once(hub: HubHarness) -> None:
    task = hub.add_task()
    hub.run(lambda tx: claim_session(tx, "s1", task, "reviewer", "process"))
    hub.run(lambda tx: note_running(tx, "s1", SessionHandle("s1", {})))
    assert not hub.run(lambda tx: forget_claim(tx, "s1"))
    assert hub.run(lambda tx: end_session(tx, "s1", 0, "exited"))
    assert not hub.run(lambda tx: end_session(tx, "s1", 1, "lost"))


def test_a_session_is_recycled_once_and_only_after_its_end(hub: HubHarness) -> None:
    task = hub.add_task()
    hub.run(lambda tx: claim_session(tx, "s1", task, "reviewer", "process"))
    assert not hub.run(lambda tx: recycle_session(tx, "s1"))
    hub.run(lambda tx: end_session(tx, "s1", 0, "exited"))
    assert hub.run(lambda tx: has_open_session(tx, task)), "its result has not been judged"
    assert hub.run(lambda tx: recycle_session(tx, "s1"))
    assert not hub.run(lambda tx: recycle_session(tx, "s1"))
    assert not hub.run(lambda tx: has_open_session(tx, task))
