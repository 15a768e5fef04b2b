"""A faulty network between simulated gateways: connections that are slow, cut, or broken unnoticed.

Within one connection bytes arrive in order or not at all, as over TCP. What is lost, doubled or
out of order comes from connections that break and are opened anew, and from ends that notice it
at different times.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec

from gatepost.delivery.frames import EventsFrame, LinkFrame, decode_frame, encode_frame
from gatepost.delivery.outbox_link import OutboxLink
from gatepost.errors import GatepostError, LinkError
from gatepost.journal import Tx
from gatepost.journal.outbox import Appended
from gatepost.testing.simulation.gateway import SimulatedGateway
from gatepost.testing.simulation.virtual_time import VirtualLoop

Direction = tuple[str, str]  # from, to
# What becomes of a frame on its way: the same, another, or None if it never comes.
Tamper = Callable[[Direction, bytes], bytes | None]

_DIAL_MS = (100, 600)
_NOTICE_MS = (50, 4_000)


class SimulatedNetwork:
    """`cut` lanes carry nothing; `on_presence` hears whose neighbours may have changed."""

    def __init__(self, loop: VirtualLoop, gateways: dict[str, SimulatedGateway], seed: int) -> None:
        self.loop = loop
        self.gateways = gateways
        self.random = Random(f"{seed}/network")
        self.pipes = {id: Pipes(self, gateway) for id, gateway in gateways.items()}
        self.cut: set[Direction] = set()
        self.latency: dict[Direction, int] = {}
        self.tamper: Tamper = lambda lane, data: data
        self.on_presence: Callable[[str], None] = lambda node: None
        self.on_link_error: Callable[[str, str, GatepostError], None] = lambda *_: None
        self.bytes: Counter[Direction] = Counter()
        self.total = 0
        self._connections: list[SimulatedConnection] = []
        self._dialling: set[Direction] = set()
        # Lanes whose dialler has a connection, so that it need not try.
        self._idle: set[Direction] = set()

    # -- connections

    def keep_connected(self, dialler: str, other: str) -> None:
        """From now on `dialler` opens a connection whenever it has none to `other`."""
        if (dialler, other) not in self._dialling:
            self._dialling.add((dialler, other))
            self.loop.call_after(self.random.randint(1, 20), lambda: self._dial((dialler, other)))

    def _dial(self, lane: Direction) -> None:
        dialler, other = lane
        if self.pipes[dialler].ends_to(other):
            self._idle.add(lane)
            return
        if self._can_connect(lane):
            rtt = self._latency(lane) + self._latency((other, dialler))
            self.loop.call_after(rtt, lambda: self._open_connection(lane))
        self.loop.call_after(self.random.randint(*_DIAL_MS), lambda: self._dial(lane))

    def dial_again(self, lane: Direction) -> None:
        """A connection is gone; who dialled it dials again."""
        if lane in self._idle:
            self._idle.discard(lane)
            self.loop.call_after(self.random.randint(*_DIAL_MS), lambda: self._dial(lane))

    def open_connection(self, dialler: str, other: str) -> None:
        """Open one more connection, whether there is one or not."""
        if self._can_connect((dialler, other)):
            self._open_connection((dialler, other))

    def _open_connection(self, lane: Direction) -> None:
        if self._can_connect(lane):
            cable = SimulatedConnection(self, lane)
            self._connections.append(cable)
            cable.open()

    def _can_connect(self, lane: Direction) -> bool:
        there, back = lane, (lane[1], lane[0])
        return (
            self.gateways[lane[0]].up
            and self.gateways[lane[1]].up
            and there not in self.cut
            and back not in self.cut
        )

    def _latency(self, lane: Direction) -> int:
        return self.latency.get(lane, 2) + self.random.randint(0, 3)

    # -- what breaks them

    def cut_direction(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` any more; both ends find out in their own time."""
        self.cut.add((source, target))
        for cable in self._connections_between(source, target):
            cable.dead_directions.add((source, target))
            self._close_later(cable)

    def _close_later(self, cable: "SimulatedConnection") -> None:
        for id in cable.ends:
            self.loop.call_after(self.random.randint(*_NOTICE_MS), partial(cable.close_end, id))

    def drop_connections(self, source: str, target: str) -> None:
        """Connections between the two break, with everything that is in flight."""
        for cable in self._connections_between(source, target):
            cable.dead_directions |= {(source, target), (target, source)}
            self._close_later(cable)

    def heal_directions(self) -> None:
        self.cut.clear()
        self.latency.clear()

    def _connections_between(self, a: str, b: str) -> "list[SimulatedConnection]":
        self._connections = [cable for cable in self._connections if cable.is_alive()]
        return [cable for cable in self._connections if {a, b} == set(cable.ends)]

    # -- frames

    def transmit_frame(self, cable: "SimulatedConnection", lane: Direction, data: bytes) -> None:
        self.bytes[lane] += len(data)
        self.total += len(data)
        arrival = max(self.loop.now + self._latency(lane), cable.busy_until[lane])
        cable.busy_until[lane] = arrival
        self.loop.call_at(arrival, lambda: self._deliver_frame(cable, lane, data))

    def _deliver_frame(self, cable: "SimulatedConnection", lane: Direction, data: bytes) -> None:
        if lane in cable.dead_directions:
            return
        tampered = self.tamper(lane, data)
        if tampered is not None:
            cable.ends[lane[1]].receive(tampered)


