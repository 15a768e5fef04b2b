"""Meshes with one known defect each. The simulation has to find every one of them."""

from gatepost.mesh.coordinator import MeshCoordinator, _rank_of
from gatepost.mesh.election import Election, ElectionView, Rank
from gatepost.mesh.messages import Term
from gatepost.testing.mesh_simulation import SimulatedMeshNode


class _ElectionMutant(MeshCoordinator):
    election_type: type[Election] = Election

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        known = self.election
        self.election = self.election_type(
            known.rank, known.may_lead, self.timers, known.heard_at, known.honoured
        )


class NoTieBreak(SimulatedMeshNode):
    """Equal priorities are equally good: nobody gives way."""

    class coordinator_type(_ElectionMutant):
        class election_type(Election):
            def _is_better(self, rank: Rank) -> bool:
                return rank[0] < self.rank[0]

        def _view_election(self) -> ElectionView:
            peers = [peer for peer in self.peers.living_peers() if self._may_lead(peer.id)]
            is_best = all(self.election.rank[0] <= _rank_of(peer)[0] for peer in peers)
            return ElectionView(is_alone=not self.members, is_best=is_best)


class NoStepDown(SimulatedMeshNode):
    """A publisher never gives up its office."""

    class coordinator_type(_ElectionMutant):
        class election_type(Election):
            def _is_better(self, rank: Rank) -> bool:
                return False


class NoFence(SimulatedMeshNode):
    """A node honours whoever says to be the publisher, whatever the term."""

    class coordinator_type(_ElectionMutant):
        class election_type(Election):
            def _honour_term(self, term: Term) -> bool:
                self.honoured = term
                return True


class NoNewTerm(SimulatedMeshNode):
    """A publisher whose term is contested insists on it."""

    class coordinator_type(_ElectionMutant):
        class election_type(Election):
            def check_timers(self, now: int, view: ElectionView) -> None:
                self._is_contested = False
                super().check_timers(now, view)


class ForgetsTerm(SimulatedMeshNode):
    """A restarted node does not know which term it honoured."""

    def start(self, now: int) -> None:
        self.kept_term = None
        super().start(now)


class GossipIsLife(SimulatedMeshNode):
    """A node is alive because somebody says so."""

    class coordinator_type(MeshCoordinator):
        def _follow_hint(self, node, address, by, now):  # type: ignore[no-untyped-def]
            if node in self.members and (peer := self.peers.find_peer(node)):
                self.peers.hear_peer(peer.id, 0, now)
            return super()._follow_hint(node, address, by, now)


class AnybodyLeads(SimulatedMeshNode):
    """A node claims the lease without having the role for it."""

    class coordinator_type(MeshCoordinator):
        def tick(self, now):  # type: ignore[no-untyped-def]
            self.election.may_lead = True
            return super().tick(now)


MUTANTS: list[type[SimulatedMeshNode]] = [
    NoTieBreak,
    NoStepDown,
    NoFence,
    NoNewTerm,
    ForgetsTerm,
    GossipIsLife,
    AnybodyLeads,
]
