from gatepost.access import node_sessions
from tests.access.harness import AccessHarness


def test_a_node_has_a_session_until_it_leaves(harness: AccessHarness) -> None:
    admitted = harness.join("mbp-jane")
    assert harness.connected_nodes() == {admitted.session_id: "mbp-jane"}
    harness.run(lambda tx: node_sessions.close_node_session(tx, admitted.session_id))
    assert harness.connected_nodes() == {}


def test_at_start_no_node_is_connected(harness: AccessHarness) -> None:
    harness.join("mbp-jane")
    harness.run(node_sessions.close_all_node_sessions)
    assert harness.connected_nodes() == {}
