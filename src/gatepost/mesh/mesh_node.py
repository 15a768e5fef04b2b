"""One node of the mesh: passes datagrams through the judge to the engine."""

from collections import Counter
from collections.abc import Iterable

from gatepost.mesh.datagram_judge import DatagramJudge, SkewedMessage
from gatepost.mesh.decisions import DatagramRefused, MeshDecision, SendDatagram, SendMessage
from gatepost.mesh.engine import MeshEngine
from gatepost.mesh.members import MeshMembers
from gatepost.mesh.mesh_time import MeshTime
from gatepost.mesh.refusals import Refusal


class MeshNode:
    """Every input returns the decisions that follow, with whole datagrams to send."""

    def __init__(self, engine: MeshEngine, judge: DatagramJudge) -> None:
        self.engine = engine
        self._judge = judge
        self.received = 0
        self.refused: Counter[Refusal] = Counter()

    def set_members(self, members: MeshMembers, now: MeshTime) -> list[MeshDecision]:
        self._judge.members = members
        return self._sign_decisions(self.engine.set_members(members), now)

    def set_cluster_tokens(self, tokens: tuple[str, ...]) -> None:
        """The valid tokens; the first one is used for this node's own announcements."""
        self._judge.cluster_tokens = tokens
        self.engine.outgoing.cluster_token = tokens[0] if tokens else ""

    def receive(self, datagram: bytes, source: str, now: MeshTime) -> list[MeshDecision]:
        self.received += 1
        verdict = self._judge.judge_datagram(datagram, source, now)
        if isinstance(verdict, Refusal):
            self.refused[verdict] += 1
            return [DatagramRefused(verdict)]
        size, steady_ms = len(datagram), now.steady_ms
        if isinstance(verdict, SkewedMessage):
            message, offset_secs = verdict.message, verdict.offset_secs
            decisions = self.engine.handle_skewed(message, offset_secs, source, size, steady_ms)
        else:
            decisions = self.engine.handle_message(verdict, source, size, steady_ms)
        for decision in decisions:
            if isinstance(decision, DatagramRefused):
                self.refused[decision.refusal] += 1
        return self._sign_decisions(decisions, now)

    def hint_peer(self, node: str, address: str, now: MeshTime) -> list[MeshDecision]:
        return self._sign_decisions(self.engine.hint_peer(node, address, now.steady_ms), now)

    def tick(self, now: MeshTime) -> list[MeshDecision]:
        return self._sign_decisions(self.engine.tick(now.steady_ms), now)

    def withhold_lease(self, now: MeshTime) -> list[MeshDecision]:
        return self._sign_decisions(self.engine.withhold_lease(now.steady_ms), now)

    def release_lease(self, now: MeshTime) -> list[MeshDecision]:
        return self._sign_decisions(self.engine.release_lease(), now)

    def _sign_decisions(
        self, decisions: Iterable[MeshDecision], now: MeshTime
    ) -> list[MeshDecision]:
        return [
            SendDatagram(each.address, self._judge.sign_message(each.message, now))
            if isinstance(each, SendMessage)
            else each
            for each in decisions
        ]
