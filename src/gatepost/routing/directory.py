"""What routing needs to know of the room, as it was at one moment.

The room is read in one thread and messages are routed in another, so routing gets a picture that
never changes; a new one is taken when the room changes.
"""

from collections.abc import Callable

from msgspec import Struct, field

from gatepost.room import View


class Gateway(Struct, frozen=True):
    """A member of the room: the key to seal to, and whether it is believed to be there."""

    key: bytes
    online: bool = True
    capabilities: frozenset[str] = frozenset()


class Home(Struct, frozen=True):
    """Where an agent lives, and which gateways host it without owning it."""

    owner: str | None
    standbys: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()


class Rule(Struct, frozen=True):
    """How to reach an agent, or any agent of a node."""

    owner: str
    fallbacks: tuple[str, ...] = ()
    requires: frozenset[str] = frozenset()
    priority: int = 0
    version: int = 1


class Directory(Struct, frozen=True):
    gateways: dict[str, Gateway] = field(default_factory=dict)
    agents: dict[str, Home] = field(default_factory=dict)
    rules: dict[str, Rule] = field(default_factory=dict)

    def online(self, node: str | None) -> bool:
        found = self.gateways.get(node) if node is not None else None
        return found is not None and found.online


def directory_of(view: View, online: Callable[[str], bool]) -> Directory:
    """A picture of the room; `online` says of a node whether it is believed to be there."""
    gateways = {
        id: Gateway(member.public_key, online(id), frozenset(member.record.capabilities))
        for id, member in view.nodes.items()
    }
    agents = {
        id: Home(owned.gateway, owned.standbys, owned.rivals) for id, owned in view.agents.items()
    }
    rules = {
        id: Rule(
            rule.owner_node_id,
            rule.fallback_node_ids,
            frozenset(rule.requires_capabilities),
            rule.priority_default,
            rule.epoch,
        )
        for id, rule in view.routing.items()
    }
    return Directory(gateways, agents, rules)
