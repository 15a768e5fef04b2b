"""The transaction send: an event for another gateway, or mail for an agent of this one."""

from msgspec import Raw
from msgspec.structs import replace

from gatepost.delivery.send_request import fingerprint_send
from gatepost.events import EventKind, Receipt, decode_payload
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory, RoutingRule
from gatepost.wire.operations import NewSend
from tests.delivery.mesh import Gate, Mesh
from tests.delivery.tools import letters

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


def test_event_mail_delivery_and_receipt_are_one_transaction(a: Gate) -> None:
    groups = a.writer.group_count
    id = a.send(a).event_id
    assert a.writer.group_count == groups + 1
    assert (a.mail(), a.state(id)) == ([id], "accepted")
    message, receipt = a.events()
    assert (message.event_id, message.pair_seq, message.to_node_id) == (id, 1, "a")
    assert (receipt.ref_event_id, decode_payload(receipt, Receipt).status) == (id, "accepted")
    assert a.rows("SELECT * FROM inbox") == [], "it did not come from another outbox"


def test_an_event_of_a_pair_that_is_open_elsewhere_waits_for_it(mesh: Mesh, a: Gate) -> None:
    """The agent B moves home: its next message must not overtake the one that is at b."""
    wire = mesh.link("a", "b")
    mesh.flow()
    wire.end_of(mesh["b"]).tamper = lambda frame: None
    earlier = a.send(mesh["b"]).event_id
    mesh.flow()
    a.do(lambda tx: a.agents.register(tx, "B"))
    a.see(RoutingDirectory(a.directory.gateways, a.directory.agents | {"B": AgentHome("a")}))
    later = a.send(mesh["b"]).event_id
    assert (a.state(earlier), a.state(later)) == ("emitted", "emitted")
    assert a.rows("SELECT state FROM inbox") == [("held",)]
    assert [event.kind for event in a.events()] == [EventKind.MESSAGE, EventKind.MESSAGE]


def test_a_local_event_names_the_rule_that_routed_it_and_its_priority(a: Gate) -> None:
    rules = {"A": RoutingRule("a", priority=7, version=3)}
    a.see(replace(a.directory, rules=rules))
    a.send(a)
    message, _ = a.events()
    assert message.trace is not None
    assert (message.trace.policy_version, message.priority) == (3, 7)
