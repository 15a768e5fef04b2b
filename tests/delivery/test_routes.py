"""Revoked gateways: events of theirs that count, and their own sends."""

import pytest
from msgspec.structs import replace

from gatepost.errors import NoRoute, Revoked
from gatepost.routing import RevokedGateway
from tests.delivery.mesh import Gate, Mesh


@pytest.fixture
def mesh() -> Mesh:
    mesh = Mesh("a", "b")
    mesh.link("a", "b")
    mesh.flow()
    return mesh


def _revoke(at: Gate, node: Gate, last_seq: int) -> None:
    others = {id: each for id, each in at.directory.gateways.items() if id != node.id}
    revoked = {node.id: RevokedGateway(node.key.public, last_seq)}
    at.directory = replace(at.directory, gateways=others, revoked=revoked)
    at.do(lambda tx: at.coordinator.room_changed(tx, at.directory))


def test_events_of_a_revoked_node_count_up_to_its_last_honoured_one(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    first, second, _ = a.send_many(b, 3)
    last = next(each.seq for each in a.events() if each.event_id == second)
    _revoke(b, a, last)
    mesh.flow()
    assert b.mail() == [first, second]
    assert b.value("SELECT seq FROM cursor WHERE source = 'a'") == last


def test_a_revoked_gateway_refuses_sends_to_others_and_serves_its_own_agents(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    _revoke(a, a, 0)
    with pytest.raises(Revoked, match="was revoked from its room"):
        a.send(b)
    assert a.send(a).state == "accepted"


def test_nothing_is_encrypted_for_a_revoked_node(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    _revoke(b, a, 9)
    with pytest.raises(NoRoute):
        b.core.routes.public_key("a")
    assert b.core.routes.sender_key("a") == a.key.public


def test_the_lowest_limit_of_several_revocations_stands(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    for last_seq in (5, 3, 8):
        _revoke(b, a, last_seq)
    assert b.core.routes.honoured_seqs == {"a": 3}
