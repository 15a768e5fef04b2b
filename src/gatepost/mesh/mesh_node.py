"""One node of the mesh in terms of datagrams: the judge before the coordinator."""

from collections import Counter
from collections.abc import Iterable

from gatepost.mesh.coordinator import MeshCoordinator
from gatepost.mesh.datagram_judge import DatagramJudge
from gatepost.mesh.decisions import DatagramRefused, MeshDecision, SendDatagram, SendMessage
from gatepost.mesh.members import MeshMembers
from gatepost.mesh.mesh_time import MeshTime
from gatepost.mesh.refusals import Refusal


class MeshNode:
    """Every input returns the decisions that follow, with whole datagrams to send."""

    def __init__(self, coordinator: MeshCoordinator, judge: DatagramJudge) -> None:
        self.coordinator = coordinator
        self._judge = judge
        self.received = 0
        self.refused: Counter[Refusal] = Counter()

    def set_members(self, members: MeshMembers, now: MeshTime) -> list[MeshDecision]:
        self._judge.members = members
        return self._sign_decisions(self.coordinator.set_members(members), now)

    def set_cluster_tokens(self, tokens: tuple[str, ...]) -> None:
        """The valid tokens; the first one is used for this node's own announcements."""
        self._judge.cluster_tokens = tokens
        self.coordinator.outgoing.cluster_token = tokens[0] if tokens else ""

    def receive(self, datagram: bytes, source: str, now: MeshTime) -> list[MeshDecision]:
        self.received += 1
        verdict = self._judge.judge_datagram(datagram, source, now)
        if isinstance(verdict, Refusal):
            self.refused[verdict] += 1
            return [DatagramRefused(verdict)]
        decisions = self.coordinator.handle_message(verdict, source, len(datagram), now.steady_ms)
        for decision in decisions:
            if isinstance(decision, DatagramRefused):
                self.refused[decision.refusal] += 1
        return self._sign_decisions(decisions, now)

    def hint_peer(self, node: str, address: str, now: MeshTime) -> list[MeshDecision]:
        return self._sign_decisions(self.coordinator.hint_peer(node, address, now.steady_ms), now)

    def tick(self, now: MeshTime) -> list[MeshDecision]:
        return self._sign_decisions(self.coordinator.tick(now.steady_ms), now)

    def release_lease(self, now: MeshTime) -> list[MeshDecision]:
        return self._sign_decisions(self.coordinator.release_lease(), now)

    def _sign_decisions(
        self, decisions: Iterable[MeshDecision], now: MeshTime
    ) -> list[MeshDecision]:
        return [
            SendDatagram(each.address, self._judge.sign_message(each.message, now))
            if isinstance(each, SendMessage)
            else each
            for each in decisions
        ]
