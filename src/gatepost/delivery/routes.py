"""Where messages go: the host of each agent, who is online, and the key of each member."""

from gatepost.delivery.agents import Agents
from gatepost.delivery.local_node import LocalNode
from gatepost.errors import NoRoute, Revoked
from gatepost.events.reserved_names import is_reserved_name
from gatepost.journal.transaction import Tx
from gatepost.routing import Route, RoutingDirectory, decide_route, may_speak_for

_NOBODY: frozenset[str] = frozenset()


class RouteFinder:
    """`directory` is replaced whenever the room changes.

    `honoured_seqs`: revoked node → the last sequence number of its outbox that counts.
    """

    def __init__(self, node: LocalNode, agents: Agents) -> None:
        self._node = node
        self._agents = agents
        self.directory = RoutingDirectory()
        self.honoured_seqs: dict[str, int] = {}

    def follow_directory(self, directory: RoutingDirectory) -> None:
        self.directory = directory
        for node, revoked in directory.revoked.items():
            self.limit_honoured(node, revoked.last_seq)

    def limit_honoured(self, node: str, last_seq: int) -> None:
        """Ignore a node's events after this seq. The lowest limit stands."""
        self.honoured_seqs[node] = min(last_seq, self.honoured_seqs.get(node, last_seq))

    def require_member(self, route: Route) -> None:
        """Raise Revoked if this gateway was revoked and the route leads to another one."""
        own = self.directory.revoked.get(self._node.id)
        if own is not None and own.key == self._node.key.public and route.node != self._node.id:
            raise Revoked(
                f"this gateway, {self._node.id}, was revoked from its room, and reaches no other"
                " one; agents of this gateway still get mail"
            )

    def find_route(self, tx: Tx, agent: str, refused: frozenset[str] = _NOBODY) -> Route:
        """The route to an agent, past the nodes that refused; NoRoute if there is none."""
        hosted = self._agents.is_registered(tx, agent)
        return decide_route(self.directory, self._node.id, agent, hosted=hosted, refused=refused)

    def public_key(self, node: str) -> bytes:
        """The key that encrypts for a node and identifies it; NoRoute if it is not a member."""
        if node == self._node.id:
            return self._node.key.public
        found = self.directory.gateways.get(node)
        if found is None:
            raise NoRoute(f"{node} is no longer in this room")
        return found.key

    def sender_key(self, node: str) -> bytes:
        """The key that decrypts events of a node, which may be revoked by now."""
        if node in self.directory.gateways or node not in self.directory.revoked:
            return self.public_key(node)
        return self.directory.revoked[node].key

    def may_send(self, node: str, from_agent: str, to_agent: str, *, forwarded: bool) -> bool:
        """Whether mail between these agents may come from `node`.

        An agent speaks from the node it lives behind. Mail that moved with its receiver comes from
        a node the receiver has lived behind, no matter which agent sent it. Every node speaks under
        the reserved names for itself, and passes on what others said under them in that way alone.
        """
        if forwarded and is_reserved_name(from_agent):
            home = self.directory.agents.get(to_agent)
            return home is not None and node in (home.owner, *home.former)
        if may_speak_for(self.directory, node, from_agent):
            return True
        return forwarded and may_speak_for(self.directory, node, to_agent)

    @property
    def own_node(self) -> str:
        return self._node.id

    def is_online(self, node: str | None) -> bool:
        return self.directory.is_online(node)

    def remote_owner(self, agent: str) -> str | None:
        """The node that owns an agent; None if that is this node."""
        home = self.directory.agents.get(agent)
        return None if home is None or home.owner == self._node.id else home.owner
