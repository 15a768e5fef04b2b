"""One run: faults, healing, and the rules at the end."""

from msgspec import Struct

from gatepost.testing.mesh_simulation.faults import MeshFaultPlan, draw_plan
from gatepost.testing.mesh_simulation.simulated_node import SimulatedMeshNode
from gatepost.testing.mesh_simulation.simulator import MakeNode, MeshSimulator

# One run of so many goes through whole datagrams, which costs several times as much.
_WIRE_EVERY = 10


class MeshRunResult(Struct, frozen=True):
    seed: int
    nodes: int
    delivered: int
    takeovers: int
    faults: tuple[str, ...]


def simulate_mesh(
    seed: int, make_node: MakeNode = SimulatedMeshNode, plan: MeshFaultPlan | None = None
) -> MeshRunResult:
    plan = plan or draw_plan(seed)
    simulator = MeshSimulator(plan, make_node, on_wire=seed % _WIRE_EVERY == 0)
    simulator.start_all()
    simulator.run_until(plan.settles_at)
    simulator.checker.check_settled(simulator.nodes)
    # The node that leads now goes on leading.
    simulator.run_until(plan.settles_at + plan.timers.suspect_ms)
    simulator.checker.check_settled(simulator.nodes)
    takeovers = sum(node.coordinator.election.takeovers for node in simulator.nodes)
    faults = tuple(dict.fromkeys(simulator.checker.faults))
    return MeshRunResult(seed, len(plan.nodes), simulator.delivered, takeovers, faults)
