"""One node of a simulated mesh: a real core that forgets all but its term when it crashes."""

from hashlib import blake2b

from msgspec import Struct

from gatepost.mesh.address_cookie import AddressCookies
from gatepost.mesh.datagram_judge import DatagramJudge
from gatepost.mesh.decisions import MeshDecision, SendDatagram, SendMessage
from gatepost.mesh.engine import MeshEngine
from gatepost.mesh.members import MeshMember, MeshMembers
from gatepost.mesh.mesh_node import MeshNode
from gatepost.mesh.mesh_time import MeshTime, MeshTimers
from gatepost.mesh.messages import ANNOUNCE_BYTES, MeshMessage, PeerAnnounce
from gatepost.mesh.outgoing_messages import MeshIdentity
from gatepost.wire.mesh_views import Term
from simulation.elections.faults import NodePlan

# A message that was not encoded counts as so many bytes.
_HEARTBEAT_BYTES = 700
_EPOCH_SECS = 1_700_000_000


class TimedMessage(Struct, frozen=True):
    """A message that was not encoded, and the time that its sender's clock showed."""

    message: MeshMessage
    unix_secs: int


Parcel = TimedMessage | bytes


class TunnelMember(MeshMember, frozen=True):
    """A member that a tunnel authenticates, wherever its datagrams come from."""

    def is_in_tunnel(self, source: str) -> bool:
        return True


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

    engine_type: type[MeshEngine] = MeshEngine

    def __init__(
        self, plan: NodePlan, members: MeshMembers, timers: MeshTimers, on_wire: bool
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self.is_running = False
        self.lives = 0
        self.kept_term: Term | None = None
        self.clock_fault_secs = 0
        self.engine: MeshEngine
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
        self.engine = self.engine_type(identity, self._timers, cookies, now, self.kept_term)
        others = self._members
        self.engine.bootstrap_addresses = tuple(f"n{n:02}" for n in self.plan.bootstrap)
        signer = HashSigner(self._members[self.name].public_key)
        judge = DatagramJudge(self.name, signer, cookies, self._timers, now)
        self._node = MeshNode(self.engine, judge)
        self._node.set_members(others, self._mesh_time(now))

    def stop(self) -> None:
        self.is_running = False

    def tick(self, now: int) -> list[MeshDecision]:
        if self._on_wire:
            return self._node.tick(self._mesh_time(now))
        return self.engine.tick(now)

    def release_lease(self, now: int) -> list[MeshDecision]:
        if self._on_wire:
            return self._node.release_lease(self._mesh_time(now))
        return self.engine.release_lease()

    def hear_room_term(self, term: Term, now: int) -> None:
        self.engine.hear_room_term(term, now)

    def receive(self, parcel: Parcel, source: str, now: int) -> list[MeshDecision]:
        if isinstance(parcel, bytes):
            return self._node.receive(parcel, source, self._mesh_time(now))
        message = parcel.message
        announces = isinstance(message.payload, PeerAnnounce)
        size = ANNOUNCE_BYTES if announces else _HEARTBEAT_BYTES
        offset_secs = parcel.unix_secs - self._mesh_time(now).unix_secs
        if abs(offset_secs) > self._timers.clock_tolerance_secs:
            return self.engine.handle_skewed(message, offset_secs, source, size, now)
        return self.engine.handle_message(message, source, size, now)

    def make_parcel(self, decision: SendMessage | SendDatagram, now: int) -> Parcel:
        if isinstance(decision, SendDatagram):
            return decision.datagram
        return TimedMessage(decision.message, self._mesh_time(now).unix_secs)

    def _mesh_time(self, now: int) -> MeshTime:
        ahead = self.plan.skew_secs + self.clock_fault_secs
        return MeshTime(now, _EPOCH_SECS + now // 1000 + ahead)


def make_members(plans: tuple[NodePlan, ...]) -> dict[str, MeshMember]:
    return {
        plan.name: _member_type(plan)(plan.name, f"key of {plan.name}".encode(), plan.may_lead)
        for plan in plans
    }


def _member_type(plan: NodePlan) -> type[MeshMember]:
    return TunnelMember if plan.is_foreign else MeshMember
