from gatepost.access import node_sessions
from tests.access.gate import Gate


def test_a_node_has_a_session_until_it_leaves(gate: Gate) -> None:
    admitted = gate.join("mbp-jane")
    assert gate.connected_nodes() == {admitted.session_id: "mbp-jane"}
    gate.run(lambda tx: node_sessions.close_node_session(tx, admitted.session_id))
    assert gate.connected_nodes() == {}


def test_at_start_no_node_is_connected(gate: Gate) -> None:
    gate.join("mbp-jane")
    gate.run(node_sessions.close_all_node_sessions)
    assert gate.connected_nodes() == {}
