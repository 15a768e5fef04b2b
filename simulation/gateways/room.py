"""The room as a simulated mesh needs it: where agents live, and when each gateway learns of it."""

from functools import partial
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from gatepost.delivery import DeliveryCoordinator
from gatepost.routing import (
    AgentHome,
    GatewayEntry,
    RevokedGateway,
    RoutingDirectory,
    RoutingRule,
)
from simulation.gateways.gateway import SimulatedGateway
from simulation.gateways.network import SimulatedNetwork
from simulation.gateways.virtual_time import VirtualLoop

# All events of a revoked gateway count, however late they come.
_ALL_COUNT = 2**53
_HEARTBEAT_EVERY_MS = 1_000


class RoomState(Struct, frozen=True):
    """The room at one version."""

    version: int
    homes: dict[str, AgentHome]
    rules: dict[str, RoutingRule]
    revoked: frozenset[str] = frozenset()


class SimulatedRoom:
    """Every change reaches every gateway, each in its own time and never an older one last."""

    def __init__(
        self,
        loop: VirtualLoop,
        gateways: dict[str, SimulatedGateway],
        network: SimulatedNetwork,
        seed: int,
    ) -> None:
        self._loop = loop
        self._network = network
        self._random = Random(f"{seed}/room")
        self.delay_ms = (5, 50)
        self.slow: dict[str, int] = {}
        self.now = RoomState(0, {}, {})
        self._invented: set[str] = set()
        # Every gateway where an agent lives or stands by, or ever did: mail may still go there.
        self.believed: dict[str, set[str]] = {}
        keys = {id: gateway.key.public for id, gateway in gateways.items()}
        self._viewers = {
            id: RoomViewer(loop, gateway, network, self.now, keys)
            for id, gateway in gateways.items()
        }
        network.on_presence = lambda node: self._viewers[node].refresh_directory()
        if network.unreachable:
            self._send_heartbeats()

    def place_agent(
        self, agent: str, owner: str, standbys: tuple[str, ...] = (), *, unordered: bool = False
    ) -> None:
        """`agent` lives behind `owner` from now on."""
        believed = self.believed.setdefault(agent, set())
        former = tuple(sorted(believed - {owner, *standbys}))
        believed.update((owner, *standbys))
        home = AgentHome(owner, standbys, unordered=unordered, former=former)
        homes = self.now.homes | {agent: home}
        rules = dict(self.now.rules)
        rules.pop(agent, None)
        if standbys:
            rules[agent] = RoutingRule(owner, standbys)
        self._publish(RoomState(self.now.version + 1, homes, rules, self.now.revoked))

    def claim_agents(self, agents: list[str], node: str) -> None:
        """`node` claims agents that do not exist."""
        self._invented.update(agents)
        homes = self.now.homes | {agent: AgentHome(node) for agent in agents}
        self._publish(RoomState(self.now.version + 1, homes, self.now.rules, self.now.revoked))

    def drop_agent(self, agent: str) -> None:
        """An agent that was claimed does not exist any more."""
        homes = {id: home for id, home in self.now.homes.items() if id != agent}
        self._publish(RoomState(self.now.version + 1, homes, self.now.rules, self.now.revoked))

    @property
    def hosted(self) -> dict[str, AgentHome]:
        """Where the agents live that do exist."""
        return {id: home for id, home in self.now.homes.items() if id not in self._invented}

    def revoke_node(self, node: str) -> None:
        """`node` is a member no more, and owns no agents."""
        homes = {
            agent: replace(home, owner=None) if home.owner == node else home
            for agent, home in self.now.homes.items()
        }
        revoked = self.now.revoked | {node}
        self._publish(RoomState(self.now.version + 1, homes, self.now.rules, revoked))

    def _publish(self, state: RoomState) -> None:
        self.now = state
        for id, viewer in self._viewers.items():
            delay = self._random.randint(*self.delay_ms) + self.slow.get(id, 0)
            self._loop.call_after(delay, partial(viewer.learn_state, state))

    def agents_behind(self, node: str) -> list[str]:
        return [name for name, home in self.hosted.items() if home.owner == node]

    def owner_of(self, agent: str) -> str:
        return self.now.homes[agent].owner or ""

    def _send_heartbeats(self) -> None:
        """Gateways that cannot connect see each other's heartbeat in the room, through others."""
        for one, other in sorted(self._network.unreachable):
            if self._network.has_path(one, other):
                self._viewers[one].note_heartbeat(other)
        self._loop.call_after(_HEARTBEAT_EVERY_MS, self._send_heartbeats)


class RoomViewer:
    """One gateway's knowledge of the room, and of the gateways that are online."""

    def __init__(
        self,
        loop: VirtualLoop,
        gateway: SimulatedGateway,
        network: SimulatedNetwork,
        state: RoomState,
        keys: dict[str, bytes],
    ) -> None:
        self._loop = loop
        self._gateway = gateway
        self._links = network.links[gateway.id]
        self._state = state
        self._keys = keys
        self._told: RoutingDirectory | None = None
        self._planned: set[int] = set()
        for peer in keys:
            self._links.presence.note_contact(peer, loop.now)
        gateway.on_up.append(self._refresh_at_start)

    def learn_state(self, state: RoomState) -> None:
        if state.version > self._state.version:
            self._state = state
            self.refresh_directory()

    def note_heartbeat(self, peer: str) -> None:
        was_online = self._links.presence.is_online(peer, self._loop.now)
        self._links.presence.note_heartbeat(peer, self._loop.now, self._loop.now)
        if not was_online:
            self.refresh_directory()

    def refresh_directory(self) -> None:
        """Tell the gateway, if anything is new to it."""
        if not self._gateway.up:
            return
        directory = self._make_directory()
        if directory == self._told:
            return
        self._told = directory
        coordinator: DeliveryCoordinator = self._gateway.coordinator
        self._gateway.submit(
            lambda tx: coordinator.room_changed(tx, directory),
            lambda _, error: self._refresh_later() if error else self._links.room_changed(),
        )

    def _refresh_later(self) -> None:
        self._told = None
        self._loop.call_after(500, self.refresh_directory)

    def _refresh_at_start(self) -> None:
        self._told = None
        self.refresh_directory()

    def _make_directory(self) -> RoutingDirectory:
        state = self._state
        gateways = {
            id: GatewayEntry(key, self._is_believed_online(id))
            for id, key in self._keys.items()
            if id not in state.revoked
        }
        revoked = {id: RevokedGateway(self._keys[id], _ALL_COUNT) for id in state.revoked}
        return RoutingDirectory(gateways, state.homes, state.rules, revoked)

    def _is_believed_online(self, peer: str) -> bool:
        """Connected, or so lately that it may just be coming back."""
        if peer == self._gateway.id or self._links.ends_to(peer):
            return True
        until = self._links.presence.online_until(peer)
        if self._loop.now >= until:
            return False
        if until not in self._planned:
            self._planned.add(until)
            self._loop.call_at(until, self.refresh_directory)
        return True
