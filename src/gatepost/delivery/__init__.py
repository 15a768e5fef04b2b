"""How a message gets there, and how its sender learns what became of it."""

from gatepost.delivery.agents import Agents
from gatepost.delivery.messages import Messages
from gatepost.delivery.node import Node

__all__ = ["Agents", "Messages", "Node"]
