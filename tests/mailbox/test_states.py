"""The table of states, and that storage keeps to it."""

from itertools import product

import apsw
import pytest

from gatepost.mailbox import TRANSITIONS, MailInput, MailState
from gatepost.mailbox.states import TERMINAL_STATES, transition_sql
from tests.mailbox.harness import SECOND, MailboxHarness


def test_only_pending_is_dequeued() -> None:
    assert [s for s in MailState if (s, MailInput.DEQUEUE) in TRANSITIONS] == [MailState.PENDING]


def test_only_in_flight_is_acked_nacked_or_released() -> None:
    for event in (MailInput.ACK, MailInput.NACK, MailInput.RELEASE):
        assert [s for s in MailState if (s, event) in TRANSITIONS] == [MailState.IN_FLIGHT]


def test_expiry_never_strikes_in_flight() -> None:
    assert (MailState.IN_FLIGHT, MailInput.EXPIRE) not in TRANSITIONS


def test_terminal_states_take_no_input() -> None:
    assert not [key for key in product(TERMINAL_STATES, MailInput) if key in TRANSITIONS]


def test_move_is_the_table_as_sql() -> None:
    assert transition_sql(MailInput.EXPIRE) == ("state = 5", "state IN (0, 2)")


def _settled(harness: MailboxHarness) -> dict[str, MailState]:
    """One message in each terminal state."""
    harness.send("acked")
    harness.ack(*harness.dequeue())
    harness.send("late", ttl=SECOND)
    harness.tick(SECOND)
    harness.send("dead")
    harness.purge()
    return {"acked": MailState.ACKED, "late": MailState.EXPIRED, "dead": MailState.DEAD_LETTER}


@pytest.mark.parametrize("change", ["state = 0", "attempt = 0", "settled_at = 0", "lease = NULL"])
def test_terminal_states_are_immutable_in_storage(change: str) -> None:
    harness = MailboxHarness()
    for msg_id, state in _settled(harness).items():
        assert harness.states()[msg_id] == state.wire_name
        with pytest.raises(apsw.ConstraintError, match="never changes"):
            harness.sql(f"UPDATE mail SET {change} WHERE msg_id = ?", (msg_id,))


@pytest.mark.parametrize("column", ["created_at", "msg_id", "arrival", "mailbox"])
def test_created_at_and_identity_are_immutable_in_storage(column: str) -> None:
    harness = MailboxHarness()
    harness.send("m")
    with pytest.raises(apsw.ConstraintError, match="never change"):
        harness.sql(f"UPDATE mail SET {column} = 7")
