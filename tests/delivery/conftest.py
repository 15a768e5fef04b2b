"""The agents al and bob behind one gateway; and a world of three gateways: a, b and c."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gatepost.testing import ManualClock
from gatepost.wire import Register
from tests.delivery.post import Post
from tests.delivery.world import Box, World
from tests.gateway.tools import opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000_000)


@pytest.fixture
async def post(tmp_path: Path, clock: ManualClock) -> AsyncIterator["Post"]:
    async with opened(tmp_path / "state", clock, mailbox__max_pending=5) as operations:
        found = Post(operations)
        for agent in ("al", "bob"):
            await operations.perform(Register(agent=agent))
        yield found


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    for box in world.boxes.values():
        box.connection.close()


@pytest.fixture
def a(world: World) -> Box:
    return world.boxes["a"]


@pytest.fixture
def b(world: World) -> Box:
    return world.boxes["b"]


@pytest.fixture
def c(world: World) -> Box:
    return world.boxes["c"]
