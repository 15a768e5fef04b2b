"""Events that no node can take."""

from msgspec import Raw

from gatepost.delivery.send_request import fingerprint_send
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory
from gatepost.wire import NewSend
from tests.delivery.mesh import Gate, Mesh
from tests.delivery.sender.tools import letters

SECOND = 1_000
DAY = 86_400 * SECOND


def test_a_message_no_node_can_take_is_given_up_at_once_and_kept(mesh: Mesh, a: Gate) -> None:
    gateways = {"a": GatewayEntry(a.key.public)}
    a.see(RoutingDirectory(gateways, {"GONE": AgentHome(None)}))
    new = NewSend("A", "GONE", Raw(b"1"))
    sent = a.do(lambda tx: a.coordinator.send(tx, new, fingerprint_send(new)))
    assert (sent.state, sent.reason) == ("dead_letter", "no_route")
    assert [letter.reason for letter in letters(a)] == ["no_route"]
    assert a.rows("SELECT payload FROM undelivered") == [(b"1",)]
