"""How a gateway stands with others, in words: reached or not, last heard, what waits and why."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gatepost.core.gateway_core import Core
from gatepost.events import EventIdGenerator, parse_event_id
from gatepost.gateway.monitoring.peer_statuses import PeerStatuses
from gatepost.testing import ManualClock
from gatepost.wire.gateway_views import PeerStatus
from tests.gateway.tools import opened

pytestmark = pytest.mark.anyio

_OPEN = """
INSERT INTO delivery (event_id, from_agent, to_agent, corr_id, state, emitted_at, accepted_at,
    replies_to, node, reason, attempt)
VALUES (?, 'al', 'bob', 'c', 'emitted', ?, ?, 'caller', ?, ?, ?)
"""


class World:
    """A room of `here`, `vps` and `far`, with a link to `vps` only."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.relays: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.ids = EventIdGenerator(core.clock)
        self.room: Any = SimpleNamespace(
            effective=SimpleNamespace(
                nodes={
                    core.node.id: self.member(core.node.id, "ws://here"),
                    "vps": self.member("vps", "ws://vps:1/x"),
                    "far": self.member("far", None),
                }
            )
        )

    def member(self, id: str, endpoint: str | None) -> Any:
        record = SimpleNamespace(status="online", endpoint_ws=endpoint)
        return SimpleNamespace(id=id, record=record)

    async def open_delivery(
        self,
        node: str | None,
        *,
        age: int = 0,
        accepted: bool = False,
        reason: str | None = None,
        attempt: int = 1,
    ) -> None:
        now = self.core.clock.now()
        row = (
            parse_event_id(self.ids.next_id()),
            now - age,
            now if accepted else None,
            node,
            reason,
            attempt,
        )
        await self.core.commit(lambda tx: tx.execute(_OPEN, row))

    async def describe(self) -> dict[str, PeerStatus]:
        links: Any = SimpleNamespace(
            linked_peers=lambda: {"vps"},
            relay_of=self.relays.get,
            presence=SimpleNamespace(
                status_of=lambda member: member.record.status,
                reason_of=lambda node: None,
                seconds_silent=lambda node: 56.0 if node == "far" else 0.5,
            ),
        )
        replica: Any = SimpleNamespace(core=self.core, room=self.room)
        dialer: Any = SimpleNamespace(problems=self.problems)
        found = await PeerStatuses(replica, links, dialer).describe_peers()
        return {each.id: each for each in found}


async def test_a_gateway_is_reached_directly_by_relay_or_not(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        world = World(operations.core)
        found = await world.describe()
        assert list(found) == ["far", "vps"]
        assert (found["vps"].linked, found["vps"].problem) == (True, "")
        assert found["far"].last_heard_at == clock.now() - 56_000
        assert "no address" in found["far"].problem
        world.relays["far"] = "vps"
        relayed = (await world.describe())["far"]
        assert (relayed.linked, relayed.relay, relayed.problem) == (False, "vps", "")


async def test_a_gateway_that_cannot_be_dialled_has_its_problem_in_words(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        world = World(operations.core)
        world.room.effective.nodes["far"] = world.member("far", "ws://far:7")
        assert "not connected" in (await world.describe())["far"].problem
        world.problems["http://far:7"] = "http://far:7 cannot be reached (ConnectError)"
        problem = (await world.describe())["far"].problem
        assert problem == "http://far:7 cannot be reached (ConnectError)"


async def test_what_waits_for_a_gateway_is_counted_and_explained(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        world = World(operations.core)
        await world.open_delivery("vps", age=9_000, reason="held: full")
        await world.open_delivery("vps", age=4_000, attempt=3)
        await world.open_delivery("vps", accepted=True)
        await world.open_delivery("far", age=1_000)
        await world.open_delivery(operations.core.node.id)
        found = await world.describe()
        vps, far = found["vps"], found["far"]
        assert (vps.waiting, vps.accepted, vps.waiting_since) == (2, 1, clock.now() - 9_000)
        assert vps.why == "1 held: a mailbox there is full"
        assert (far.waiting, far.why) == (1, "it cannot be reached")
        assert operations.core.node.id not in found


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("homeless", "no gateway has their agent"),
        ("moved", "their agent is not registered there"),
        ("expiring", "it has not said yet whether it took them"),
        ("held: quota", "as many messages of this gateway as it takes"),
        ("held: sender", "that their sender lives here"),
        ("held: offer", "not confirmed yet"),
    ],
)
async def test_each_reason_to_wait_has_its_words(
    state: Path, clock: ManualClock, reason: str, words: str
) -> None:
    async with opened(state, clock) as operations:
        world = World(operations.core)
        await world.open_delivery("vps", reason=reason)
        assert words in (await world.describe())["vps"].why


async def test_a_linked_gateway_that_does_not_answer_is_waited_for(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        world = World(operations.core)
        await world.open_delivery("vps", attempt=3)
        assert (await world.describe())["vps"].why == "it has not answered yet, sent 3 times"


async def test_messages_for_no_gateway_of_the_room_are_told_too(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        world = World(operations.core)
        await world.open_delivery("gone")
        await world.open_delivery(None)
        found = await world.describe()
        assert found["gone"].problem == "it is not in the room"
        assert (found[""].waiting, found[""].problem) == (1, "no gateway can take these messages")


async def test_a_relayed_gateway_that_is_offline_is_said_to_be(
    state: Path, clock: ManualClock
) -> None:
    async with opened(state, clock) as operations:
        world = World(operations.core)
        world.room.effective.nodes["far"].record.status = "offline"
        world.relays["far"] = "vps"
        await world.open_delivery("far")
        far = (await world.describe())["far"]
        assert far.why == "it is offline, as far as this gateway knows"
