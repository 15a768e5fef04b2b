"""A node of another implementation in a simulated mesh: it knows the protocol's document alone.

Its messages have no extensions: it names its priority in a claim, once, and no term at all. It
yields to a claim of a better priority, and to nothing else. While it hears nobody it takes itself
for the only node, and leads without a claim.
"""

from gatepost.mesh.decisions import MeshDecision, SendMessage
from gatepost.mesh.members import MeshMembers
from gatepost.mesh.mesh_time import MeshTimers
from gatepost.mesh.messages import (
    Heartbeat,
    LeaseClaim,
    LeaseRelease,
    MeshMessage,
    MeshRole,
    Payload,
    PeerAnnounce,
)
from gatepost.wire.mesh_views import Term
from simulation.elections.faults import NodePlan
from simulation.elections.simulated_node import Parcel, SimulatedMeshNode, TimedMessage


class ForeignElection:
    """What the checker asks of a node: who leads, as far as this one knows."""

    honoured: Term | None = None
    takeovers = 0

    def __init__(self, me: str, now: int) -> None:
        self._me = me
        self.is_publisher = False
        self.publisher: str | None = None
        self.heard_at = now

    def take_office(self) -> None:
        self.is_publisher, self.publisher = True, self._me

    def follow(self, publisher: str, now: int) -> None:
        self.is_publisher, self.publisher, self.heard_at = False, publisher, now


class ForeignEngine:
    def __init__(self, election: ForeignElection) -> None:
        self.election = election


class ForeignMeshNode(SimulatedMeshNode):
    def __init__(
        self, plan: NodePlan, members: MeshMembers, timers: MeshTimers, on_wire: bool
    ) -> None:
        super().__init__(plan, members, timers, on_wire)
        self._election: ForeignElection
        self._heard_at: dict[str, int] = {}

    def start(self, now: int) -> None:
        self.lives += 1
        self.is_running = True
        self._heard_at = {}
        self._election = ForeignElection(self.name, now)
        self.engine = ForeignEngine(self._election)  # type: ignore[assignment]

    def hear_room_term(self, term: Term, now: int) -> None:
        """It is in no room."""

    def release_lease(self, now: int) -> list[MeshDecision]:
        return self._tell_all(LeaseRelease()) if self._election.is_publisher else []

    def tick(self, now: int) -> list[MeshDecision]:
        decisions: list[MeshDecision] = [
            self._send(f"n{n:02}", PeerAnnounce("", "", "", "")) for n in self._unheard()
        ]
        if not self._election.is_publisher:
            decisions += self._run_election(now)
        role = MeshRole.PUBLISHER if self._election.is_publisher else MeshRole.STANDBY
        beat = Heartbeat(role=role, known_peers=(), intro_point_count=0)
        return decisions + self._tell_all(beat)

    def receive(self, parcel: Parcel, source: str, now: int) -> list[MeshDecision]:
        assert isinstance(parcel, TimedMessage)
        message, election = parcel.message, self._election
        self._heard_at[message.sender] = now
        match message.payload:
            case LeaseClaim(priority=priority):
                if not election.is_publisher or priority < self.plan.priority:
                    election.follow(message.sender, now)
            case Heartbeat(role=MeshRole.PUBLISHER) if not election.is_publisher:
                election.follow(message.sender, now)
            case LeaseRelease() if election.publisher == message.sender:
                election.publisher = None
        return []

    def _run_election(self, now: int) -> list[MeshDecision]:
        election = self._election
        alive = [at for at in self._heard_at.values() if now - at < self._timers.suspect_ms]
        if not alive:
            election.take_office()
        elif election.publisher is None or now - election.heard_at >= self._timers.takeover_ms:
            election.take_office()
            return self._tell_all(LeaseClaim(self.plan.priority))
        return []

    def _unheard(self) -> list[int]:
        return [number for number in self.plan.bootstrap if f"n{number:02}" not in self._heard_at]

    def _tell_all(self, payload: Payload) -> list[MeshDecision]:
        return [self._send(name, payload) for name in self._heard_at]

    def _send(self, name: str, payload: Payload) -> SendMessage:
        return SendMessage(name, MeshMessage(self.name, payload))
