"""Meshes with one known defect each. The simulation has to find every one of them."""

from gatepost.mesh.election import Election, ElectionView, Rank
from gatepost.mesh.engine import MeshEngine, _rank_of
from gatepost.mesh.peer_table import MeshPeer
from gatepost.wire.mesh_views import Term
from simulation.elections import SimulatedMeshNode


class _ElectionMutant(MeshEngine):
    election_type: type[Election] = Election

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        known = self.election
        self.election = self.election_type(
            known.rank, known.may_lead, self.timers, known.heard_at, known.honoured
        )


class NoTieBreak(SimulatedMeshNode):
    """Equal priorities are equally good: nobody gives way."""

    class engine_type(_ElectionMutant):
        class election_type(Election):
            def _is_better(self, rank: Rank) -> bool:
                return rank[0] < self.rank[0]

        def _view_election(self) -> ElectionView:
            peers = [peer for peer in self.peers.living_peers() if self._may_lead(peer.id)]
            is_best = all(self.election.rank[0] <= _rank_of(peer)[0] for peer in peers)
            return ElectionView(is_alone=not self.members, is_best=is_best)


class NoStepDown(SimulatedMeshNode):
    """A publisher never gives up its office."""

    class engine_type(_ElectionMutant):
        class election_type(Election):
            def _is_better(self, rank: Rank) -> bool:
                return False


class NoFence(SimulatedMeshNode):
    """A node honours whoever says to be the publisher, whatever the term."""

    class engine_type(_ElectionMutant):
        class election_type(Election):
            def _honour_term(self, term: Term) -> bool:
                self.honoured = term
                return True


class NoNewTerm(SimulatedMeshNode):
    """A publisher whose term is contested insists on it."""

    class engine_type(_ElectionMutant):
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

    class engine_type(MeshEngine):
        def _follow_hint(self, node, address, by, now):  # type: ignore[no-untyped-def]
            if node in self.members and (peer := self.peers.find_peer(node)):
                self.peers.hear_peer(peer.id, 0, now)
            return super()._follow_hint(node, address, by, now)


class AnybodyLeads(SimulatedMeshNode):
    """A node claims the lease without having the role for it."""

    class engine_type(MeshEngine):
        def tick(self, now):  # type: ignore[no-untyped-def]
            self.election.may_lead = True
            return super().tick(now)


class ClaimsWithWrongClock(SimulatedMeshNode):
    """A node whose clock most peers refuse leads all the same."""

    class engine_type(MeshEngine):
        @property
        def is_barred(self) -> bool:
            return False


class RacesRoomTerms(SimulatedMeshNode):
    """Two publishers that do not hear each other outbid each other in the room."""

    class engine_type(MeshEngine):
        @property
        def is_barred(self) -> bool:
            return False

        def hear_room_term(self, term: Term, now: int) -> None:
            if self.election.is_new_term(term):
                self.election.hear_report(term, None, now)


class OneLiarSilences(SimulatedMeshNode):
    """A node takes its own clock for wrong because one other differs."""

    class engine_type(MeshEngine):
        def _compare_clocks(self, now: int) -> None:
            super()._compare_clocks(now)
            self.is_outvoted |= any(peer.clock for peer in self.peers)


class NeverGivesWay(SimulatedMeshNode):
    """A publisher insists on its rank before a foreign one whose claim it missed."""

    class engine_type(MeshEngine):
        def _note_insistence(self, peer: MeshPeer, now: int) -> bool:
            return False


class CountsForeignTermsAlone(SimulatedMeshNode):
    """A node gives a foreign publisher a term of its own, whatever the others honour."""

    class engine_type(MeshEngine):
        def _can_honour(self, term: Term) -> bool:
            return False


MUTANTS: list[type[SimulatedMeshNode]] = [
    NoTieBreak,
    NoStepDown,
    NoFence,
    NoNewTerm,
    ForgetsTerm,
    GossipIsLife,
    AnybodyLeads,
    ClaimsWithWrongClock,
    RacesRoomTerms,
    OneLiarSilences,
    NeverGivesWay,
    CountsForeignTermsAlone,
]
