"""Live connections: tracked while they run, ended on revocation, and their violations counted."""

import asyncio
from contextlib import ExitStack
from typing import Any, cast

import pytest

from gatepost.errors import GatepostError, Revoked, RoomViolation, Unavailable
from gatepost.links.connections.connection import PeerConnection
from gatepost.links.connections.peer_connections import MAX_PER_NODE, PeerConnections
from gatepost.room.service.room_replica import RoomReplica
from tests.gateway.tools import dump

pytestmark = pytest.mark.anyio


class _EndedConnection:
    """Stands in for a connection; records the errors it was ended with."""

    def __init__(self, node: str, session: str = "") -> None:
        self.node, self.session = node, session
        self.public_key = node.encode()
        self.idle = asyncio.Event()
        self.errors: list[GatepostError] = []
        self.opened_at = asyncio.get_running_loop().time()

    def end(self, error: GatepostError) -> None:
        self.errors.append(error)


class _Members:
    def __init__(self) -> None:
        self.revoked: set[bytes] = set()

    def by_key(self, tx: object, key: bytes) -> Any:
        return type("Known", (), {"revoked": key in self.revoked})()


def _track(connections: PeerConnections, connection: _EndedConnection) -> Any:
    return connections.track_connection(cast(PeerConnection, connection))


@pytest.fixture
def members() -> _Members:
    return _Members()


@pytest.fixture
def connections(replica: RoomReplica, members: _Members) -> PeerConnections:
    return PeerConnections(replica.core, cast(Any, members))


async def test_a_connection_is_counted_while_it_runs(connections: PeerConnections) -> None:
    ben = _EndedConnection("ben")
    with _track(connections, ben):
        assert len(connections) == 1
        assert [each.node for each in connections] == ["ben"]
    assert len(connections) == 0


async def test_a_node_has_a_few_connections_and_the_oldest_gives_way(
    connections: PeerConnections, replica: RoomReplica
) -> None:
    many = [_EndedConnection("ben") for _ in range(MAX_PER_NODE + 20)]
    cat = _EndedConnection("cat")
    with ExitStack() as stack:
        for each in [cat, *many]:
            stack.enter_context(_track(connections, each))
        assert len(connections) == MAX_PER_NODE + 1
        assert [bool(each.errors) for each in many] == [True] * 20 + [False] * MAX_PER_NODE
        assert cat.errors == []
    assert len(connections) == 0
    assert replica.core.abuse.counts() == {("ben", "quota_exceeded"): 20}


async def test_dead_connections_of_a_gateway_that_comes_back_are_no_abuse(
    connections: PeerConnections, replica: RoomReplica
) -> None:
    old = [_EndedConnection("ben") for _ in range(MAX_PER_NODE)]
    with ExitStack() as stack:
        for each in old:
            each.opened_at -= 120
            stack.enter_context(_track(connections, each))
        stack.enter_context(_track(connections, _EndedConnection("ben")))
    assert [bool(each.errors) for each in old] == [True] + [False] * (MAX_PER_NODE - 1)
    assert replica.core.abuse.counts() == {}


async def test_sessions_and_connections_we_opened_to_a_node_are_ended(
    connections: PeerConnections,
) -> None:
    ben, ben_dialled, eve = (
        _EndedConnection("ben", "s1"),
        _EndedConnection("ben"),
        _EndedConnection("eve", "s2"),
    )
    with _track(connections, ben), _track(connections, ben_dialled), _track(connections, eve):
        assert connections.end_sessions(["s1"], "ben") == 2
    assert [type(error) for error in ben.errors + ben_dialled.errors] == [Revoked, Revoked]
    assert eve.errors == []


async def test_a_revoked_peer_is_ended_at_once_and_when_it_comes_again(
    connections: PeerConnections, members: _Members
) -> None:
    ben, late = _EndedConnection("ben"), _EndedConnection("ben")
    with _track(connections, ben):
        assert ben.errors == []
        members.revoked.add(b"ben")
        connections.end_revoked()
        assert isinstance(ben.errors[0], Revoked)
    with _track(connections, late):
        assert isinstance(late.errors[0], Revoked)


async def test_all_connections_end_with_one_error(connections: PeerConnections) -> None:
    ben, eve, moved = _EndedConnection("ben"), _EndedConnection("eve"), Unavailable("moved")
    with _track(connections, ben), _track(connections, eve):
        connections.end_all(moved)
    assert (ben.errors, eve.errors) == ([moved], [moved])


async def test_waiting_for_idle_peers_is_bounded(connections: PeerConnections) -> None:
    ben = _EndedConnection("ben")
    with _track(connections, ben):
        await asyncio.wait_for(connections.wait_until_idle(0.01), 5)
        ben.idle.set()
        await asyncio.wait_for(connections.wait_until_idle(60), 5)


async def test_a_violation_is_counted_and_audited(
    connections: PeerConnections, replica: RoomReplica
) -> None:
    connections.count_incident("ben", RoomViolation("it is unsigned", rule="signature"))
    await replica.core.commit(lambda tx: None)
    assert connections.incident_counts == {"signature": 1}
    (row,) = [row for row in dump(replica.core)["audit"] if "room.violation" in row]
    assert "signature: it is unsigned" in row
