"""Every pair of state and input is tried: those in the table, and all that are not."""

from itertools import product

import apsw
import pytest

from gatepost.errors import WrongState
from gatepost.hub.task_states import (
    SHOWN_STATUS,
    TERMINAL_STATES,
    TRANSITIONS,
    TaskInput,
    TaskState,
    target_of,
)
from gatepost.hub.tasks import change_task, load_task
from tests.hub.harness import HubHarness

PAIRS = list(product(TaskState, TaskInput))


@pytest.mark.parametrize(("state", "input"), [each for each in PAIRS if each in TRANSITIONS])
def test_a_transition_of_the_table_is_made(
    hub: HubHarness, state: TaskState, input: TaskInput
) -> None:
    id = hub.add_task(state=state)
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


def test_terminal_states_have_no_way_out() -> None:
    assert not any(source in TERMINAL_STATES for source, _ in TRANSITIONS)


def test_each_input_leads_to_one_state() -> None:
    assert {target_of(input) for input in TaskInput} <= set(TaskState)


def test_the_journal_itself_refuses_to_change_a_task_that_ended(hub: HubHarness) -> None:
    id = hub.add_task(state=TaskState.FAILED, ended_at=1)
    with pytest.raises(apsw.ConstraintError, match="never changes"):
        hub.connection.execute("UPDATE task SET state = 'running'")
    assert hub.run(lambda tx: load_task(tx, id)).state is TaskState.FAILED


def test_an_accepted_task_is_shown_as_pending() -> None:
    assert SHOWN_STATUS[TaskState.ACCEPTED] == "pending"
    assert set(SHOWN_STATUS.values()) == {
        "pending", "running", "completed", "failed", "cancelled"
    }  # fmt: skip
