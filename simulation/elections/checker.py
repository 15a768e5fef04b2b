"""The rules that every run keeps, whatever happens to its network and nodes."""

from collections import defaultdict
from collections.abc import Iterable

from gatepost.wire.mesh_views import Term
from simulation.elections.simulated_node import SimulatedMeshNode


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

    def check_clocks(self, nodes: Iterable[SimulatedMeshNode]) -> None:
        """Nothing but wrong clocks disturbs the mesh, and they have had time to be noticed."""
        voters = [node for node in nodes if node.plan.may_lead]
        right = [node.name for node in voters if not node.clock_fault_secs]
        leaders = [node.name for node in voters if node.engine.election.is_publisher]
        if 2 * len(right) > len(voters) and (len(leaders) != 1 or leaders[0] not in right):
            self.faults.append(f"{leaders} lead, and the clocks of {right} are right")

    def check_terms(self, disturbances: int) -> None:
        """Terms rise because of faults, and not with the heartbeats."""
        highest, most = max(self._latest.values(), default=0), 8 + 4 * disturbances
        if highest > most:
            self.faults.append(f"term {highest} after {disturbances} faults")

    def check_settled(self, nodes: Iterable[SimulatedMeshNode]) -> None:
        """Everything has healed, and the time for an election is over."""
        running = [node for node in nodes if node.is_running]
        leaders = [node.name for node in running if node.engine.election.is_publisher]
        if len(leaders) != 1:
            self.faults.append(f"{len(leaders)} publishers after healing: {leaders}")
            return
        for node in running:
            found = node.engine.election.publisher
            if found != leaders[0]:
                self.faults.append(f"{node.name} honours {found}, and {leaders[0]} leads")
        (leader,) = (node for node in running if node.name == leaders[0])
        if not leader.plan.may_lead:
            self.faults.append(f"{leader.name} leads, and may not")
