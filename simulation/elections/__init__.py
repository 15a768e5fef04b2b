"""Elections of whole meshes on virtual time, from one seed: the real core, without its network."""

from simulation.elections.faults import MeshFaultPlan, draw_plan
from simulation.elections.run import MeshRunResult, simulate_mesh
from simulation.elections.simulated_node import SimulatedMeshNode
from simulation.elections.simulator import MeshSimulator

__all__ = [
    "MeshFaultPlan",
    "MeshRunResult",
    "MeshSimulator",
    "SimulatedMeshNode",
    "draw_plan",
    "simulate_mesh",
]
