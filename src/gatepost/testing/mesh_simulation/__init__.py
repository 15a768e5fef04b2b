"""Elections of whole meshes on virtual time, from one seed: the real core, without its network."""

from gatepost.testing.mesh_simulation.faults import MeshFaultPlan, draw_plan
from gatepost.testing.mesh_simulation.run import MeshRunResult, simulate_mesh
from gatepost.testing.mesh_simulation.simulated_node import SimulatedMeshNode
from gatepost.testing.mesh_simulation.simulator import MeshSimulator

__all__ = [
    "MeshFaultPlan",
    "MeshRunResult",
    "MeshSimulator",
    "SimulatedMeshNode",
    "draw_plan",
    "simulate_mesh",
]