class SimulatedConnection:
    """One connection and its two ends. Each end is closed when its gateway notices."""

    def __init__(self, network: SimulatedNetwork, lane: Direction) -> None:
        self.network = network
        self.direction = lane
        back = (lane[1], lane[0])
        self.busy_until = {lane: 0, back: 0}
        self.dead_directions: set[Direction] = set()
        self.ends = {id: ConnectionEnd(self, network.pipes[id], peer) for id, peer in (lane, back)}

    def open(self) -> None:
        """Who dialled speaks first."""
        for end in self.ends.values():
            end.pipes.joined(end)
        self.ends[self.direction[0]].open()

    def is_alive(self) -> bool:
        return any(not end.closed for end in self.ends.values())

    def close_end(self, id: str) -> None:
        """One end goes. What it sent before may still arrive; nothing comes back."""
        end = self.ends[id]
        if end.closed:
            return
        end.closed = True
        end.pipes.left(end)
        (peer,) = (other for other in self.ends if other != id)
        if (id, peer) not in self.dead_directions:
            delay = self.network.random.randint(5, 200)
            self.network.loop.call_after(delay, lambda: self.close_end(peer))


class ConnectionEnd:
    """One end of a connection, and the port of the link that runs over it."""

    def __init__(self, cable: SimulatedConnection, pipes: "Pipes", peer: str) -> None:
        self._cable = cable
        self.pipes = pipes
        self.peer = peer
        self.closed = False
        self._opened = False
        self._gateway = gateway = pipes.gateway
        window = gateway.settings.window
        self.link = OutboxLink(self, gateway.node, gateway.messages, peer, window)
        self.link.may_read = lambda: pipes.may_read(self)
        self.link.on_live = pipes.go_live

    def open(self) -> None:
        if not self._opened:
            self._opened = True
            self.link.open()

    def receive(self, data: bytes) -> None:
        if self.closed:
            return
        self.open()
        try:
            self.link.receive_frame(decode_frame(data))
        except GatepostError as error:
            self.end(error)

    # -- the port

    def send(self, frame: LinkFrame) -> None:
        if not self.closed:
            self._cable.network.transmit_frame(
                self._cable, (self._gateway.id, self.peer), encode_frame(frame)
            )

    def commit(self, operation: Callable[[Tx], Any], done: Callable[[Any], None]) -> None:
        self._gateway.submit(operation, lambda value, error: self._done(done, value, error))

    def _done(self, done: Callable[[Any], None], value: Any, error: GatepostError | None) -> None:
        if self.closed:
            return
        try:
            if error is not None:
                raise error
            done(value)
        except GatepostError as mistake:
            self.end(mistake)

    def now(self) -> int:
        return self._gateway.clock.now()

    def end(self, error: GatepostError) -> None:
        if not self.closed:
            if isinstance(error, LinkError):
                self._cable.network.on_link_error(self._gateway.id, self.peer, error)
            self._cable.close_end(self._gateway.id)


class Pipes:
    """The links of one gateway."""

    def __init__(self, network: SimulatedNetwork, gateway: SimulatedGateway) -> None:
        self._network = network
        self.gateway = gateway
        self.ends: list[ConnectionEnd] = []
        self.last_seen: dict[str, int] = {}
        gateway.on_up.append(self._start)
        gateway.on_down.append(self._stop)

    def ends_to(self, peer: str) -> list[ConnectionEnd]:
        return [end for end in self.ends if end.peer == peer]

    def joined(self, end: ConnectionEnd) -> None:
        self.ends.append(end)
        self._network.on_presence(self.gateway.id)

    def left(self, end: ConnectionEnd) -> None:
        self.ends.remove(end)
        self.last_seen[end.peer] = self._network.loop.now
        self._network.dial_again((self.gateway.id, end.peer))
        if self.gateway.up:
            self.go_live()
            self._read_elsewhere(end.peer)
            self._network.on_presence(self.gateway.id)

    def may_read(self, end: ConnectionEnd) -> bool:
        others = (other for other in self.ends_to(end.peer) if other is not end)
        return not any(other.link.reading for other in others)

    def go_live(self) -> None:
        peers = (end.peer for end in self.ends if end.link.feed is not None)
        self.gateway.outbox.live = frozenset(peers)

    def _read_elsewhere(self, peer: str) -> None:
        for end in self.ends_to(peer):
            if end.link.greeted and not end.link.reading and self.may_read(end):
                end.link.read_outbox()

    def _published(self, group: Appended) -> None:
        for end in list(self.ends):
            end.link.publish_group(group)

    def _start(self) -> None:
        self.gateway.outbox.published = self._published

    def _stop(self) -> None:
        """The power is gone: the other ends will find out."""
        for end in list(self.ends):
            end._cable.close_end(self.gateway.id)


def leave_out_event(data: bytes, place: int) -> bytes:
    """The same frame without one of its events, as an emitter that cheats would send it."""
    frame = decode_frame(data)
    if not isinstance(frame, EventsFrame):
        return data
    events = list(frame.events)
    del events[place]
    return encode_frame(msgspec.structs.replace(frame, events=events))
