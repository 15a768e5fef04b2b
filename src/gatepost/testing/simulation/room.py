"""The room as a simulated mesh needs it: where agents live, and who learns of it when."""

from collections.abc import Callable
from random import Random

from msgspec import Struct

from gatepost.delivery import Messages
from gatepost.routing import Directory, Gateway, Home, Rule
from gatepost.testing.simulation.gateway import SimulatedGateway
from gatepost.testing.simulation.network import SimulatedNetwork
from gatepost.testing.simulation.virtual_time import VirtualLoop

_OFFLINE_MS = 3_000


class RoomState(Struct, frozen=True):
    """The room at one version."""

    version: int
    homes: dict[str, Home]
    rules: dict[str, Rule]


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
        self._gateways = gateways
        self._random = Random(f"{seed}/room")
        self.delay_ms = (5, 50)
        self.slow: dict[str, int] = {}
        self.now = RoomState(0, {}, {})
        # Where an agent lives or stands by, or ever did: mail for it may be routed there still.
        self.believed: dict[str, set[str]] = {}
        self._views = {
            id: RoomViewer(loop, gateway, network, self.now) for id, gateway in gateways.items()
        }
        self._keys = {id: gateway.key.public for id, gateway in gateways.items()}
        for view in self._views.values():
            view.keys = self._keys
        network.on_presence = lambda node: self._views[node].refresh_directory()

    def place_agent(self, agent: str, owner: str, standbys: tuple[str, ...] = ()) -> None:
        """`agent` lives behind `owner` from now on."""
        self.believed.setdefault(agent, set()).update((owner, *standbys))
        homes = self.now.homes | {agent: Home(owner, standbys)}
        rules = dict(self.now.rules)
        rules.pop(agent, None)
        if standbys:
            rules[agent] = Rule(owner, standbys)
        self.now = picture = RoomState(self.now.version + 1, homes, rules)
        for id, view in self._views.items():
            delay = self._random.randint(*self.delay_ms) + self.slow.get(id, 0)
            self._loop.call_after(delay, _learning_of(view, picture))

    def owner_of(self, agent: str) -> str:
        return self.now.homes[agent].owner or ""


def _learning_of(view: "RoomViewer", picture: RoomState) -> Callable[[], None]:
    return lambda: view.learn_state(picture)


class RoomViewer:
    """What one gateway knows of the room, and whom it believes to be there."""

    def __init__(
        self,
        loop: VirtualLoop,
        gateway: SimulatedGateway,
        network: SimulatedNetwork,
        picture: RoomState,
    ) -> None:
        self._loop = loop
        self._gateway = gateway
        self._network = network
        self._picture = picture
        self._told: Directory | None = None
        self._looks: set[int] = set()
        self.keys: dict[str, bytes] = {}
        gateway.on_up.append(self._refresh_at_start)

    def learn_state(self, picture: RoomState) -> None:
        if picture.version > self._picture.version:
            self._picture = picture
            self.refresh_directory()

    def refresh_directory(self) -> None:
        """Tell the gateway, if anything is new to it."""
        if not self._gateway.up:
            return
        directory = self._make_directory()
        if directory == self._told:
            return
        self._told = directory
        messages: Messages = self._gateway.messages
        self._gateway.submit(
            lambda tx: messages.room_changed(tx, directory),
            lambda _, error: self._refresh_later() if error else None,
        )

    def _refresh_later(self) -> None:
        self._told = None
        self._loop.call_after(500, self.refresh_directory)

    def _refresh_at_start(self) -> None:
        self._told = None
        self.refresh_directory()

    def _make_directory(self) -> Directory:
        gateways = {id: Gateway(key, self._is_believed_online(id)) for id, key in self.keys.items()}
        return Directory(gateways, self._picture.homes, self._picture.rules)

    def _is_believed_online(self, peer: str) -> bool:
        """Connected, or so lately that it may just be coming back."""
        pipes = self._network.pipes[self._gateway.id]
        if peer == self._gateway.id or pipes.ends_to(peer):
            return True
        until = pipes.last_seen.setdefault(peer, self._loop.now) + _OFFLINE_MS
        if self._loop.now >= until:
            return False
        if until not in self._looks:
            self._looks.add(until)
            self._loop.call_at(until, self.refresh_directory)
        return True
