"""The rules that every run keeps, whatever happens to its network and nodes."""

from collections import defaultdict
from collections.abc import Iterable

from gatepost.mesh.messages import Term
from gatepost.testing.mesh_simulation.simulated_node import SimulatedMeshNode


class ElectionChecker:
    """Collects the faults of a run as sentences."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._honoured: dict[str, dict[int, str]] = defaultdict(dict)
        self._latest: dict[str, int] = {}

    def note_term(self, node: str, term: Term) -> None:
        """A node honours the publisher of this term from now on."""
        first = self._honoured[node].setdefault(term.counter, term.node)
        if first != term.node:
            self.faults.append(
                f"{node} honoured {first} and {term.node}, both in term {term.counter}"
            )
        if term.counter < self._latest.get(node, 0):
            self.faults.append(f"{node} went back to term {term.counter} of {term.node}")
        self._latest[node] = term.counter

    def check_settled(self, nodes: Iterable[SimulatedMeshNode]) -> None:
        """Everything has healed, and the time for an election is over."""
        running = [node for node in nodes if node.is_running]
        leaders = [node.name for node in running if node.coordinator.election.is_publisher]
        if len(leaders) != 1:
            self.faults.append(f"{len(leaders)} publishers after healing: {leaders}")
            return
        for node in running:
            found = node.coordinator.election.publisher
            if found != leaders[0]:
                self.faults.append(f"{node.name} honours {found}, and {leaders[0]} leads")
        (leader,) = (node for node in running if node.name == leaders[0])
        if not leader.plan.may_lead:
            self.faults.append(f"{leader.name} leads, and may not")
