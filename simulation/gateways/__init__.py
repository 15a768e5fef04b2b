"""Whole meshes of real gateway cores in one process, on virtual time, from one seed."""

from simulation.gateways.gateway import SimulatedGateway, SimulatedSettings
from simulation.gateways.mesh import SimulatedMesh
from simulation.gateways.run import RunResult, RunShape, simulate
from simulation.gateways.users import AgentManners

__all__ = [
    "AgentManners",
    "RunResult",
    "RunShape",
    "SimulatedGateway",
    "SimulatedMesh",
    "SimulatedSettings",
    "simulate",
]
