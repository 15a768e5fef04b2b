"""An immutable snapshot of the room's members, agents and routing rules.

The room is read in one thread and messages are routed in another, so routing works on a snapshot.
A new one is built when the room changes.
"""

from collections.abc import Callable

from msgspec import Struct, field

from gatepost.room import EffectiveRecords


class GatewayEntry(Struct, frozen=True):
    """A member of the room: the key to encrypt for, and whether it is believed to be online."""

    key: bytes
    online: bool = True
    capabilities: frozenset[str] = frozenset()


class RevokedGateway(Struct, frozen=True):
    """A revoked node: its key, and the last sequence number of its outbox that counts."""

    key: bytes
    last_seq: int


class AgentHome(Struct, frozen=True):
    """The gateway that owns an agent, and those that host it without owning it.

    `standbys` can stand in for the owner; `rivals` have claims that do not count; `former` have
    owned it. Messages for an agent that is `unordered` have no order unless they ask for it.
    """

    owner: str | None
    standbys: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    unordered: bool = False
    former: tuple[str, ...] = ()


class RoutingRule(Struct, frozen=True):
    """The routing rule of an agent, or of all agents of a node."""

    owner: str
    fallbacks: tuple[str, ...] = ()
    requires: frozenset[str] = frozenset()
    priority: int = 0
    version: int = 1


class RoutingDirectory(Struct, frozen=True):
    """Gateways and revoked gateways by node id, agents by agent id, rules by agent or node id.

    `unhealthy` are (node, agent) pairs that their nodes reported: routing avoids them if it can.
    """

    gateways: dict[str, GatewayEntry] = field(default_factory=dict)
    agents: dict[str, AgentHome] = field(default_factory=dict)
    rules: dict[str, RoutingRule] = field(default_factory=dict)
    revoked: dict[str, RevokedGateway] = field(default_factory=dict)
    unhealthy: frozenset[tuple[str, str]] = frozenset()

    def is_online(self, node: str | None) -> bool:
        gateway = self.gateways.get(node) if node is not None else None
        return gateway is not None and gateway.online


class DirectoryBuilder:
    """Takes snapshots of the room. Agents may be many: they are copied only if one has moved."""

    def __init__(self) -> None:
        self._view: EffectiveRecords | None = None
        self._home_changes = 0
        self._agents: dict[str, AgentHome] = {}

    def build_directory(
        self,
        view: EffectiveRecords,
        online: Callable[[str], bool],
        unhealthy: frozenset[tuple[str, str]] = frozenset(),
    ) -> RoutingDirectory:
        """`online` tells whether a node is believed to be online."""
        if view is not self._view or view.home_changes != self._home_changes:
            self._view, self._home_changes = view, view.home_changes
            self._agents = copy_agent_homes(view)
        return build_directory(view, online, self._agents, unhealthy)


def copy_agent_homes(view: EffectiveRecords) -> dict[str, AgentHome]:
    return {
        id: AgentHome(
            owned.gateway,
            owned.standbys,
            owned.rivals,
            owned.record.order is not None,
            owned.former,
        )
        for id, owned in view.agents.items()
    }


def build_directory(
    view: EffectiveRecords,
    online: Callable[[str], bool],
    agents: dict[str, AgentHome] | None = None,
    unhealthy: frozenset[tuple[str, str]] = frozenset(),
) -> RoutingDirectory:
    """Take a snapshot of the room; `agents` are its agents, if they were copied before."""
    gateways = {
        id: GatewayEntry(member.public_key, online(id), frozenset(member.record.capabilities))
        for id, member in view.nodes.items()
    }
    agents = copy_agent_homes(view) if agents is None else agents
    rules = {
        id: RoutingRule(
            rule.owner_node_id,
            rule.fallback_node_ids,
            frozenset(rule.requires_capabilities),
            rule.priority_default,
            rule.epoch,
        )
        for id, rule in view.routing.items()
    }
    revoked = {
        node: RevokedGateway(key, last_seq)
        for (node, key), last_seq in view.membership.last_honoured_seqs().items()
    }
    return RoutingDirectory(gateways, agents, rules, revoked, unhealthy)
