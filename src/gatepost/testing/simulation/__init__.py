"""Whole meshes of real gateway cores in one process, on virtual time, from one seed."""

from gatepost.testing.simulation.gateway import Habits, SimulatedGateway
from gatepost.testing.simulation.mesh import SimulatedMesh
from gatepost.testing.simulation.people import Manners
from gatepost.testing.simulation.run import Result, Shape, simulate

__all__ = ["Habits", "Manners", "Result", "Shape", "SimulatedGateway", "SimulatedMesh", "simulate"]
