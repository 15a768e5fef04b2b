from itertools import pairwise, product

import pytest

from gatepost.errors import WrongState
from gatepost.hub.session_states import TRANSITIONS, SessionState, check_session_transition


def test_sessions_go_through_their_states_in_order() -> None:
    for source, target in pairwise(SessionState):
        check_session_transition(source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [pair for pair in product(SessionState, SessionState) if pair[1] not in TRANSITIONS[pair[0]]],
)
def test_other_transitions_are_refused(source: SessionState, target: SessionState) -> None:
    with pytest.raises(WrongState, match=f"is {source} cannot become {target}"):
        check_session_transition(source, target)
