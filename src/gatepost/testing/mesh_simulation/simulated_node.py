"""One node of a simulated mesh: a real core that forgets all but its term when it crashes."""

from hashlib import blake2b

from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.coordinator import MeshCoordinator
from gatepost.mesh.datagram_judge import DatagramJudge
from gatepost.mesh.decisions import MeshDecision, SendDatagram, SendMessage
from gatepost.mesh.members import MeshMember, MeshMembers
from gatepost.mesh.mesh_node import MeshNode
from gatepost.mesh.mesh_time import MeshTime, MeshTimers
from gatepost.mesh.messages import ANNOUNCE_BYTES, MeshMessage, PeerAnnounce, Term
from gatepost.mesh.outgoing_messages import MeshIdentity
from gatepost.testing.mesh_simulation.faults import NodePlan

# A message that was not encoded counts as so many bytes.
_HEARTBEAT_BYTES = 700
_EPOCH_SECS = 1_700_000_000

Parcel = MeshMessage | bytes


class HashSigner:
    """Signatures for simulations: as strict as real ones, and fifty times as fast."""

    def __init__(self, public_key: bytes) -> None:
        self._public_key = public_key

    def sign(self, text: bytes) -> bytes:
        return blake2b(text, key=self._public_key).digest()

    def verify(self, public_key: bytes, text: bytes, signature: bytes) -> bool:
        return blake2b(text, key=public_key).digest() == signature


class SimulatedMeshNode:
    """`on_wire`: it sends whole datagrams and judges them, rather than messages."""

    coordinator_type: type[MeshCoordinator] = MeshCoordinator

    def __init__(
        self, plan: NodePlan, members: MeshMembers, timers: MeshTimers, on_wire: bool
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self.is_running = False
        self.lives = 0
        self.kept_term: Term | None = None
        self.coordinator: MeshCoordinator
        self._members = members
        self._timers = timers
        self._on_wire = on_wire
        self._node: MeshNode

    def start(self, now: int) -> None:
        """A new life, in which nothing but the term is known."""
        self.lives += 1
        self.is_running = True
        cookies = AddressCookies(f"{self.name} {self.lives}".encode())
        identity = MeshIdentity(
            node=self.name,
            priority=self.plan.priority,
            may_lead=self.plan.may_lead,
            address=self.name,
        )
        self.coordinator = self.coordinator_type(
            identity, self._timers, cookies, now, self.kept_term
        )
        others = self._members
        self.coordinator.bootstrap_addresses = tuple(f"n{n:02}" for n in self.plan.bootstrap)
        signer = HashSigner(self._members[self.name].public_key)
        judge = DatagramJudge(self.name, signer, cookies, self._timers, now)
        self._node = MeshNode(self.coordinator, judge)
        self._node.set_members(others, self._mesh_time(now))

    def stop(self) -> None:
        self.is_running = False

    def tick(self, now: int) -> list[MeshDecision]:
        if self._on_wire:
            return self._node.tick(self._mesh_time(now))
        return self.coordinator.tick(now)

    def release_lease(self, now: int) -> list[MeshDecision]:
        if self._on_wire:
            return self._node.release_lease(self._mesh_time(now))
        return self.coordinator.release_lease()

    def receive(self, parcel: Parcel, source: str, now: int) -> list[MeshDecision]:
        if isinstance(parcel, bytes):
            return self._node.receive(parcel, source, self._mesh_time(now))
        announces = isinstance(parcel.payload, PeerAnnounce)
        size = ANNOUNCE_BYTES if announces else _HEARTBEAT_BYTES
        return self.coordinator.handle_message(parcel, source, size, now)

    def _mesh_time(self, now: int) -> MeshTime:
        return MeshTime(now, _EPOCH_SECS + now // 1000 + self.plan.skew_secs)


def parcel_of(decision: SendMessage | SendDatagram) -> Parcel:
    return decision.message if isinstance(decision, SendMessage) else decision.datagram


def make_members(plans: tuple[NodePlan, ...]) -> dict[str, MeshMember]:
    return {
        plan.name: MeshMember(plan.name, f"key of {plan.name}".encode(), plan.may_lead)
        for plan in plans
    }
