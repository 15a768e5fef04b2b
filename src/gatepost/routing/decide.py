"""Whom a message is routed to: the owner; a fallback if the owner is not there; or nobody.

The same picture of the room gives the same answer on every gateway. A rule for the agent comes
before a rule for the node it lives behind.
"""

from collections.abc import Iterator

from msgspec import Struct

from gatepost.errors import NoRoute, UnknownAgent
from gatepost.routing.directory import Directory, Rule


class Route(Struct, frozen=True):
    """`offer`: others could take it too, so who accepts it has to be confirmed."""

    node: str
    decision: str
    offer: bool = False
    priority: int = 0
    version: int | None = None


def route(
    directory: Directory,
    me: str,
    agent: str,
    *,
    hosted: bool = False,
    refused: frozenset[str] = frozenset(),
) -> Route:
    """Where a message for `agent` goes. `hosted`: it is registered here, known to all or not.

    An owner that is away keeps its mail unless a fallback can take it. Nodes that `refused` it are
    not asked again. Raises UnknownAgent for an agent nobody ever heard of, and NoRoute for one that
    nobody can take mail for.
    """
    owner = owner_of(directory, me, agent, hosted)
    rule = rule_for(directory, agent, owner)
    if owner is None and rule is None and agent not in directory.agents:
        raise UnknownAgent(
            f"no gateway knows an agent {agent!r}; start it, or run `gatepost agent add {agent}`"
        )
    owner = owner or (rule.owner if rule else None)
    standing_by = list(_fallbacks(directory, me, agent, owner, rule, refused))
    there = [node for node in standing_by if node == me or directory.online(node)]
    offer = bool(standing_by) and owner not in refused
    usable = owner is not None and owner not in refused and _fits(directory, me, owner, rule)
    if owner is not None and usable and (owner == me or directory.online(owner) or not there):
        return _route(owner, me, "owner", offer, rule)
    if there:
        return _route(there[0], me, "fallback", usable or len(standing_by) > 1, rule)
    raise NoRoute(f"nobody can take mail for {agent!r}: its gateway is gone or refused it")


def owner_of(directory: Directory, me: str, agent: str, hosted: bool) -> str | None:
    home = directory.agents.get(agent)
    if home is not None and home.owner is not None:
        return home.owner
    return me if hosted else None


def rule_for(directory: Directory, agent: str, owner: str | None) -> Rule | None:
    return directory.rules.get(agent) or (directory.rules.get(owner) if owner else None)


def _fallbacks(
    directory: Directory,
    me: str,
    agent: str,
    owner: str | None,
    rule: Rule | None,
    refused: frozenset[str],
) -> Iterator[str]:
    """Those the rule names, in its order, that host the agent and can do what it asks for."""
    home = directory.agents.get(agent)
    standbys = home.standbys if home else ()
    for node in rule.fallbacks if rule else ():
        able = node in standbys and _fits(directory, me, node, rule)
        if able and node != owner and node not in refused:
            yield node


def _fits(directory: Directory, me: str, node: str, rule: Rule | None) -> bool:
    found = directory.gateways.get(node)
    if found is None:
        return node == me
    return rule is None or rule.requires <= found.capabilities


def _route(node: str, me: str, decision: str, offer: bool, rule: Rule | None) -> Route:
    priority, version = (rule.priority, rule.version) if rule else (0, None)
    if node == me:
        return Route(node, "local", False, priority, version)
    return Route(node, decision, offer, priority, version)
