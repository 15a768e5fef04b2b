"""Routing of a message: to the gateway that owns its agent, to a fallback, or nowhere."""

from gatepost.routing.decision import Route, decide_route, may_speak_for
from gatepost.routing.directory import (
    AgentHome,
    DirectoryBuilder,
    GatewayEntry,
    RevokedGateway,
    RoutingDirectory,
    RoutingRule,
    build_directory,
)

__all__ = [
    "AgentHome",
    "DirectoryBuilder",
    "GatewayEntry",
    "RevokedGateway",
    "Route",
    "RoutingDirectory",
    "RoutingRule",
    "build_directory",
    "decide_route",
    "may_speak_for",
]
