"""Transfer requests: a gateway asks the owner of an agent for it, and may be refused."""

import pytest

from gatepost.delivery.transfers import CONSENT, TransferRefusal
from tests.delivery.world import Box, World


@pytest.fixture
def a(world: World) -> Box:
    return world.boxes["a"]


@pytest.fixture
def b(world: World) -> Box:
    return world.boxes["b"]


@pytest.fixture
def c(world: World) -> Box:
    return world.boxes["c"]


def requests(box: Box) -> list[tuple[str, str]]:
    rows = box.run(box.core.transfers.requests)
    return [(row.agent, row.node) for row in rows]


def test_a_node_that_hosts_an_agent_of_another_asks_for_it(world: World, b: Box, c: Box) -> None:
    assert c.run(lambda tx: c.core.transfers.ask_owner(tx, "job")) == "b"
    world.flow()
    assert requests(b) == [("job", "c")]
    world.restart("b")
    assert requests(b) == [("job", "c")], "it is not forgotten"


def test_an_agent_that_is_not_ours_is_not_written_down(world: World, b: Box, c: Box) -> None:
    c.run(lambda tx: c.core.transfers.ask_owner(tx, "nobody", owner="a"))
    c.run(lambda tx: c.core.transfers.ask_owner(tx, "job", owner="a"))
    world.flow()
    assert requests(world.boxes["a"]) == []


def test_an_owner_that_keeps_its_agent_refuses(world: World, b: Box, c: Box) -> None:
    c.run(lambda tx: c.core.transfers.ask_owner(tx, "job"))
    world.flow()
    (request,) = b.run(b.core.transfers.requests)
    b.run(lambda tx: b.core.transfers.refuse_request(tx, request, CONSENT))
    world.flow()
    assert requests(b) == []
    assert c.core.transfers.refused == {"job": TransferRefusal("b", CONSENT)}
    assert "gatepost agent give job c" in c.core.transfers.refused["job"].explain("job", "c")
    c.run(lambda tx: c.core.transfers.ask_owner(tx, "job"))
    assert c.core.transfers.refused == {}


def test_an_agent_without_another_owner_is_not_asked_for(b: Box) -> None:
    assert b.run(lambda tx: b.core.transfers.ask_owner(tx, "job")) is None
    assert b.run(lambda tx: b.core.transfers.ask_owner(tx, "nobody")) is None
