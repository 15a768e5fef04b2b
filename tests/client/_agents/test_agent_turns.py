"""Which turn comes next, and which is never taken twice."""

from collections.abc import AsyncIterator

from msgspec import Raw

from gatepost.client._agents.agent_turns import AgentTurn, AgentTurns, TurnState
from gatepost.client._message import Message
from gatepost.wire.operations import LeasedMessage


async def nothing(_: str) -> AsyncIterator[bytes]:
    yield b""


def mail(id: str, sender: str = "a", receipt: str = "") -> Message:
    found = LeasedMessage(id, sender, "bob", Raw(b"null"), 0, 0, receipt or f"{id}.1", 10.0)
    return Message(found, nothing)


def taken(turns: AgentTurns, now: float = 0.0) -> list[str]:
    """Ids of the turns that may start now."""
    found = []
    while (turn := turns.start_next(now)) is not None:
        found.append(turn.message.msg_id)
    return found


def start(turns: AgentTurns, now: float = 0.0) -> AgentTurn:
    turn = turns.start_next(now)
    assert turn is not None
    return turn


def test_one_turn_a_sender_at_a_time() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1"), mail("a2"), mail("b1", "b")], 0.0)
    assert taken(turns) == ["a1", "b1"]


def test_the_next_of_a_sender_starts_when_the_one_before_has_ended() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1"), mail("a2"), mail("a3")], 0.0)
    for expected in ("a1", "a2", "a3"):
        turn = start(turns)
        assert turn.message.msg_id == expected
        assert taken(turns) == []
        turns.mark_done(turn, None)


def test_senders_take_turns() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1"), mail("a2"), mail("b1", "b"), mail("b2", "b")], 0.0)
    order = []
    for _ in range(4):
        turn = start(turns)
        order.append(turn.message.msg_id)
        turns.mark_done(turn, None)
    assert order == ["a1", "b1", "a2", "b2"]


def test_what_comes_again_while_its_turn_is_under_way_is_not_taken_twice() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1")], 0.0)
    turn = start(turns)
    assert turns.add_delivered([mail("a1", receipt="new")], 0.0) == []
    assert taken(turns) == []
    assert turn.lease_handle == "new"


def test_what_comes_again_while_it_waits_keeps_its_place() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1"), mail("a2")], 0.0)
    turns.add_delivered([mail("a1", receipt="new"), mail("a2", receipt="newer")], 0.0)
    turn = start(turns)
    assert (turn.message.msg_id, turn.lease_handle) == ("a1", "new")
    turns.mark_done(turn, None)
    assert taken(turns) == ["a2"]


def test_what_comes_again_after_its_turn_is_settled_again() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1")], 0.0)
    turn = start(turns)
    turns.mark_done(turn, Raw(b"1"))
    assert turns.add_delivered([mail("a1", receipt="new")], 0.0) == [turn]
    assert (turn.lease_handle, turn.reply) == ("new", Raw(b"1"))
    assert taken(turns) == []


def test_a_confirmed_turn_is_forgotten() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1")], 0.0)
    turn = start(turns)
    turns.mark_done(turn, None)
    turns.forget_turn(turn)
    assert len(turns) == 0


def test_a_failed_turn_gives_up_what_is_behind_it() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1"), mail("a2"), mail("b1", "b")], 0.0)
    turn = start(turns)
    turns.mark_failed(turn, "why")
    assert taken(turns) == ["b1"]


def test_a_failed_turn_is_taken_anew_when_its_message_is_delivered_anew() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1")], 0.0)
    turns.mark_failed(start(turns), "why")
    assert turns.add_delivered([mail("a1", receipt="new")], 0.0) == []
    assert taken(turns) == ["a1"]


def test_a_nack_the_gateway_has_not_heard_is_repeated_and_what_follows_is_left_alone() -> None:
    turns = AgentTurns()
    run = [mail("a1"), mail("a2")]
    turns.add_delivered(run, 0.0)
    turn = start(turns)
    turns.mark_failed(turn, "why")
    assert turns.add_delivered(run, 0.0) == [turn]
    assert taken(turns) == []


def test_a_turn_whose_lease_is_over_does_not_start() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1"), mail("a2")], 0.0)
    assert taken(turns, now=10.0) == []
    assert len(turns) == 0


def test_lost_leases_take_waiting_mail_with_them_but_not_turns_under_way() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1"), mail("a2")], 0.0)
    turn = start(turns)
    turns.drop_lost_leases(["a1.1", "a2.1"])
    assert turn.state is TurnState.RUNNING
    assert [each.message.msg_id for each in turns] == ["a1"]


def test_an_abandoned_turn_leaves_no_trace() -> None:
    turns = AgentTurns()
    turns.add_delivered([mail("a1")], 0.0)
    turns.abandon_turn(start(turns))
    assert len(turns) == 0
    turns.add_delivered([mail("a1", receipt="new")], 0.0)
    assert taken(turns) == ["a1"]


def test_unordered_turns_wait_for_no_other() -> None:
    turns = AgentTurns()
    loose = [mail("x1"), mail("x2"), mail("x3")]
    for message in loose:
        message._wire.order = "none"
    turns.add_delivered([mail("a1"), mail("a2"), *loose], 0.0)
    assert taken(turns) == ["a1", "x1", "x2", "x3"]


def test_a_failed_unordered_turn_takes_no_other_along() -> None:
    turns = AgentTurns()
    loose = [mail("x1"), mail("x2")]
    for message in loose:
        message._wire.order = "none"
    turns.add_delivered([*loose, mail("a1"), mail("a2")], 0.0)
    turn = start(turns)
    turns.mark_failed(turn, "broken", rejected=True)
    assert turn.rejected
    assert taken(turns) == ["x2", "a1"]
