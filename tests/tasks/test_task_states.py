"""Every pair of state and input is tried: those in the table, and all that are not."""

from functools import partial
from itertools import product

import apsw
import pytest

from gatepost.errors import WrongState
from gatepost.journal.transition_sql import target_of
from gatepost.tasks.task_states import (
    AMENDMENTS,
    SHOWN_STATUS,
    TERMINAL_STATES,
    TRANSITIONS,
    TaskInput,
    TaskState,
)
from gatepost.tasks.task_table import change_task, load_task
from tests.tasks.harness import HubHarness

PAIRS = list(product(TaskState, TaskInput))


@pytest.mark.parametrize(("state", "input"), [each for each in PAIRS if each in TRANSITIONS])
def test_a_transition_of_the_table_is_made(
    hub: HubHarness, state: TaskState, input: TaskInput
) -> None:
    presumed = {"ended_at": 1, "is_presumed": True} if input in AMENDMENTS else {}
    id = hub.add_task(state=state, **presumed)
    task = hub.run(lambda tx: change_task(tx, id, input))
    assert task.state is TRANSITIONS[state, input]
    assert hub.run(lambda tx: load_task(tx, id)) == task
    assert task.has_ended == (task.ended_at is not None)


@pytest.mark.parametrize(("state", "input"), [each for each in PAIRS if each not in TRANSITIONS])
def test_a_transition_that_is_not_in_the_table_is_refused_with_a_code(
    hub: HubHarness, state: TaskState, input: TaskInput
) -> None:
    ended = hub.clock.now() if state in TERMINAL_STATES else None
    id = hub.add_task(state=state, ended_at=ended)
    before = hub.run(lambda tx: load_task(tx, id))
    with pytest.raises(WrongState, match=f"is {state}"):
        hub.run(lambda tx: change_task(tx, id, input))
    assert hub.run(lambda tx: load_task(tx, id)) == before


def test_an_end_that_was_not_presumed_is_never_amended(hub: HubHarness) -> None:
    id = hub.add_task(state=TaskState.FAILED, ended_at=1)
    for input in AMENDMENTS:
        with pytest.raises(WrongState, match="is failed"):
            hub.run(partial(change_task, id=id, input=input))


def test_only_amendments_lead_out_of_terminal_states() -> None:
    ways_out = {input for source, input in TRANSITIONS if source in TERMINAL_STATES}
    assert ways_out == set(AMENDMENTS)


def test_an_end_is_amended_once(hub: HubHarness) -> None:
    id = hub.add_task(state=TaskState.FAILED, ended_at=1, is_presumed=True)
    task = hub.run(lambda tx: change_task(tx, id, TaskInput.AMEND_FAILED))
    assert (task.is_presumed, task.amended_at) == (False, hub.clock.now())
    with pytest.raises(WrongState, match="is failed"):
        hub.run(lambda tx: change_task(tx, id, TaskInput.AMEND_COMPLETED))


def test_each_input_leads_to_one_state() -> None:
    assert {target_of(TRANSITIONS, input) for input in TaskInput} <= set(TaskState)


def test_the_journal_itself_refuses_to_change_a_task_that_ended(hub: HubHarness) -> None:
    id = hub.add_task(state=TaskState.FAILED, ended_at=1)
    with pytest.raises(apsw.ConstraintError, match="never changes"):
        hub.connection.execute("UPDATE task SET state = 'running'")
    assert hub.run(lambda tx: load_task(tx, id)).state is TaskState.FAILED


def test_a_task_that_is_accepted_or_unknown_is_shown_as_pending() -> None:
    assert SHOWN_STATUS[TaskState.ACCEPTED] == SHOWN_STATUS[TaskState.UNKNOWN] == "pending"
    assert set(SHOWN_STATUS.values()) == {
        "pending", "running", "completed", "failed", "cancelled"
    }  # fmt: skip
