"""How a message gets there, and how its sender learns what became of it."""

from gatepost.delivery.agents import Agents
from gatepost.delivery.messages import Messages
from gatepost.delivery.node import Node
from gatepost.delivery.patience import Patience

__all__ = ["Agents", "Messages", "Node", "Patience"]
