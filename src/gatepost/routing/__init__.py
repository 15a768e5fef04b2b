"""Routing of a message: to the gateway that owns its agent, to a fallback, or nowhere."""

from gatepost.routing.decide import Route, route
from gatepost.routing.directory import Directory, Gateway, Home, Rule, directory_of

__all__ = ["Directory", "Gateway", "Home", "Route", "Rule", "directory_of", "route"]
