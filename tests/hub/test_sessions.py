import pytest

from gatepost.errors import WrongState
from gatepost.hub.runtimes.runtime import SessionHandle
from gatepost.hub.session_states import SessionState
from gatepost.hub.sessions import (
    change_session,
    end_session,
    find_session,
    note_running,
    open_session,
    open_sessions,
    session_name,
)
from tests.hub.harness import HubHarness


def test_a_session_is_found_by_its_task_with_its_handle(hub: HubHarness) -> None:
    task = hub.add_task()
    name = session_name(task)
    assert name.isalnum()
    hub.run(lambda tx: open_session(tx, name, task, "reviewer", "process"))
    handle = SessionHandle(name, {"pid": 5, "boot": "x"})
    hub.run(lambda tx: note_running(tx, name, handle))
    found = hub.run(lambda tx: find_session(tx, task))
    assert found is not None
    assert (found.task_id, found.handle, found.state) == (task, handle, SessionState.RUNNING)
    assert hub.run(open_sessions) == [found]
    hub.run(lambda tx: end_session(tx, name, 3, "exited"))
    assert hub.run(open_sessions) == []
    ended = hub.run(lambda tx: find_session(tx, task))
    assert ended is not None and (ended.exit_code, ended.state) == (3, SessionState.RECYCLED)


def test_a_session_changes_its_state_by_the_table(hub: HubHarness) -> None:
    task = hub.add_task()
    hub.run(lambda tx: open_session(tx, "s1", task, "reviewer", "process"))
    hub.run(lambda tx: change_session(tx, "s1", SessionState.CONFIGURING))
    with pytest.raises(WrongState):
        hub.run(lambda tx: change_session(tx, "s1", SessionState.MONITORING))
