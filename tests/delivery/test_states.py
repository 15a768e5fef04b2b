"""The sender's state machine: a table that storage and diagrams are made from."""

import pytest

from gatepost.delivery.states import TERMINAL, TRANSITIONS, Input, State, move, step
from gatepost.errors import WrongState


def test_nothing_leads_out_of_an_end() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in TERMINAL]


def test_every_state_but_the_ends_can_reach_one() -> None:
    reaching = set(TERMINAL)
    for _ in State:
        reaching |= {source for (source, _), target in TRANSITIONS.items() if target in reaching}
    assert reaching == set(State)


def test_accepted_work_is_never_sent_again() -> None:
    again = {Input.RETRY, Input.REROUTE, Input.TIMEOUT}
    for state in (State.ACCEPTED, State.INCIDENT):
        assert not again & {event for source, event in TRANSITIONS if source is state}


def test_what_the_table_does_not_have_is_refused() -> None:
    assert step(State.EMITTED, Input.ACCEPT) is State.ACCEPTED
    with pytest.raises(WrongState, match="processed cannot take retry"):
        step(State.PROCESSED, Input.RETRY)


def test_a_move_is_guarded_by_where_it_may_come_from() -> None:
    assert move(Input.RETRY) == ("state = 'emitted'", "state IN ('retry_pending')")
