"""Mesh nodes with real keys, and a wire between them that a test may listen to."""

from gatepost.clock import Clock
from gatepost.events import NodeKey
from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.datagram_judge import DatagramJudge
from gatepost.mesh.datagram_signature import NodeKeySigner
from gatepost.mesh.decisions import MeshDecision, SendDatagram
from gatepost.mesh.engine import MeshEngine
from gatepost.mesh.members import MeshMember
from gatepost.mesh.mesh_node import MeshNode
from gatepost.mesh.mesh_time import MeshTime, MeshTimers
from gatepost.mesh.messages import MeshMessage, Payload
from gatepost.mesh.outgoing_messages import MeshIdentity
from gatepost.testing import ManualClock
from gatepost.wire.mesh_views import Term

ROOM = b"room"
EPOCH_SECS = 1_700_000_000
TIMERS = MeshTimers()
HEARTBEAT = TIMERS.heartbeat_ms


class WirePeer:
    """One node. Its address is its name and a port."""

    def __init__(
        self,
        name: str,
        priority: int = 10,
        may_lead: bool = True,
        honoured: Term | None = None,
        now: int = 0,
        start: int = 1,
    ) -> None:
        self.name, self.priority, self.may_lead = name, priority, may_lead
        self.address = f"{name}:7"
        self.ahead_secs = 0
        clock: Clock = ManualClock(seed=sum(name.encode()))
        self.key = NodeKey.generate(clock)
        self.signer = NodeKeySigner(self.key, ROOM)
        cookies = AddressCookies(f"secret of {name[:9]} {start}".encode())
        identity = MeshIdentity(
            node=name, priority=priority, may_lead=may_lead, address=self.address
        )
        self.engine = MeshEngine(identity, TIMERS, cookies, now, honoured)
        self.judge = DatagramJudge(name, self.signer, cookies, TIMERS, now)
        self.node = MeshNode(self.engine, self.judge)

    @property
    def member(self) -> MeshMember:
        return MeshMember(self.name, self.key.public, self.may_lead)

    def sign(self, payload: Payload, to: str | None, now: int = 0, echo: str = "") -> bytes:
        """Any message of this node, signed as it should be."""
        message = MeshMessage(self.name, payload, to, echo=echo)
        return self.judge.sign_message(message, self.time(now))

    def time(self, now: int) -> MeshTime:
        """The time as this node's clock shows it, which may be wrong."""
        return MeshTime(now, at(now).unix_secs + self.ahead_secs)


class Wire:
    """Nodes that hear each other at once. `sent` holds (from, to, datagram)."""

    def __init__(self, *nodes: WirePeer) -> None:
        self.nodes = {node.address: node for node in nodes}
        self.by_name = {node.name: node for node in nodes}
        self.now = 0
        self.sent: list[tuple[str, str, bytes]] = []
        self.decisions: list[tuple[str, MeshDecision]] = []
        self.cut: set[str] = set()
        members = {node.name: node.member for node in nodes}
        for node in nodes:
            node.node.set_members(members, at(0))

    def connect_all(self) -> None:
        for node in self.nodes.values():
            others = tuple(each for each in self.nodes if each != node.address)
            node.engine.bootstrap_addresses = others
        self.beat(3)

    def beat(self, times: int = 1) -> None:
        """So many heartbeats of all nodes that are not cut off."""
        for _ in range(times):
            self.now += HEARTBEAT
            for node in self.nodes.values():
                if node.name not in self.cut:
                    self.apply(node, node.node.tick(node.time(self.now)))

    def apply(self, node: WirePeer, decisions: list[MeshDecision]) -> None:
        for decision in decisions:
            self.decisions.append((node.name, decision))
            if isinstance(decision, SendDatagram):
                self.carry(node, decision.address, decision.datagram)

    def carry(self, node: WirePeer, address: str, datagram: bytes) -> None:
        self.sent.append((node.address, address, datagram))
        target = self.nodes.get(address)
        if target is not None and not {target.name, node.name} & self.cut:
            self.apply(target, target.node.receive(datagram, node.address, target.time(self.now)))

    def publishers(self) -> list[str]:
        running = [node for node in self.nodes.values() if node.name not in self.cut]
        return [node.name for node in running if node.engine.election.is_publisher]


def at(now: int) -> MeshTime:
    return MeshTime(now, EPOCH_SECS + now // 1000)
