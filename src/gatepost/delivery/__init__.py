"""How a message gets to its agent, and how its sender learns the end of it."""

from gatepost.delivery.agents import Agents
from gatepost.delivery.assembly import DeliveryCore, build_core
from gatepost.delivery.coordinator import DeliveryCoordinator
from gatepost.delivery.local_node import LocalNode
from gatepost.delivery.retry_policy import RetryPolicy

__all__ = [
    "Agents",
    "DeliveryCoordinator",
    "DeliveryCore",
    "LocalNode",
    "RetryPolicy",
    "build_core",
]
