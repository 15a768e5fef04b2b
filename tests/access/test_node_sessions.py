from gatepost.access import node_sessions
from gatepost.access.node_sessions import NodeSession
from tests.access.gate import START, Gate


def test_who_enters_is_listed_until_it_leaves(gate: Gate) -> None:
    admitted = gate.join("mbp-jane")
    expected = NodeSession(admitted.session_id, "mbp-jane", START)
    assert gate.run(node_sessions.list_node_sessions) == [expected]
    gate.run(lambda tx: node_sessions.close_node_session(tx, admitted.session_id))
    assert gate.run(node_sessions.list_node_sessions) == []


def test_at_start_nobody_is_connected(gate: Gate) -> None:
    gate.join("mbp-jane")
    gate.run(node_sessions.close_all_node_sessions)
    assert gate.run(node_sessions.list_node_sessions) == []
