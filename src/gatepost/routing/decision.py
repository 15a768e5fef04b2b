"""Chooses the route of a message: to its owner, or to a fallback if the owner is offline.

An agent that its own gateway reports as unhealthy is avoided if a healthy fallback exists.

The same directory gives the same answer on every gateway. A rule for the agent takes precedence
over a rule for its owner node.
"""

from collections.abc import Iterator

from msgspec import Struct

from gatepost.errors import NoRoute, UnknownAgent
from gatepost.events.reserved_names import is_reserved_name
from gatepost.routing.directory import RoutingDirectory, RoutingRule


class Route(Struct, frozen=True):
    """The node a message is sent to, and why.

    `offer`: other nodes could take it too, so the sender has to confirm the acceptance.
    """

    node: str
    decision: str
    offer: bool = False
    priority: int = 0
    version: int | None = None


def decide_route(
    directory: RoutingDirectory,
    me: str,
    agent: str,
    *,
    hosted: bool = False,
    refused: frozenset[str] = frozenset(),
) -> Route:
    """Return the route of a message for `agent`.

    `hosted`: the agent is registered on this gateway, even if the room does not know it yet. An
    offline owner keeps its mail unless a fallback can take it. Nodes in `refused` are not tried
    again. Raises UnknownAgent if the agent is unknown, and NoRoute if no node can take its mail.
    """
    if is_reserved_name(agent):
        raise UnknownAgent(f"{agent!r} is a name of gateways and operators: no agent has it")
    owner = find_owner(directory, me, agent, hosted)
    rule = find_rule(directory, agent, owner)
    if owner is None and rule is None and agent not in directory.agents:
        raise UnknownAgent(
            f"no gateway knows an agent {agent!r}; start it, or run `gatepost agent add {agent}`"
        )
    owner = owner or (rule.owner if rule else None)
    fallbacks = list(_usable_fallbacks(directory, me, agent, owner, rule, refused))
    available = [node for node in fallbacks if node == me or directory.is_online(node)]
    offer = bool(fallbacks) and owner not in refused
    usable = owner is not None and owner not in refused and _can_serve(directory, me, owner, rule)
    healthy = [node for node in available if (node, agent) not in directory.unhealthy]
    if owner is not None and usable and _is_preferred(directory, me, agent, owner, available):
        return _make_route(owner, me, "owner", offer, rule)
    if available:
        chosen = (healthy or available)[0]
        return _make_route(chosen, me, "fallback", usable or len(fallbacks) > 1, rule)
    raise NoRoute(f"no gateway can take mail for {agent!r}: its own is gone or refused it")


def _is_preferred(
    directory: RoutingDirectory, me: str, agent: str, owner: str, available: list[str]
) -> bool:
    """Whether the owner gets the message although these fallbacks are available."""
    if owner == me or not available:
        return True
    avoided = (owner, agent) in directory.unhealthy
    healthy = any((node, agent) not in directory.unhealthy for node in available)
    return directory.is_online(owner) and not (avoided and healthy)


def find_owner(directory: RoutingDirectory, me: str, agent: str, hosted: bool) -> str | None:
    home = directory.agents.get(agent)
    if home is not None and home.owner is not None:
        return home.owner
    return me if hosted else None


def find_rule(directory: RoutingDirectory, agent: str, owner: str | None) -> RoutingRule | None:
    return directory.rules.get(agent) or (directory.rules.get(owner) if owner else None)


def may_speak_for(directory: RoutingDirectory, node: str, agent: str) -> bool:
    """Whether events of `node` may name `agent` as theirs.

    A former owner may: the agent may have sent them before it moved. An agent without an owner does
    not belong to another node. The events of a revoked node that still count were sent as a member.
    """
    home = directory.agents.get(agent)
    if home is None or home.owner in (None, node) or node in home.former:
        return True
    rule = find_rule(directory, agent, home.owner)
    is_fallback = rule is not None and node in rule.fallbacks and node in home.standbys
    return is_fallback or node in directory.revoked


def _usable_fallbacks(
    directory: RoutingDirectory,
    me: str,
    agent: str,
    owner: str | None,
    rule: RoutingRule | None,
    refused: frozenset[str],
) -> Iterator[str]:
    """Yield the rule's fallbacks, in order, that host the agent and meet its requirements."""
    home = directory.agents.get(agent)
    standbys = home.standbys if home else ()
    for node in rule.fallbacks if rule else ():
        able = node in standbys and _can_serve(directory, me, node, rule)
        if able and node != owner and node not in refused:
            yield node


def _can_serve(directory: RoutingDirectory, me: str, node: str, rule: RoutingRule | None) -> bool:
    gateway = directory.gateways.get(node)
    if gateway is None:
        return node == me
    return rule is None or rule.requires <= gateway.capabilities


def _make_route(node: str, me: str, decision: str, offer: bool, rule: RoutingRule | None) -> Route:
    priority, version = (rule.priority, rule.version) if rule else (0, None)
    if node == me:
        return Route(node, "local", False, priority, version)
    return Route(node, decision, offer, priority, version)
