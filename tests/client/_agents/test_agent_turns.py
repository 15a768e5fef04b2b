"""Which turn comes next, and which is never taken twice."""

from collections.abc import AsyncIterator

from msgspec import Raw

from gatepost import wire
from gatepost.client._agents.agent_turns import AgentTurn, AgentTurns, TurnState
from gatepost.client._message import Message


async def nothing(_: str) -> AsyncIterator[bytes]:
    yield b""


def mail(id: str, sender: str = "a", receipt: str = "") -> Message:
    found = wire.LeasedMessage(id, sender, "bob", Raw(b"null"), 0, 0, receipt or f"{id}.1", 10.0)
    return Message(found, nothing)


def taken(desk: AgentTurns, now: float = 0.0) -> list[str]:
    """Ids of the turns that may start now."""
    found = []
    while (turn := desk.start_next(now)) is not None:
        found.append(turn.message.msg_id)
    return found


def start(desk: AgentTurns, now: float = 0.0) -> AgentTurn:
    turn = desk.start_next(now)
    assert turn is not None
    return turn


def test_one_turn_a_sender_at_a_time() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1"), mail("a2"), mail("b1", "b")], 0.0)
    assert taken(desk) == ["a1", "b1"]


def test_the_next_of_a_sender_starts_when_the_one_before_has_ended() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1"), mail("a2"), mail("a3")], 0.0)
    for expected in ("a1", "a2", "a3"):
        turn = start(desk)
        assert turn.message.msg_id == expected
        assert taken(desk) == []
        desk.mark_done(turn, None)


def test_senders_take_turns() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1"), mail("a2"), mail("b1", "b"), mail("b2", "b")], 0.0)
    order = []
    for _ in range(4):
        turn = start(desk)
        order.append(turn.message.msg_id)
        desk.mark_done(turn, None)
    assert order == ["a1", "b1", "a2", "b2"]


def test_what_comes_again_while_its_turn_is_under_way_is_not_taken_twice() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1")], 0.0)
    turn = start(desk)
    assert desk.add_delivered([mail("a1", receipt="new")], 0.0) == []
    assert taken(desk) == []
    assert turn.lease_handle == "new"


def test_what_comes_again_while_it_waits_keeps_its_place() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1"), mail("a2")], 0.0)
    desk.add_delivered([mail("a1", receipt="new"), mail("a2", receipt="newer")], 0.0)
    turn = start(desk)
    assert (turn.message.msg_id, turn.lease_handle) == ("a1", "new")
    desk.mark_done(turn, None)
    assert taken(desk) == ["a2"]


def test_what_comes_again_after_its_turn_is_settled_again() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1")], 0.0)
    turn = start(desk)
    desk.mark_done(turn, Raw(b"1"))
    assert desk.add_delivered([mail("a1", receipt="new")], 0.0) == [turn]
    assert (turn.lease_handle, turn.reply) == ("new", Raw(b"1"))
    assert taken(desk) == []


def test_a_confirmed_turn_is_forgotten() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1")], 0.0)
    turn = start(desk)
    desk.mark_done(turn, None)
    desk.forget_turn(turn)
    assert len(desk) == 0


def test_a_failed_turn_gives_up_what_is_behind_it() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1"), mail("a2"), mail("b1", "b")], 0.0)
    turn = start(desk)
    desk.mark_failed(turn, "why")
    assert taken(desk) == ["b1"]


def test_a_failed_turn_is_taken_anew_when_its_message_is_delivered_anew() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1")], 0.0)
    desk.mark_failed(start(desk), "why")
    assert desk.add_delivered([mail("a1", receipt="new")], 0.0) == []
    assert taken(desk) == ["a1"]


def test_a_nack_the_gateway_has_not_heard_is_repeated_and_what_follows_is_left_alone() -> None:
    desk = AgentTurns()
    run = [mail("a1"), mail("a2")]
    desk.add_delivered(run, 0.0)
    turn = start(desk)
    desk.mark_failed(turn, "why")
    assert desk.add_delivered(run, 0.0) == [turn]
    assert taken(desk) == []


def test_a_turn_whose_lease_is_over_does_not_start() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1"), mail("a2")], 0.0)
    assert taken(desk, now=10.0) == []
    assert len(desk) == 0


def test_lost_leases_take_waiting_mail_with_them_but_not_turns_under_way() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1"), mail("a2")], 0.0)
    turn = start(desk)
    desk.drop_lost_leases(["a1.1", "a2.1"])
    assert turn.state is TurnState.RUNNING
    assert [each.message.msg_id for each in desk] == ["a1"]


def test_an_abandoned_turn_leaves_no_trace() -> None:
    desk = AgentTurns()
    desk.add_delivered([mail("a1")], 0.0)
    desk.abandon_turn(start(desk))
    assert len(desk) == 0
    desk.add_delivered([mail("a1", receipt="new")], 0.0)
    assert taken(desk) == ["a1"]


def test_unordered_turns_wait_for_no_other() -> None:
    desk = AgentTurns()
    loose = [mail("x1"), mail("x2"), mail("x3")]
    for message in loose:
        message._wire.order = "none"
    desk.add_delivered([mail("a1"), mail("a2"), *loose], 0.0)
    assert taken(desk) == ["a1", "x1", "x2", "x3"]


def test_a_failed_unordered_turn_takes_no_other_along() -> None:
    desk = AgentTurns()
    loose = [mail("x1"), mail("x2")]
    for message in loose:
        message._wire.order = "none"
    desk.add_delivered([*loose, mail("a1"), mail("a2")], 0.0)
    turn = start(desk)
    desk.mark_failed(turn, "broken", rejected=True)
    assert turn.rejected
    assert taken(desk) == ["x2", "a1"]
