"""The table of states, and that storage keeps to it."""

from itertools import product

import apsw
import pytest

from gatepost.errors import WrongState
from gatepost.mailbox import TRANSITIONS, Input, State
from gatepost.mailbox.states import TERMINAL, move, step
from tests.mailbox.post import SECOND, Post


def test_only_pending_is_dequeued() -> None:
    assert [s for s in State if (s, Input.DEQUEUE) in TRANSITIONS] == [State.PENDING]


def test_only_in_flight_is_acked_nacked_or_released() -> None:
    for event in (Input.ACK, Input.NACK, Input.RELEASE):
        assert [s for s in State if (s, event) in TRANSITIONS] == [State.IN_FLIGHT]


def test_expiry_never_strikes_in_flight() -> None:
    assert (State.IN_FLIGHT, Input.EXPIRE) not in TRANSITIONS


def test_terminal_states_take_no_input() -> None:
    assert not [key for key in product(TERMINAL, Input) if key in TRANSITIONS]


@pytest.mark.parametrize(("state", "event"), list(product(State, Input)))
def test_step_follows_the_table_or_is_refused(state: State, event: Input) -> None:
    if (state, event) in TRANSITIONS:
        assert step(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(WrongState, match=event.value):
            step(state, event)


def test_move_is_the_table_as_sql() -> None:
    assert move(Input.EXPIRE) == ("state = 5", "state IN (0, 2)")


def _settled(post: Post) -> dict[str, State]:
    """One message in each terminal state."""
    post.send("acked")
    post.ack(*post.dequeue())
    post.send("late", ttl=SECOND)
    post.tick(SECOND)
    post.send("dead")
    post.purge()
    return {"acked": State.ACKED, "late": State.EXPIRED, "dead": State.DEAD_LETTER}


@pytest.mark.parametrize("change", ["state = 0", "attempt = 0", "settled_at = 0", "lease = NULL"])
def test_terminal_states_are_immutable_in_storage(change: str) -> None:
    post = Post()
    for msg_id, state in _settled(post).items():
        assert post.states()[msg_id] == state.wire
        with pytest.raises(apsw.ConstraintError, match="never changes"):
            post.sql(f"UPDATE mail SET {change} WHERE msg_id = ?", (msg_id,))


@pytest.mark.parametrize("column", ["created_at", "msg_id", "arrival", "mailbox"])
def test_created_at_and_identity_are_immutable_in_storage(column: str) -> None:
    post = Post()
    post.send("m")
    with pytest.raises(apsw.ConstraintError, match="never change"):
        post.sql(f"UPDATE mail SET {column} = 7")
