"""Every input is tried in every state that the journal can have of a session."""

from collections.abc import Callable
from itertools import product

import pytest

from gatepost.journal import Tx
from gatepost.tasks.session_runtime import SessionHandle
from gatepost.tasks.session_states import STORED_AS, TRANSITIONS, SessionInput, SessionState
from gatepost.tasks.sessions import claim_session, end_session, note_running, recycle_session
from tests.tasks.harness import HubHarness

STORED = sorted(set(STORED_AS.values()))
WRITE: dict[SessionInput, Callable[[Tx], object]] = {
    SessionInput.RUN: lambda tx: note_running(tx, "s1", SessionHandle("s1", {})),
    SessionInput.END: lambda tx: end_session(tx, "s1", 0, "exited"),
    SessionInput.RECYCLE: lambda tx: recycle_session(tx, "s1"),
}


@pytest.mark.parametrize(("state", "input"), [*product(STORED, WRITE)])
def test_the_journal_changes_a_session_only_as_the_table_says(
    hub: HubHarness, state: SessionState, input: SessionInput
) -> None:
    task = hub.add_task()
    hub.run(lambda tx: claim_session(tx, "s1", task, "reviewer", "process"))
    hub.run(lambda tx: tx.execute("UPDATE session SET state = ?", (state,)))
    hub.run(WRITE[input])
    permitted = {
        STORED_AS[target]
        for (source, taken), target in TRANSITIONS.items()
        if STORED_AS[source] is state and taken is input
    }
    found = hub.run(lambda tx: tx.fetch_one("SELECT state FROM session"))
    assert found == (permitted.pop() if permitted else state,)


def test_a_session_ends_once_from_every_state_before_its_end() -> None:
    ends = {source for source, input in TRANSITIONS if input is SessionInput.END}
    assert ends == set(SessionState) - {SessionState.RECYCLING, SessionState.RECYCLED}
    assert not [source for source, _ in TRANSITIONS if source is SessionState.RECYCLED]
