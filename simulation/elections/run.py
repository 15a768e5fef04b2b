"""One run: faults, healing, and the rules at the end."""

from msgspec import Struct

from simulation.elections.faults import MeshFaultPlan, draw_plan
from simulation.elections.simulated_node import SimulatedMeshNode
from simulation.elections.simulator import MakeNode, MeshSimulator

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
    # Another implementation is simulated without its datagrams, which it does not sign.
    has_foreign = any(node.is_foreign for node in plan.nodes)
    on_wire = seed % _WIRE_EVERY == 0 and not has_foreign
    simulator = MeshSimulator(plan, make_node, on_wire)
    simulator.start_all()
    simulator.run_until(plan.settles_at)
    simulator.checker.check_settled(simulator.nodes)
    # The node that leads now goes on leading.
    simulator.run_until(plan.settles_at + plan.timers.suspect_ms)
    simulator.checker.check_settled(simulator.nodes)
    simulator.checker.check_terms(plan.disturbances)
    takeovers = sum(node.engine.election.takeovers for node in simulator.nodes)
    faults = tuple(dict.fromkeys(simulator.checker.faults))
    return MeshRunResult(seed, len(plan.nodes), simulator.delivered, takeovers, faults)
