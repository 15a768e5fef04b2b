"""Helpers for tests of the sender: members come and go, and time passes."""

from gatepost.events import EventKind, decode_payload
from gatepost.events.envelope import DeadLetterNotice, Signal
from gatepost.journal import Tx
from gatepost.routing import AgentHome, GatewayEntry, RoutingDirectory, RoutingRule
from tests.delivery.mesh import Gate, Mesh


def online(mesh: Mesh, *names: str, fallback: bool = False) -> None:
    """Everyone believes these to be there; with `fallback`, c stands by for b's agent."""
    gateways = {id: GatewayEntry(gate.key.public, id in names) for id, gate in mesh.gates.items()}
    agents = {id.upper(): AgentHome(id, ("c",) if id == "b" else ()) for id in mesh.gates}
    rules = {"B": RoutingRule("b", ("c",))} if fallback else {}
    if fallback:
        mesh["c"].do(lambda tx: mesh["c"].agents.register(tx, "B", standby=True))
    for gate in mesh.gates.values():
        gate.see(RoutingDirectory(gateways, agents, rules))


def wait(mesh: Mesh, ms: int) -> None:
    """Time passes, and everyone notices."""
    mesh.clock.advance(ms)
    for gate in mesh.gates.values():
        gate.do(lambda tx: None)
    mesh.flow()


def attempts(a: Gate, event_id: str) -> list[int]:
    return [e.attempt for e in a.events() if e.event_id == event_id]


def letters(a: Gate) -> list[DeadLetterNotice]:
    return [
        decode_payload(e, DeadLetterNotice) for e in a.events() if e.kind == EventKind.DEAD_LETTER
    ]


def signals(gate: Gate, to: str) -> list[str]:
    found = [e for e in gate.events() if e.kind == EventKind.SIGNAL and e.to_node_id == to]
    return [decode_payload(e, Signal).signal for e in found]


def take_turns(gate: Gate, tx: Tx) -> list[str]:
    """Whoever is B here takes and acks all there is."""
    mail = gate.dispatcher.dequeue(tx, "B", "x", 100)
    gate.coordinator.ack(tx, "B", [each.receipt for each in mail], [], {})
    return [each.msg_id for each in mail]
