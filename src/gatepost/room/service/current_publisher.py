"""The node that publishes for the whole mesh: the genesis, unless an election names another."""

from collections.abc import Callable

from gatepost.room.service.room_replica import RoomReplica


class CurrentPublisher:
    """`elect` returns the id of the elected node; None if no node is elected."""

    def __init__(self, replica: RoomReplica, elect: Callable[[], str | None] | None = None) -> None:
        self._replica = replica
        self._elect = elect or self._genesis_id

    def node_id(self) -> str | None:
        return self._elect()

    def is_this_node(self) -> bool:
        return self.node_id() == self._replica.core.node.id

    def _genesis_id(self) -> str | None:
        room = self._replica.room
        return None if room is None else room.genesis.node
