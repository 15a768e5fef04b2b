"""All links of a gateway: one reads, the rest wait; roles decide which parts a link gets."""

import pytest

from gatepost.delivery.accept import EventBatch
from gatepost.delivery.frames import SubscribeFrame, TakenFrame
from gatepost.errors import LinkError, Unavailable
from gatepost.journal import Tx
from gatepost.journal.outbox import EVERYBODY
from gatepost.links.blob_link_part import BlobLinkPart
from gatepost.links.relay_host import RelayHostPart
from tests.delivery.mesh import Gate, Mesh, Wire


@pytest.fixture
def mesh() -> Mesh:
    return Mesh("a", "b", "s", relays=["s"])


def subscriptions(wire: Wire, gate: Gate) -> int:
    return sum(isinstance(each, SubscribeFrame) for each in wire.end_of(gate).seen)


def test_an_outbox_is_read_over_one_link_and_over_another_when_that_ends(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    wires = [mesh.link("a", "b") for _ in range(3)]
    mesh.flow()
    assert [subscriptions(wire, a) for wire in wires] == [1, 0, 0]
    wires[0].cut()
    mesh.flow()
    assert [subscriptions(wire, a) for wire in wires] == [1, 1, 0]
    sent = a.send(b).event_id
    mesh.flow()
    assert b.mail() == [sent]


def test_only_a_relay_gets_the_part_of_a_relay(mesh: Mesh) -> None:
    wire = mesh.link("a", "s")
    parts = {gate.id: wire.end_of(gate).link.parts for gate in (mesh["a"], mesh["s"])}
    hosts = {id: any(isinstance(p, RelayHostPart) for p in each) for id, each in parts.items()}
    assert hosts == {"a": False, "s": True}


def test_a_peer_that_becomes_backbone_later_is_asked_to_relay(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    wire = mesh.link("a", "b")
    mesh.flow()
    (blobs,) = [p for p in wire.end_of(a).link.parts if isinstance(p, BlobLinkPart)]
    assert not blobs.relays
    a.backbone.add(b.id)
    a.peers.tend(0)
    assert blobs.relays


def test_live_peers_are_those_that_read_us_and_everybody_once_a_relay_follows(mesh: Mesh) -> None:
    a = mesh["a"]
    wire = mesh.link("a", "s")
    assert a.outbox.live_nodes == frozenset()
    mesh.flow()
    assert a.outbox.live_nodes == {"s"}
    mesh.link("b", "s")
    mesh.flow()
    assert a.outbox.live_nodes == {"s", EVERYBODY}
    wire.cut()
    assert a.outbox.live_nodes == frozenset()


def test_linked_peers_have_introduced_themselves(mesh: Mesh) -> None:
    a = mesh["a"]
    mesh.link("a", "b")
    assert a.peers.linked_peers() == set()
    mesh.flow()
    assert a.peers.linked_peers() == {"b"}


def test_how_far_a_peer_has_taken_our_outbox_is_known_at_once(mesh: Mesh) -> None:
    a, b = mesh["a"], mesh["b"]
    mesh.link("a", "b")
    mesh.flow()
    a.send_many(b, 3)
    mesh.flow()
    assert a.peers.acked_seq("b") >= 3
    assert a.peers.acked_seq("s") == 0


def test_a_link_error_is_an_incident_and_a_broken_connection_is_not(mesh: Mesh) -> None:
    a = mesh["a"]
    first = mesh.link("a", "b")
    mesh.flow()
    first.end_of(a).port.end(Unavailable("the network is gone"))
    mesh.flow()
    assert a.incidents("link_error") == []
    second = mesh.link("a", "b")
    mesh.flow()
    second.end_of(a).hear(TakenFrame("a", "a-1", 99, 1))
    mesh.flow()
    assert len(a.incidents("link_error")) == 1
    assert second.broken


def test_a_fault_of_ours_with_the_events_of_a_peer_ends_its_link_with_an_incident(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = mesh["a"], mesh["b"]
    wire = mesh.link("a", "b")
    mesh.flow()

    def fail(tx: Tx, batch: EventBatch) -> int:
        raise KeyError("a bug")

    monkeypatch.setattr(b.coordinator, "take_batch", fail)
    a.send(b)
    mesh.flow()
    assert wire.broken
    (subject,) = b.incidents("link_error")
    assert subject.startswith("a@")


def test_nothing_is_sent_or_called_back_after_a_link_has_ended(mesh: Mesh) -> None:
    a = mesh["a"]
    wire = mesh.link("a", "b")
    mesh.flow()
    port, called = wire.end_of(a).port, list[object]()
    port.commit(lambda tx: None, called.append)
    port.end(LinkError("over"))
    mesh.flow()
    port.send(TakenFrame("a", "a-1", 0, 1))
    assert called == []
    assert not wire.end_of(a).out


def test_a_relay_goes_on_with_its_sources_after_a_start(mesh: Mesh) -> None:
    a, b, s = mesh["a"], mesh["b"], mesh["s"]
    mesh.link("a", "s")
    reader = mesh.link("b", "s")
    mesh.flow()
    reader.cut()
    for wire in mesh.wires:
        wire.cut()
    s.start()
    mesh.link("a", "s")
    mesh.flow()
    sent = a.send(b).event_id
    mesh.flow()
    assert s.value("SELECT count(*) FROM replica WHERE source = 'a'") > 0
    mesh.link("b", "s")
    mesh.flow()
    assert b.mail() == [sent]
