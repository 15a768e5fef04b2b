"""The agents al and bob behind one gateway; a mesh of a, b and c in memory; and a world of them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gatepost.testing import ManualClock
from gatepost.wire.operations import Register
from tests.delivery.mesh import Gate, Mesh
from tests.delivery.post import Post
from tests.delivery.world import World
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
def mesh() -> Mesh:
    return Mesh("a", "b", "c")


@pytest.fixture
def a(mesh: Mesh) -> Gate:
    return mesh["a"]


@pytest.fixture
def b(mesh: Mesh) -> Gate:
    return mesh["b"]


@pytest.fixture
def c(mesh: Mesh) -> Gate:
    return mesh["c"]
