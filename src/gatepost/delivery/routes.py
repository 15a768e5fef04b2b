"""The room as deliveries see it: who hosts which agent, who is online, and each member's key."""

from gatepost.delivery.agents import Agents
from gatepost.delivery.local_node import LocalNode
from gatepost.errors import NoRoute
from gatepost.journal.transaction import Tx
from gatepost.routing import Route, RoutingDirectory, decide_route

_NOBODY: frozenset[str] = frozenset()


class RouteFinder:
    """`directory` is replaced whenever the room changes."""

    def __init__(self, node: LocalNode, agents: Agents) -> None:
        self._node = node
        self._agents = agents
        self.directory = RoutingDirectory()

    def find_route(self, tx: Tx, agent: str, refused: frozenset[str] = _NOBODY) -> Route:
        """The route to an agent, past the nodes that refused; NoRoute if there is none."""
        hosted = self._agents.is_registered(tx, agent)
        return decide_route(self.directory, self._node.id, agent, hosted=hosted, refused=refused)

    def public_key(self, node: str) -> bytes:
        """The key that encrypts for a node and identifies it; NoRoute if it is no member."""
        if node == self._node.id:
            return self._node.key.public
        found = self.directory.gateways.get(node)
        if found is None:
            raise NoRoute(f"{node} is not in this room any more")
        return found.key

    def is_online(self, node: str | None) -> bool:
        return self.directory.is_online(node)

    def remote_owner(self, agent: str) -> str | None:
        """The node that owns an agent, if that is another one than this."""
        home = self.directory.agents.get(agent)
        return None if home is None or home.owner == self._node.id else home.owner
