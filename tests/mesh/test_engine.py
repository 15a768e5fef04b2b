"""One node among others: gossip, addresses, elections, and the limits of an admitted edge."""

from collections.abc import Callable

from msgspec.structs import asdict

from gatepost.mesh.decisions import (
    BackendReported,
    DatagramRefused,
    ElectionChanged,
    IntroPointsHeard,
    PeerStatusChanged,
    SendDatagram,
)
from gatepost.mesh.engine import MAX_BACKENDS
from gatepost.mesh.messages import (
    ANNOUNCE_BYTES,
    BackendUnhealthy,
    Heartbeat,
    IntroPoint,
    IntroPoints,
    KnownPeer,
    LeaseClaim,
    LeaseRelease,
    MeshRole,
    Payload,
    PeerAnnounce,
)
from gatepost.mesh.peer_states import PeerState
from gatepost.mesh.refusals import Refusal
from gatepost.wire.mesh_views import Term
from tests.mesh.harness import HEARTBEAT, TIMERS, Wire, WirePeer, at


def mesh_of(*names: str, **edges: int) -> Wire:
    """Backbone nodes with falling rank, and edges."""
    nodes = [WirePeer(name, priority=10 * number) for number, name in enumerate(names)]
    nodes += [WirePeer(name, priority, may_lead=False) for name, priority in edges.items()]
    wire = Wire(*nodes)
    wire.connect_all()
    wire.beat(TIMERS.takeover_ms // HEARTBEAT)
    assert wire.publishers() == [names[0]]
    return wire


def alive(wire: Wire, name: str) -> set[str]:
    return {peer.id for peer in wire.by_name[name].engine.peers if peer.is_alive}


def say(wire: Wire, source: str, target: str, payload: Payload) -> list[object]:
    """One datagram of a node, with everything right about it but its content."""
    sender, receiver = wire.by_name[source], wire.by_name[target]
    wire.now += 1
    cookie = receiver.engine._cookies.cookie_for(source, sender.address)
    datagram = sender.sign(payload, target, wire.now, echo=cookie)
    return [*receiver.node.receive(datagram, sender.address, at(wire.now))]


def test_a_line_of_three_becomes_a_full_mesh() -> None:
    wire = Wire(one := WirePeer("one"), WirePeer("two"), three := WirePeer("three"))
    one.engine.bootstrap_addresses = three.engine.bootstrap_addresses = ("two:7",)
    wire.beat(4)
    assert alive(wire, "one") == {"two", "three"} and alive(wire, "three") == {"one", "two"}


def test_everybody_knows_a_newcomer_within_three_heartbeats(
    count: Callable[[int, int], int],
) -> None:
    names = [f"n{number:02}" for number in range(count(20, 50))]
    wire = Wire(*map(WirePeer, names))
    newcomer = wire.by_name[names[-1]]
    wire.cut = {names[-1]}
    for node in list(wire.nodes.values())[:-1]:
        node.engine.bootstrap_addresses = tuple(
            each for each in wire.nodes if each not in (node.address, newcomer.address)
        )
    wire.beat(3)
    wire.cut = set()
    newcomer.engine.bootstrap_addresses = ("n00:7",)
    wire.beat(3)
    assert alive(wire, names[-1]) == set(names[:-1])
    assert all(names[-1] in alive(wire, name) for name in names[:-1])
    assert max(len(datagram) for *_, datagram in wire.sent) <= 1200


def test_the_best_node_takes_over_and_everybody_knows_its_term() -> None:
    wire = mesh_of("ann", "bob", "cat", dot=0)
    wire.cut = {"ann"}
    wire.beat(TIMERS.takeover_ms // HEARTBEAT + 1)
    assert wire.publishers() == ["bob"]
    for name in ("bob", "cat", "dot"):
        election = wire.by_name[name].engine.election
        assert (election.publisher, election.honoured) == ("bob", Term(2, "bob"))
    wire.cut = set()
    wire.beat(2)
    assert wire.publishers() == ["ann"]
    assert wire.by_name["dot"].engine.election.honoured == Term(3, "ann")


def test_a_restarted_node_of_better_rank_does_not_depose_a_publisher_that_is_alive() -> None:
    wire = mesh_of("ann", "bob", "cat")
    wire.cut = {"ann"}
    wire.beat(TIMERS.takeover_ms // HEARTBEAT + 1)
    restarted = WirePeer("ann", 0, honoured=Term(1, "ann"), now=wire.now, start=2)
    restarted.node.set_members(
        {name: each.member for name, each in wire.by_name.items()}, at(wire.now)
    )
    wire.nodes["ann:7"] = wire.by_name["ann"] = restarted
    wire.cut = set()
    wire.beat(6)
    assert wire.publishers() == ["bob"] and alive(wire, "ann") == {"bob", "cat"}
    assert restarted.engine.election.honoured == Term(2, "bob")


def test_a_graceful_stop_hands_over_at_once() -> None:
    wire = mesh_of("ann", "bob", "cat")
    ann = wire.by_name["ann"]
    wire.apply(ann, ann.node.release_lease(at(wire.now)))
    assert wire.publishers() == ["bob"]
    assert wire.by_name["cat"].engine.election.publisher == "bob"
    assert ann.node.tick(at(wire.now + HEARTBEAT)) == []


def test_status_changes_are_decisions_and_nothing_else_is() -> None:
    wire = mesh_of("ann", "bob")
    wire.decisions.clear()
    wire.beat(5)
    quiet = [decision for _, decision in wire.decisions if not isinstance(decision, SendDatagram)]
    assert quiet == []
    wire.cut = {"bob"}
    wire.beat(TIMERS.takeover_ms // HEARTBEAT)
    changes = [d for name, d in wire.decisions if name == "ann" and not hasattr(d, "datagram")]
    assert changes == [
        PeerStatusChanged("bob", PeerState.SUSPECT),
        PeerStatusChanged("bob", PeerState.DEAD),
    ]


def test_an_edge_neither_deposes_a_publisher_nor_becomes_one() -> None:
    wire = mesh_of("ann", "bob", eve=0)
    before = [asdict_election(wire, name) for name in ("ann", "bob")]
    refused = [DatagramRefused(Refusal.NOT_ALLOWED, "eve")]
    far = Term(10**9, "bob")
    for target in ("ann", "bob"):
        for payload in (
            LeaseClaim(0, Term(9, "eve")),
            LeaseClaim(0),
            LeaseRelease(),
            LeaseRelease(Term(1, "ann")),
            Heartbeat(
                role=MeshRole.PUBLISHER,
                known_peers=(),
                intro_point_count=0,
                priority=0,
                term=Term(9, "eve"),
            ),
            Heartbeat(
                role=MeshRole.PUBLISHER,
                known_peers=(),
                intro_point_count=0,
                priority=0,
                term=Term(9, "ann"),
            ),
            Heartbeat(
                role=MeshRole.STANDBY, known_peers=(), intro_point_count=0, priority=0, term=far
            ),
        ):
            assert say(wire, "eve", target, payload) == refused, payload
        assert (
            say(
                wire,
                "eve",
                target,
                Heartbeat(role=MeshRole.STANDBY, known_peers=(), intro_point_count=0, priority=0),
            )
            == []
        )
    assert [asdict_election(wire, name) for name in ("ann", "bob")] == before


def test_an_edge_that_reports_a_later_term_deposes_nobody() -> None:
    """An honest edge may be the last to know a term; the publisher then claims a later one."""
    wire = mesh_of("ann", "bob", eve=0)
    for counter in range(5, 50):
        report = Heartbeat(
            role=MeshRole.STANDBY,
            known_peers=(),
            intro_point_count=0,
            priority=0,
            term=Term(counter, "bob"),
        )
        say(wire, "eve", "ann", report)
    wire.beat()
    assert wire.publishers() == ["ann"]
    assert wire.by_name["ann"].engine.election.honoured == Term(6, "ann")


def test_an_edge_makes_nobody_else_look_alive() -> None:
    wire = mesh_of("ann", "bob", "cat", eve=0)
    wire.cut = {"cat"}
    for _ in range(TIMERS.takeover_ms // HEARTBEAT + 1):
        wire.beat()
        hint = KnownPeer("cat", "", "cat:7", "")
        say(
            wire,
            "eve",
            "ann",
            Heartbeat(role=MeshRole.STANDBY, known_peers=(hint,) * 9, intro_point_count=0),
        )
    assert "cat" not in alive(wire, "ann")


# What another implementation says with every heartbeat while it leads.
LITERAL_BEAT = Heartbeat(role=MeshRole.PUBLISHER, known_peers=(), intro_point_count=0)
LITERAL_STANDBY = Heartbeat(role=MeshRole.STANDBY, known_peers=(), intro_point_count=0)


def mesh_with_foreign_peer() -> Wire:
    """Ann leads; cat, whose priority is 5, is another implementation: only tests speak for it."""
    wire = Wire(WirePeer("ann", 9), WirePeer("bob", 20), WirePeer("cat", 30))
    wire.connect_all()
    wire.beat(TIMERS.takeover_ms // HEARTBEAT)
    assert wire.publishers() == ["ann"]
    wire.cut = {"cat"}
    return wire


def beat_literally(wire: Wire, times: int) -> None:
    for _ in range(times):
        for target in ("bob", "ann"):
            say(wire, "cat", target, LITERAL_BEAT)
        wire.beat()


def honoured_terms(wire: Wire) -> set[Term | None]:
    """What ann and bob honour now; None for one that sees no publisher in office."""
    elections = [wire.by_name[name].engine.election for name in ("ann", "bob")]
    return {election.honoured if election.publisher else None for election in elections}


def test_a_claim_without_a_term_counts_as_the_next_term() -> None:
    """One claim, then heartbeats, as another implementation sends them: all honour the claimant."""
    wire = mesh_with_foreign_peer()
    for target in ("ann", "bob"):
        say(wire, "cat", target, LeaseClaim(5))
    for _ in range(2 * TIMERS.takeover_ms // HEARTBEAT):
        beat_literally(wire, 1)
        assert honoured_terms(wire) == {Term(2, "cat")}


def test_a_foreign_publisher_leads_again_when_it_comes_back_from_a_cut() -> None:
    """It does not yield to a worse priority, and claims no second time: the others give way."""
    wire = mesh_with_foreign_peer()
    for target in ("ann", "bob"):
        say(wire, "cat", target, LeaseClaim(5))
    announcement = PeerAnnounce("", "key", "192.0.2.1:51820", "10.0.0.2")
    say(wire, "cat", "ann", announcement)
    beat_literally(wire, 3)
    wire.beat(TIMERS.takeover_ms // HEARTBEAT + 1)
    assert honoured_terms(wire) == {Term(3, "ann")}
    for _ in range(2 * TIMERS.takeover_ms // HEARTBEAT):
        beat_literally(wire, 1)
        assert honoured_terms(wire) == {Term(4, "cat")} and wire.publishers() == []


def test_a_gateway_that_missed_a_claim_honours_the_claimant_in_the_same_term() -> None:
    wire = mesh_with_foreign_peer()
    say(wire, "cat", "ann", LeaseClaim(5))
    beat_literally(wire, 2)
    assert honoured_terms(wire) == {Term(2, "cat")}


def test_a_publisher_that_missed_the_claim_yields_to_a_peer_that_does_not_yield() -> None:
    """The claim reached bob alone. Ann answers as long as suspicion takes, and gives way then."""
    wire = mesh_with_foreign_peer()
    say(wire, "cat", "bob", LeaseClaim(5))
    beat_literally(wire, TIMERS.suspect_ms // HEARTBEAT)
    assert wire.publishers() == ["ann"]
    beat_literally(wire, 2)
    assert wire.publishers() == []
    (term,) = honoured_terms(wire)
    assert term is not None and term.node == "cat" and term.counter < 12
    beat_literally(wire, 2 * TIMERS.takeover_ms // HEARTBEAT)
    assert honoured_terms(wire) == {term}


def test_a_foreign_publisher_that_yields_in_between_is_not_followed() -> None:
    wire = mesh_with_foreign_peer()
    for _ in range(2 * TIMERS.takeover_ms // HEARTBEAT):
        beat_literally(wire, 2)
        say(wire, "cat", "ann", LITERAL_STANDBY)
    assert wire.publishers() == ["ann"] and honoured_terms(wire) == {Term(1, "ann")}


def test_a_foreign_peer_that_stands_by_keeps_nobody_from_the_office() -> None:
    """It may not claim at all: its priority counts only while it leads."""
    wire = mesh_with_foreign_peer()
    for target in ("ann", "bob"):
        say(wire, "cat", target, LeaseClaim(5))
    beat_literally(wire, 1)
    for _ in range(TIMERS.takeover_ms // HEARTBEAT + 2):
        for target in ("ann", "bob"):
            say(wire, "cat", target, LITERAL_STANDBY)
        wire.beat()
    assert wire.publishers() == ["ann"] and honoured_terms(wire) == {Term(3, "ann")}


def test_a_worse_claim_without_a_term_deposes_nobody_and_is_answered() -> None:
    wire = mesh_of("ann", "bob", "cat")
    before = [asdict_election(wire, name) for name in ("ann", "bob")]
    assert say(wire, "cat", "bob", LeaseClaim(20)) == []
    (answer,) = say(wire, "cat", "ann", LeaseClaim(20))
    assert isinstance(answer, SendDatagram) and answer.address == "cat:7"
    assert b'"lease_claim","payload":{"priority":0,"term":[1,"ann"]}' in answer.datagram
    assert [asdict_election(wire, name) for name in ("ann", "bob")] == before


def test_a_claim_without_a_term_counts_once_the_publisher_is_dead() -> None:
    wire = mesh_of("ann", "bob", "cat")
    wire.cut = {"ann"}
    bob = wire.by_name["bob"].engine
    for _ in range(TIMERS.takeover_ms // HEARTBEAT - 2):
        wire.beat()
    assert not bob.election.is_publisher
    say(wire, "cat", "bob", LeaseClaim(20))
    assert bob.election.honoured == Term(2, "cat")


def test_hints_make_nobody_send_more_than_it_received() -> None:
    wire = mesh_of("ann", eve=0)
    members = {name: node.member for name, node in wire.by_name.items()}
    members |= {f"m{n}": WirePeer(f"m{n}").member for n in range(16)}
    ann = wire.by_name["ann"]
    ann.node.set_members(members, at(wire.now))
    victims = tuple(KnownPeer(f"m{n}", "", f"203.0.113.{n}:53", "") for n in range(16))
    ann.engine.peers.find_peer("eve").credit = 0  # type: ignore[union-attr]
    received = sent = 0
    for number in range(40):
        heartbeat = Heartbeat(
            role=MeshRole.STANDBY, known_peers=victims[:5], intro_point_count=number
        )
        datagram = wire.by_name["eve"].sign(heartbeat, "ann", wire.now)
        received += len(datagram)
        decisions = ann.node.receive(datagram, "eve:7", at(wire.now))
        decisions += ann.node.tick(at(wire.now))
        sent += sum(
            len(each.datagram)
            for each in decisions
            if isinstance(each, SendDatagram) and each.address.startswith("203.")
        )
    assert 0 < sent <= received


def test_a_forged_source_address_is_answered_with_no_more_than_it_sent() -> None:
    wire = mesh_of("ann", eve=0)
    ann, eve = wire.by_name["ann"], wire.by_name["eve"]
    ann.engine.peers.find_peer("eve").credit = 0  # type: ignore[union-attr]
    received = sent = 0
    for number in range(50):
        datagram = eve.sign(
            Heartbeat(role=MeshRole.STANDBY, known_peers=(), intro_point_count=number),
            "ann",
            wire.now,
        )
        received += len(datagram)
        for decision in ann.node.receive(datagram, "198.51.100.1:53", at(wire.now)):
            if isinstance(decision, SendDatagram):
                sent += len(decision.datagram)
    assert 0 < sent <= received
    sent_on_ticks = [d.address for d in ann.node.tick(at(wire.now)) if hasattr(d, "address")]
    assert "198.51.100.1:53" not in sent_on_ticks and "eve:7" in sent_on_ticks


def test_an_answer_is_as_long_as_its_question() -> None:
    wire = Wire(ann := WirePeer("a" * 100), bob := WirePeer("b"))
    for first, second in ((ann, bob), (bob, ann)):
        first.engine.bootstrap_addresses = (second.address,)
    wire.beat()
    announcements = [datagram for *_, datagram in wire.sent if b"peer_announce" in datagram]
    assert {len(each) for each in announcements} == {ANNOUNCE_BYTES}


def test_a_peer_that_moved_is_found_at_its_new_address() -> None:
    wire = mesh_of("ann", "bob")
    bob = wire.by_name["bob"]
    del wire.nodes["bob:7"]
    bob.address = "moved:9"
    wire.nodes["moved:9"] = bob
    wire.beat(3)
    peer = wire.by_name["ann"].engine.peers.find_peer("bob")
    assert peer is not None and peer.address == "moved:9" and peer.is_alive


def test_a_revoked_node_is_nobody() -> None:
    wire = mesh_of("ann", "bob")
    ann = wire.by_name["ann"]
    ann.node.set_members({"ann": ann.member}, at(wire.now))
    assert say(wire, "bob", "ann", LeaseClaim(0)) == [DatagramRefused(Refusal.UNKNOWN_SENDER)]
    assert ann.node.tick(at(wire.now + 1)) and not list(ann.engine.peers)


def test_intro_points_are_told_when_they_change() -> None:
    wire = mesh_of("ann", "bob")
    points = IntroPoints((IntroPoint("here"),), 7)
    for secs in (7, 8, 9):
        wire.by_name["bob"].engine.share_intro_points(points.intro_points, secs)
    wire.decisions.clear()
    wire.beat(9)
    heard = [d for name, d in wire.decisions if name == "ann" and isinstance(d, IntroPointsHeard)]
    assert heard == [IntroPointsHeard("bob", points)] * 3


def test_unhealthy_backends_are_told_with_every_heartbeat_within_a_bound() -> None:
    wire = mesh_of("ann", "bob")
    wire.by_name["bob"].engine.unhealthy_backends = tuple(f"b{n}" for n in range(40))
    wire.decisions.clear()
    wire.beat()
    heard = [d for _, d in wire.decisions if isinstance(d, BackendReported)]
    assert heard[0] == BackendReported("bob", "b0") and len(heard) == MAX_BACKENDS


def test_a_message_that_changes_nothing_is_no_decision() -> None:
    wire = mesh_of("ann", "bob")
    assert say(wire, "bob", "ann", PeerAnnounce("", "key", "bob:7", "10.0.0.2")) == []
    assert say(wire, "bob", "ann", BackendUnhealthy("x")) == [BackendReported("bob", "x")]


def asdict_election(wire: Wire, name: str) -> dict[str, object]:
    election = wire.by_name[name].engine.election
    shown = ElectionChanged(election.state, election.publisher, election.honoured)
    return asdict(shown) | {"highest": election.highest}
