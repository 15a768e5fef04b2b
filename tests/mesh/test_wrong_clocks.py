"""Elections among nodes of which some have a wrong clock, while the room carries their terms."""

import pytest

from gatepost.mesh.election_states import ElectionState
from gatepost.mesh.messages import Heartbeat, MeshRole
from simulation.elections.simulated_node import HashSigner
from tests.mesh.harness import HEARTBEAT, TIMERS, Wire, WirePeer

HOUR_SECS = 3660
HOUR_BEATS = 3_600_000 // HEARTBEAT
TAKEOVER = TIMERS.takeover_ms // HEARTBEAT + 3


class RoomWire(Wire):
    """Nodes that also read in the room which term each publisher claims."""

    def __init__(self, *nodes: WirePeer) -> None:
        super().__init__(*nodes)
        for node in nodes:
            # Hours of heartbeats, of which each is signed.
            node.judge._signer = HashSigner(node.key.public)

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            super().beat()
            elections = [node.engine.election for node in self.nodes.values()]
            terms = [e.honoured for e in elections if e.is_publisher and e.honoured is not None]
            for node in self.nodes.values():
                if terms:
                    node.engine.hear_room_term(max(terms), self.now)


def mesh_of(*names: str) -> RoomWire:
    """Nodes with falling rank; the first one leads."""
    wire = RoomWire(*(WirePeer(name, 10 * number) for number, name in enumerate(names)))
    wire.connect_all()
    wire.beat(TAKEOVER)
    assert wire.publishers() == [names[0]]
    return wire


def counter(wire: Wire) -> int:
    terms = [node.engine.election.highest for node in wire.nodes.values()]
    return max(term.counter for term in terms if term is not None)


def set_clock(wire: Wire, name: str, secs: int) -> None:
    wire.by_name[name].ahead_secs = secs


def wrong_clocks(wire: Wire, name: str) -> list[str]:
    return [each.node for each in wire.by_name[name].engine.clocks if each.is_wrong]


@pytest.mark.parametrize("secs", [HOUR_SECS, -HOUR_SECS, 8])
def test_a_publisher_whose_clock_is_wrong_leaves_the_lease_to_others(secs: int) -> None:
    wire = mesh_of("ann", "bob", "cat", "dot")
    before = counter(wire)
    set_clock(wire, "ann", secs)
    wire.beat(TAKEOVER)
    assert wire.publishers() == ["bob"]
    wire.beat(HOUR_BEATS)
    assert wire.publishers() == ["bob"] and counter(wire) == before + 1
    for name in ("ann", "bob", "cat", "dot"):
        assert wrong_clocks(wire, name) == ["ann"], name
    set_clock(wire, "ann", 0)
    wire.beat(TAKEOVER)
    assert wire.publishers() == ["bob"] and counter(wire) == before + 1
    assert all(wrong_clocks(wire, name) == [] for name in wire.by_name)


def test_a_standby_whose_clock_is_wrong_does_not_claim() -> None:
    wire = mesh_of("ann", "bob", "cat")
    before = counter(wire)
    set_clock(wire, "bob", HOUR_SECS)
    wire.beat(HOUR_BEATS)
    assert wire.publishers() == ["ann"] and counter(wire) == before
    assert wrong_clocks(wire, "bob") == wrong_clocks(wire, "ann") == ["bob"]
    bob = wire.by_name["bob"].engine
    assert bob.is_barred and bob.election.state is ElectionState.VACANT


@pytest.mark.parametrize("second", [HOUR_SECS, -60])
def test_two_of_five_with_wrong_clocks_lead_neither_together_nor_apart(second: int) -> None:
    wire = mesh_of("ann", "bob", "cat", "dot", "eve")
    before = counter(wire)
    set_clock(wire, "ann", HOUR_SECS)
    set_clock(wire, "bob", second)
    wire.beat(TAKEOVER + HOUR_BEATS)
    assert wire.publishers() == ["cat"] and counter(wire) <= before + 2
    assert wrong_clocks(wire, "eve") == wrong_clocks(wire, "ann") == ["ann", "bob"]


def test_a_clock_that_jumps_and_returns_costs_one_term_at_most() -> None:
    wire = mesh_of("ann", "bob", "cat")
    before = counter(wire)
    for _ in range(10):
        set_clock(wire, "ann", HOUR_SECS)
        wire.beat(4)
        set_clock(wire, "ann", 0)
        wire.beat(TAKEOVER)
    assert len(wire.publishers()) == 1 and counter(wire) <= before + 1


def test_a_node_that_starts_with_a_wrong_clock_learns_it() -> None:
    wire = RoomWire(*(WirePeer(name, 10 * n) for n, name in enumerate(("ann", "bob", "cat"))))
    set_clock(wire, "ann", HOUR_SECS)
    wire.connect_all()
    wire.beat(TAKEOVER)
    assert wire.publishers() == ["bob"] and wrong_clocks(wire, "ann") == ["ann"]


def test_of_two_nodes_whose_clocks_differ_the_better_one_leads() -> None:
    wire = mesh_of("ann", "bob")
    before = counter(wire)
    set_clock(wire, "bob", HOUR_SECS)
    wire.beat(TAKEOVER + HOUR_BEATS)
    assert wire.publishers() == ["ann"] and counter(wire) <= before + 3
    wire.cut = {"ann"}
    wire.beat(2 * TAKEOVER)
    assert wire.publishers() == ["bob"], "its clock keeps it from nothing once it is alone"


def test_one_liar_silences_no_publisher() -> None:
    """Even a node that may lead, and though a third one that could tell is down."""
    wire = mesh_of("ann", "bob", "eve")
    wire.cut = {"bob"}
    set_clock(wire, "eve", HOUR_SECS)
    for _ in range(TAKEOVER):
        wire.beat()
        assert "ann" in wire.publishers()


def test_repeated_datagrams_of_dead_nodes_silence_no_publisher() -> None:
    """A stranger on the path keeps what bob and cat said to ann, and repeats it when they died."""
    wire = mesh_of("ann", "bob", "cat")
    kept = [(source, text) for source, to, text in wire.sent if to == "ann:7"][-40:]
    ann = wire.by_name["ann"]
    wire.cut = {"bob", "cat"}
    wire.beat(2 * TAKEOVER)
    for _ in range(TAKEOVER):
        wire.beat()
        for source, text in kept:
            ann.node.receive(text, source, ann.time(wire.now))
        assert wire.publishers() == ["ann"] and ann.engine.clocks == ()


def test_a_stranger_moves_no_clock() -> None:
    wire = mesh_of("ann", "bob", "cat")
    ann = wire.by_name["ann"]
    wire.cut = {"bob", "cat"}
    wire.beat(TAKEOVER)
    forged = Heartbeat(role=MeshRole.STANDBY, known_peers=(), intro_point_count=0)
    for name in ("bob", "cat"):
        liar = WirePeer(name)
        liar.judge._signer = HashSigner(b"key of eve")
        liar.ahead_secs = HOUR_SECS
        echo = ann.engine._cookies.cookie_for(name, f"{name}:7")
        text = liar.sign(forged, "ann", wire.now, echo=echo)
        ann.node.receive(text, f"{name}:7", ann.time(wire.now))
    wire.beat()
    assert ann.engine.clocks == () and wire.publishers() == ["ann"]
