"""Whole meshes of real gateway cores in one process, on virtual time, from one seed."""

from gatepost.testing.simulation.gateway import SimulatedGateway, SimulatedSettings
from gatepost.testing.simulation.mesh import SimulatedMesh
from gatepost.testing.simulation.run import RunResult, RunShape, simulate
from gatepost.testing.simulation.users import AgentManners

__all__ = [
    "AgentManners",
    "RunResult",
    "RunShape",
    "SimulatedGateway",
    "SimulatedMesh",
    "SimulatedSettings",
    "simulate",
]
