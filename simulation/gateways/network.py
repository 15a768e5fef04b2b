"""A faulty network between simulated gateways: slow, cut, or broken without notice.

Within one connection frames arrive in order or not at all, as over TCP. Loss, duplicates and
reordering come from connections that break and are opened anew, and from ends that notice it at
different times. Some pairs of gateways can never connect, as if both were behind NAT.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import msgspec

from gatepost.delivery.frames import EventsFrame, decode_frame, encode_frame
from gatepost.errors import GatepostError, LinkError
from gatepost.links.peer_links import PeerLinks
from gatepost.presence import ContactMemory
from simulation.gateways.blob_files import SimulatedBlobFiles
from simulation.gateways.gateway import SimulatedGateway
from simulation.gateways.virtual_time import VirtualLoop, VirtualTimer

Direction = tuple[str, str]  # from, to
# Returns the frame that arrives: the one sent, another, or None if it is lost.
Tamper = Callable[[Direction, bytes], bytes | None]

_DIAL_MS = (100, 600)
_NOTICE_MS = (50, 4_000)
_TEND_MS = 1_000
# How long a gateway is believed to be online without a connection, and with a heartbeat.
_OFFLINE_MS = 3_000
_HEARTBEAT_MS = 1_000


class SimulatedNetwork:
    """`cut` directions carry nothing. `on_presence` is called when a gateway's peers changed."""

    def __init__(self, loop: VirtualLoop, gateways: dict[str, SimulatedGateway], seed: int) -> None:
        self.loop = loop
        self.gateways = gateways
        self.random = Random(f"{seed}/network")
        self.links = {id: SimulatedLinks(self, gateway, seed) for id, gateway in gateways.items()}
        # Pairs that can never connect, in both directions.
        self.unreachable: set[Direction] = set()
        self.cut: set[Direction] = set()
        self.latency: dict[Direction, int] = {}
        self.tamper: Tamper = lambda direction, data: data
        self.on_presence: Callable[[str], None] = lambda node: None
        self.on_link_error: Callable[[str, str, GatepostError], None] = lambda *_: None
        # Called with every frame of events that reaches a reader; None until an observer asks.
        self.on_frame: Callable[[str, bytes], None] | None = None
        self.bytes: Counter[Direction] = Counter()
        self.total = 0
        self._connections: list[SimulatedConnection] = []
        self._dialling: set[Direction] = set()
        # Directions whose dialler has a connection and need not dial.
        self._idle: set[Direction] = set()

    # -- connections

    def forbid_connection(self, one: str, other: str) -> None:
        self.unreachable |= {(one, other), (other, one)}

    def keep_connected(self, dialler: str, other: str) -> None:
        """From now on `dialler` opens a connection whenever it has none to `other`."""
        if (dialler, other) not in self._dialling | self.unreachable:
            self._dialling.add((dialler, other))
            self.loop.call_after(self.random.randint(1, 20), lambda: self._dial((dialler, other)))

    def _dial(self, direction: Direction) -> None:
        dialler, other = direction
        if self.links[dialler].ends_to(other):
            self._idle.add(direction)
            return
        if self._can_connect(direction):
            rtt = self._latency(direction) + self._latency((other, dialler))
            self.loop.call_after(rtt, lambda: self._open_connection(direction))
        self.loop.call_after(self.random.randint(*_DIAL_MS), lambda: self._dial(direction))

    def dial_again(self, direction: Direction) -> None:
        """A connection is gone; its dialler opens another."""
        if direction in self._idle:
            self._idle.discard(direction)
            self.loop.call_after(self.random.randint(*_DIAL_MS), lambda: self._dial(direction))

    def open_connection(self, dialler: str, other: str) -> None:
        """Open one more connection, whether there is one or not."""
        self._open_connection((dialler, other))

    def _open_connection(self, direction: Direction) -> None:
        if self._can_connect(direction):
            connection = SimulatedConnection(self, direction)
            self._connections.append(connection)
            connection.open()

    def _can_connect(self, direction: Direction) -> bool:
        there, back = direction, (direction[1], direction[0])
        return (
            self.gateways[direction[0]].up
            and self.gateways[direction[1]].up
            and there not in self.unreachable
            and there not in self.cut
            and back not in self.cut
        )

    def has_path(self, one: str, other: str) -> bool:
        """Whether a chain of connections leads from one gateway to the other."""
        reached, found = {one}, [one]
        while found:
            for end in self.links[found.pop()].ends:
                if end.peer not in reached:
                    reached.add(end.peer)
                    found.append(end.peer)
        return other in reached

    def _latency(self, direction: Direction) -> int:
        return self.latency.get(direction, 2) + self.random.randint(0, 3)

    # -- faults

    def cut_direction(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` any more; both ends notice in their own time."""
        self.cut.add((source, target))
        for connection in self._connections_between(source, target):
            connection.dead_directions.add((source, target))
            self._close_later(connection)

    def _close_later(self, connection: "SimulatedConnection") -> None:
        for id in connection.ends:
            self.loop.call_after(
                self.random.randint(*_NOTICE_MS), partial(connection.close_end, id)
            )

    def drop_connections(self, source: str, target: str) -> None:
        """Connections between the two break, with everything that is in flight."""
        for connection in self._connections_between(source, target):
            connection.dead_directions |= {(source, target), (target, source)}
            self._close_later(connection)

    def heal_directions(self) -> None:
        self.cut.clear()
        self.latency.clear()

    def _connections_between(self, a: str, b: str) -> "list[SimulatedConnection]":
        self._connections = [each for each in self._connections if each.is_alive()]
        return [each for each in self._connections if {a, b} == set(each.ends)]

    # -- frames

    def transmit_frame(
        self, connection: "SimulatedConnection", direction: Direction, data: bytes
    ) -> None:
        self.bytes[direction] += len(data)
        self.total += len(data)
        arrival = max(self.loop.now + self._latency(direction), connection.busy_until[direction])
        connection.busy_until[direction] = arrival
        self.loop.call_at(arrival, lambda: self._deliver_frame(connection, direction, data))

    def _deliver_frame(
        self, connection: "SimulatedConnection", direction: Direction, data: bytes
    ) -> None:
        if direction in connection.dead_directions or connection.ends[direction[1]].closed:
            return
        tampered = self.tamper(direction, data)
        if tampered is not None:
            if self.on_frame is not None:
                self.on_frame(direction[1], tampered)
            connection.ends[direction[1]].receive_frame(tampered)


class SimulatedConnection:
    """One connection with two ends. Each end is closed when its gateway notices."""

    def __init__(self, network: SimulatedNetwork, direction: Direction) -> None:
        self.network = network
        self.direction = direction
        back = (direction[1], direction[0])
        self.busy_until = {direction: 0, back: 0}
        self.dead_directions: set[Direction] = set()
        self.ends = {
            id: ConnectionEnd(self, network.links[id], peer) for id, peer in (direction, back)
        }

    def open(self) -> None:
        """The gateway that dialled speaks first."""
        for end in self.ends.values():
            end.links.add_end(end)
        self.ends[self.direction[0]].link.open()

    def is_alive(self) -> bool:
        return any(not end.closed for end in self.ends.values())

    def close_end(self, id: str) -> None:
        """One end goes. Frames it sent before may still arrive; nothing comes back."""
        end = self.ends[id]
        if end.closed:
            return
        end.closed = True
        end.links.remove_end(end)
        (peer,) = (other for other in self.ends if other != id)
        if (id, peer) not in self.dead_directions:
            delay = self.network.random.randint(5, 200)
            self.network.loop.call_after(delay, lambda: self.close_end(peer))


class ConnectionEnd:
    """One end of a connection, and the link that runs over it."""

    is_congested = False

    def __init__(self, connection: SimulatedConnection, links: "SimulatedLinks", peer: str) -> None:
        self._connection = connection
        self.links = links
        self.peer = peer
        self.closed = False
        self._id = links.gateway.id
        self.link = links.peers.add_link(self, peer)

    def receive_frame(self, data: bytes) -> None:
        if not self.closed:
            self.link.receive(data)

    def send_frame(self, data: bytes) -> None:
        if not self.closed:
            network = self._connection.network
            network.transmit_frame(self._connection, (self._id, self.peer), data)

    def end(self, error: GatepostError) -> None:
        if isinstance(error, LinkError):
            self._connection.network.on_link_error(self._id, self.peer, error)
        self.close()

    def close(self) -> None:
        self._connection.close_end(self._id)


class SimulatedLinks:
    """The connections of one gateway. Every start of the gateway begins with new `peers`."""

    def __init__(self, network: SimulatedNetwork, gateway: SimulatedGateway, seed: int) -> None:
        self._network = network
        self.gateway = gateway
        self.ends: list[ConnectionEnd] = []
        self.files = SimulatedBlobFiles(gateway, seed)
        self.presence = ContactMemory(_OFFLINE_MS, _HEARTBEAT_MS)
        self.peers: PeerLinks
        self._tending: VirtualTimer | None = None
        gateway.on_up.append(self._start)
        gateway.on_down.append(self._stop)

    def ends_to(self, peer: str) -> list[ConnectionEnd]:
        return [end for end in self.ends if end.peer == peer]

    def add_end(self, end: ConnectionEnd) -> None:
        self.ends.append(end)
        self._network.on_presence(self.gateway.id)

    def remove_end(self, end: ConnectionEnd) -> None:
        self.ends.remove(end)
        self.presence.note_contact(end.peer, self._network.loop.now)
        self._network.dial_again((self.gateway.id, end.peer))
        if self.gateway.up:
            self.peers.remove_link(end.link)
            self._network.on_presence(self.gateway.id)

    def room_changed(self) -> None:
        self.peers.room_changed()
        self.peers.tend(self._network.loop.now)

    def _start(self) -> None:
        self.peers = PeerLinks(self.gateway, self.files, self.gateway.settings.link_settings())
        self.gateway.on_blob_wanted = self.peers.fetcher.want_blob
        self.peers.start()
        self._tend()

    def _tend(self) -> None:
        self.peers.tend(self._network.loop.now)
        self._tending = self._network.loop.call_after(_TEND_MS, self._tend)

    def _stop(self) -> None:
        """The power is gone; the other ends notice later."""
        if self._tending is not None:
            self._tending.cancel()
        for end in list(self.ends):
            end.close()


def leave_out_event(data: bytes, index: int) -> bytes:
    """The same frame without one of its events, as an emitter that cheats would send it."""
    frame = decode_frame(data)
    if not isinstance(frame, EventsFrame):
        return data
    events = list(frame.events)
    del events[index]
    return encode_frame(msgspec.structs.replace(frame, events=events))
