from gatepost.mesh.members import MeshMember
from gatepost.mesh.mesh_time import MeshTimers
from gatepost.mesh.peer_states import TRANSITIONS, PeerInput, PeerState
from gatepost.mesh.peer_table import MAX_PEERS, PeerTable

TIMERS = MeshTimers()


def states(table: PeerTable) -> dict[str, PeerState]:
    return {peer.id: peer.state for peer in table}


def test_a_peer_falls_silent_in_two_steps_and_comes_back() -> None:
    table = PeerTable(TIMERS)
    table.hear_peer("a", 100, now=0)
    table.check_silence(29_999)
    assert states(table) == {"a": PeerState.ALIVE}
    table.check_silence(30_000)
    assert states(table) == {"a": PeerState.SUSPECT}
    table.check_silence(119_999)
    table.check_silence(120_000)
    assert states(table) == {"a": PeerState.DEAD}
    assert table.take_changes() == {"a": PeerState.DEAD} and not table.take_changes()
    table.hear_peer("a", 100, now=130_000)
    assert table.take_changes() == {"a": PeerState.ALIVE}


def test_a_hint_is_no_sign_of_life_and_is_forgotten() -> None:
    table = PeerTable(TIMERS)
    assert table.hint_peer("a", "a:7", "b", now=0)
    assert states(table) == {"a": PeerState.HINTED} and not table.take_changes()
    assert not list(table.living_peers())
    table.check_silence(120_000)
    assert len(table) == 0


def test_a_hint_does_not_move_a_peer_that_is_alive() -> None:
    table = PeerTable(TIMERS)
    peer = table.hear_peer("a", 100, now=0)
    assert peer is not None
    table.prove_address(peer, "a:7")
    assert table.hint_peer("a", "elsewhere:7", "b", now=0) is None
    table.check_silence(30_000)
    assert table.hint_peer("a", "elsewhere:7", "b", now=0) is peer
    assert peer.address == "a:7"


def test_nobody_spends_more_bytes_than_it_sent() -> None:
    table = PeerTable(TIMERS)
    peer = table.hear_peer("a", 1000, now=0)
    assert peer is not None
    assert peer.spend_credit(900) and not peer.spend_credit(900)
    for _ in range(100):
        table.hear_peer("a", 1000, now=0)
    assert [peer.spend_credit(900) for _ in range(7)].count(True) == 5


def test_the_table_is_bounded_and_follows_the_room() -> None:
    table = PeerTable(TIMERS)
    for number in range(MAX_PEERS + 5):
        table.hear_peer(f"n{number}", 1, now=0)
    assert len(table) == MAX_PEERS
    table.keep_members({"n3": MeshMember("n3", b"")})
    assert states(table) == {"n3": PeerState.ALIVE} and set(table.take_changes()) == {"n3"}


def test_every_state_is_reached_and_only_a_datagram_makes_anybody_alive() -> None:
    assert set(TRANSITIONS.values()) | {PeerState.HINTED} == set(PeerState)
    for (_, input), target in TRANSITIONS.items():
        assert (target is PeerState.ALIVE) == (input is PeerInput.DATAGRAM)
