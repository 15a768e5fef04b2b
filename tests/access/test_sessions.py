from gatepost.access import sessions
from gatepost.access.sessions import NodeSession
from tests.access.gate import START, Gate


def test_who_enters_is_listed_until_it_leaves(gate: Gate) -> None:
    admitted = gate.join("mbp-jane")
    expected = NodeSession(admitted.session_id, "mbp-jane", START)
    assert gate.run(sessions.listed) == [expected]
    gate.run(lambda tx: sessions.close(tx, admitted.session_id))
    assert gate.run(sessions.listed) == []


def test_at_start_nobody_is_connected(gate: Gate) -> None:
    gate.join("mbp-jane")
    gate.run(sessions.close_all)
    assert gate.run(sessions.listed) == []
