"""Fakes and helpers that ship with Gatepost, for the tests of code that builds on it."""

from gatepost.testing.clock import ManualClock
from gatepost.testing.gateway import GatewayProcess

__all__ = ["GatewayProcess", "ManualClock"]
