"""What the gateway keeps for an agent between its calls is bounded."""

from typing import Any

import pytest

from gatepost.access import AgentSession
from gatepost.gateway.doors import DoorCaller
from gatepost.mcp.server import agent_desk
from gatepost.mcp.server.agent_desk import AgentDesk, AgentDesks, FollowedSend, MailInHand


def _caller(agent: str) -> DoorCaller:
    return DoorCaller(AgentSession(agent, agent, (), "access", "", 2**53, 0, "", True))


async def _perform(caller: DoorCaller, op: Any) -> Any:
    raise AssertionError("nothing is asked of the gateway")


def test_mail_in_hand_and_long_bodies_have_a_bound() -> None:
    desk = AgentDesk(_caller("bob"))
    size = 1024 * 1024
    for number in range(300):
        desk.take(MailInHand(f"h{number}", f"m{number}", "ann", long_body="x" * size))
        desk.follow(FollowedSend(f"e{number}", "ann"))
    assert len(desk.in_hand) == 200
    assert len(desk.followed) == 200
    assert "h299" in desk.in_hand
    kept = [each.long_body for each in desk.in_hand.values() if each.long_body is not None]
    assert sum(map(len, kept)) <= 4 * size
    assert desk.in_hand["h299"].long_body is not None


@pytest.mark.anyio
async def test_the_desk_that_was_used_least_recently_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_desk, "_MAX_DESKS", 3)
    desks = AgentDesks(_perform)
    for agent in ("a", "b", "c", "a", "d"):
        desks.open_desk(_caller(agent))
    assert [*desks._desks] == ["c", "a", "d"]
