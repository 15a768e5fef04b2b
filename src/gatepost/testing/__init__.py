"""Fakes and helpers that ship with Gatepost, for the tests of code that builds on it."""

from gatepost.testing.clock import ManualClock
from gatepost.testing.gateway import GatewayProcess
from gatepost.testing.hostile import HostileIdentity, HostileNode
from gatepost.testing.simulation import SimulatedMesh

__all__ = ["GatewayProcess", "HostileIdentity", "HostileNode", "ManualClock", "SimulatedMesh"]
